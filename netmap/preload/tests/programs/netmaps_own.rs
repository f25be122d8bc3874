//! netmap's own programs, built from its public sources: the folder NETMAP_BIN has them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sluicegate::link::{Lab, Shape};
use sluicegate::port::{OpenOptions, Port};

use crate::child;
use crate::program::{Programs, library};
use crate::scratch::lab_of;

/// The time that a test waits for packets that must come.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Packets of a test: a ring holds them all, so none is lost, however slow the receiver is.
pub const PACKETS: &str = "1000";

/// Cases of ctrl-api-test that do not pass.
const EXCEPTIONS: [(&str, &[&str]); 3] = [
    (
        "ring cursors outside the rings (CSB) and the kernel's loop",
        &[
            "csb_mode",
            "sync_kloop",
            "sync_kloop_eventfds_all",
            "sync_kloop_eventfds_all_tx",
            "sync_kloop_eventfds_all_direct",
            "sync_kloop_eventfds_all_direct_tx",
            "sync_kloop_eventfds_all_direct_rx",
            "sync_kloop_csb_enable",
            "sync_kloop_conflict",
            "sync_kloop_eventfds_mismatch",
        ],
    ),
    (
        "memory of the program as the region (a case of builds with CONFIG_NETMAP_EXTMEM)",
        &["extmem_option"],
    ),
    (
        "fails without netmap, too: libnetmap accepts two names that it expects to be invalid",
        &["nmreq_parsing"],
    ),
];

/// Returns the folder of the programs; none, and says why, without it.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("NETMAP_BIN").map(PathBuf::from);
    if folder.is_none() {
        println!(
            "skipped: needs netmap's programs; get it by building github.com/luigirizzo/netmap and naming their \
             folder in NETMAP_BIN"
        );
    }
    folder
}

/// Returns a command that runs a program with the library, and with the server at a socket; `off` for none.
pub fn command(
    folder: &Path,
    server: impl AsRef<OsStr>,
    program: &str,
    arguments: &[&str],
) -> Command {
    let mut command = Command::new(folder.join(program));
    command.args(arguments).env("LD_PRELOAD", library()).env("SLUICE_NETMAP_SERVER", server);
    command.stdin(Stdio::null());
    command
}

/// Compiles `abi.c` with flags, and returns what it prints; none without a compiler.
fn printed_abi(flags: &[&str]) -> Option<String> {
    let program = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/abi.c");
    let built = Command::new("cc")
        .args(["-std=gnu11", source])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .output();
    let Ok(built) = built else {
        println!("skipped: needs cc; get it by scripts/setup.sh");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap())
}

#[test]
fn the_programs_structures_are_those_of_netmap_s_header() {
    let Some(sources) = std::env::var_os("NETMAP_SRC") else {
        println!(
            "skipped: needs netmap's header; get it by github.com/luigirizzo/netmap, and name its folder in NETMAP_SRC"
        );
        return;
    };
    let include = format!("-I{}/sys", sources.display());
    let Some(own) = printed_abi(&[]) else { return };
    assert!(own.lines().count() > 70, "{own}");
    assert_eq!(own, printed_abi(&["-DNETMAP_HEADERS", &include]).unwrap());
}

/// A program that runs; dropping it ends it.
pub struct PeerProgram {
    child: Child,
    output: Option<BufReader<PipeReader>>,
}

impl PeerProgram {
    /// Starts a program on a host of a lab.
    pub fn start(
        folder: &Path,
        (lab, host): (&Lab, &str),
        program: &str,
        arguments: &[&str],
    ) -> Self {
        let command = command(folder, "off", program, arguments);
        Self::spawn(command, |command| lab.spawn(host, command).unwrap())
    }

    /// Starts a program by `spawn`.
    pub fn spawn(mut command: Command, spawn: impl FnOnce(&mut Command) -> Child) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        Self { child: spawn(&mut command), output: Some(BufReader::new(reader)) }
    }

    /// Waits until a line of its output contains a text.
    pub fn until(mut self, text: &'static str) -> Self {
        let mut output = self.output.take().unwrap();
        let (said, output) = child::limited(self.child.id(), move || {
            let mut said = String::new();
            while !said.lines().last().is_some_and(|line| line.contains(text)) {
                if output.read_line(&mut said).unwrap() == 0 {
                    return (said, None);
                }
            }
            (said, Some(output))
        });
        assert!(output.is_some(), "no '{text}' in: {said}");
        self.output = output;
        self
    }

    /// Makes it end as a user does.
    pub fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
    }

    /// Waits for its end. Returns the rest of its output.
    pub fn end(mut self) -> String {
        let mut output = self.output.take().unwrap();
        child::limited(self.child.id(), move || {
            let mut said = String::new();
            output.read_to_string(&mut said).unwrap();
            said
        })
    }
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        // Ended already if the test waited for that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn assert_says(output: &str, text: &str) {
    assert!(output.contains(text), "no '{text}' in: {output}");
}

#[test]
fn pkt_gen_receives_every_packet_that_pkt_gen_sends() {
    let Some(folder) = folder() else { return };
    for (queues, sender) in [(1, &[][..]), (2, &["-p", "2", "-z"][..])] {
        let Some(lab) = lab_of(Shape::Pair, queues) else { return };
        let common = ["-w", "1", "-n", PACKETS];
        let receive = [&["-i", "netmap:right0", "-f", "rx"], &common[..]].concat();
        let receiver =
            PeerProgram::start(&folder, (&lab, "right"), "pkt-gen", &receive).until("Ready...");
        let send = [&["-i", "netmap:left0", "-f", "tx"], &common[..], sender].concat();
        let sent = PeerProgram::start(&folder, (&lab, "left"), "pkt-gen", &send).end();
        assert_says(&sent, "Sent 1000 packets 60000 bytes");
        assert_says(&receiver.end(), "Received 1000 packets 60000 bytes");
    }
}

#[test]
fn pkt_gen_is_answered_by_pkt_gen() {
    let Some(folder) = folder() else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let pong = ["-i", "netmap:right0", "-f", "pong", "-w", "1"];
    let _pong = PeerProgram::start(&folder, (&lab, "right"), "pkt-gen", &pong).until("Ready...");
    let ping = ["-i", "netmap:left0", "-f", "ping", "-w", "1", "-n", PACKETS];
    let answered = PeerProgram::start(&folder, (&lab, "left"), "pkt-gen", &ping).end();
    assert_says(&answered, "RTT over 1000 packets");
}

#[test]
fn bridge_passes_every_packet() {
    let Some(folder) = folder() else { return };
    for copies in [&[][..], &["-c"][..]] {
        let Some(lab) = lab_of(Shape::Line, 1) else { return };
        let common = ["-w", "1", "-n", PACKETS];
        let bridge =
            [&["-w", "1", "-i", "netmap:middle0", "-i", "netmap:middle1"], copies].concat();
        let _bridge =
            PeerProgram::start(&folder, (&lab, "middle"), "bridge", &bridge).until("Ready to go");
        let receive = [&["-i", "netmap:right0", "-f", "rx"], &common[..]].concat();
        let receiver =
            PeerProgram::start(&folder, (&lab, "right"), "pkt-gen", &receive).until("Ready...");
        let send = [&["-i", "netmap:left0", "-f", "tx"], &common[..]].concat();
        let sent = PeerProgram::start(&folder, (&lab, "left"), "pkt-gen", &send).end();
        assert_says(&sent, "Sent 1000 packets 60000 bytes");
        assert_says(&receiver.end(), "Received 1000 packets 60000 bytes");
    }
}

/// The payload of pkt-gen's packets, again and again.
const PAYLOAD: &[u8] = b"netmap pkt-gen DIRECT payload\nhttp://info.iet.unipi.it/~luigi/netmap/ ";

#[test]
fn pkt_gen_s_packets_arrive_with_their_bytes() {
    let Some(folder) = folder() else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let name = "packet:right0?filter=udp dst port 1234&tx_copies=off&buffer=8M&method=recvmmsg";
    let options = OpenOptions { netns: Some(lab.netns("right")), ..OpenOptions::default() };
    let mut far = Port::open(&name.parse().unwrap(), &options).unwrap().queues.remove(0);
    let send =
        ["-i", "netmap:left0", "-f", "tx", "-w", "1", "-n", PACKETS, "-R", "20000", "-l", "200"];
    let sent = PeerProgram::start(&folder, (&lab, "left"), "pkt-gen", &send).end();
    assert_says(&sent, "Sent 1000 packets 200000 bytes");
    let mut received = Vec::new();
    let end = Instant::now() + TIMEOUT;
    while received.len() < 1000 {
        assert!(Instant::now() < end, "{} packets", received.len());
        let batch = far.receive(Duration::from_millis(100)).unwrap();
        received.extend(batch.packets().map(|packet| packet.head().to_vec()));
    }
    for packet in &received {
        // Ethernet, IPv4 and UDP headers.
        let (headers, payload) = packet.split_at(14 + 20 + 8);
        assert_eq!(packet.len(), 200);
        assert_eq!(headers[38..40], 166u16.to_be_bytes(), "the length of UDP");
        let expected = PAYLOAD.iter().cycle();
        assert!(payload.iter().zip(expected).all(|(one, other)| one == other), "{payload:?}");
    }
}

#[test]
fn bridge_passes_the_host_s_packets() {
    let Some(folder) = folder() else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let bridge = ["-w", "1", "-i", "netmap:right0", "-i", "netmap:right0^"];
    let bridge =
        PeerProgram::start(&folder, (&lab, "right"), "bridge", &bridge).until("Ready to go");
    assert!(crate::ping(&lab), "through the program");
    drop(bridge);
    assert!(crate::ping(&lab), "without it");
}

/// Returns a capture file of frames of 60 bytes, a millisecond apart.
fn capture(frames: u32) -> Vec<u8> {
    let mut file = Vec::new();
    // Magic number, version 2.4, no time zone and accuracy, longest frame, Ethernet.
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(u32::to_le_bytes(word));
    }
    for number in 0..frames {
        for word in [1, number * 1000, 60, 60] {
            file.extend(u32::to_le_bytes(word));
        }
        // A frame as `receive` checks it (netmap/tests/programs/port.h).
        file.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        file.extend(number.to_ne_bytes());
        file.extend((18..60).map(|at| (number + at) as u8));
    }
    file
}

#[test]
fn nmreplay_sends_a_capture() {
    let Some(folder) = folder() else { return };
    let Some(programs) = Programs::build(&["receive"]) else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&capture(200)).unwrap();
    let receiver = programs.start((&lab, "right"), "receive", &["right0", "200", "/dev/null"]);
    let replay = ["-i", "netmap:left0", "-w", "1", "-f", file.path().to_str().unwrap()];
    // It replays the capture again and again, and does not end by itself.
    let _replay = PeerProgram::start(&folder, (&lab, "left"), "nmreplay", &replay);
    let received = receiver.end();
    assert!(
        received.starts_with("received 200, ") && received.ends_with(", wrong 0\n"),
        "{received}"
    );
}

/// Returns the names of ctrl-api-test's cases, in order.
fn cases(program: &Path) -> Vec<String> {
    let listed = Command::new(program).arg("-l").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix('#')?.split(": ").nth(1));
    names.map(str::to_owned).collect()
}

#[test]
fn ctrl_api_test_passes_in_all_cases_but_the_exceptions() {
    let Some(folder) = folder() else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    all_cases_pass(&folder, &lab, OsStr::new("off"));
}

/// Runs all cases on the left host, with the server at a socket.
pub fn all_cases_pass(folder: &Path, lab: &Lab, server: &OsStr) {
    let program = folder.join("ctrl-api-test");
    let cases = cases(&program);
    assert!(cases.len() > 40, "{cases:?}");
    let exceptions: Vec<&str> = EXCEPTIONS.iter().flat_map(|(_, cases)| *cases).copied().collect();
    let mut unexpected = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        // Cases read errno after perror(3), which keeps it only if it can read from standard error.
        let errors: File = tempfile::tempfile().unwrap();
        let number = (number + 1).to_string();
        let mut command = command(folder, server, "ctrl-api-test", &["-j", &number]);
        command.stdout(Stdio::piped()).stderr(errors);
        let output = child::end(lab.spawn("left", &mut command).unwrap());
        if output.status.success() == exceptions.contains(&&**case) {
            let said = String::from_utf8_lossy(&output.stdout);
            unexpected.push(format!("{case}: {}: {said}", output.status));
        }
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}
