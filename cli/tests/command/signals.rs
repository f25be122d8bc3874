//! Signals end every command, or print its ledger while it runs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::Signal;
use nix::sys::termios::tcgetattr;
use serde_json::Value;
use sluicegate::link::Shape;

use crate::support::*;

/// The command. If the tests run under nohup, its children would inherit the ignored SIGHUP.
fn sluice(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_sluice")]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Commands of every kind that run until they are told to end, each with a name.
fn endless(
    [left, middle, right]: &[String; 3],
    capture: &Path,
    replayed: &Path,
    socket: &Path,
) -> [(&'static str, String); 7] {
    let [capture, replayed, socket] = [capture, replayed, socket].map(Path::display);
    [
        ("a capture", format!("capture right0 --netns {right} -w {capture}")),
        ("a count", format!("count packet:right0 --netns {right}")),
        (
            "live frames",
            format!("generate left0 --netns {left} --rate 1kpps --dst 198.18.0.9 --dmac {NOBODY}"),
        ),
        (
            "a sender by sockets",
            format!("replay {replayed} packet:left0 --netns {left} --loop 0 --rate 1kpps"),
        ),
        ("a forwarder", format!("forward packet:middle0 packet:middle1 --netns {middle}")),
        (
            "a switch",
            format!("switch packet:middle0 packet:middle1 --netns {middle} --control {socket}"),
        ),
        (
            "a forwarder in the kernel",
            format!("forward xdp:middle0 xdp:middle1 --in-kernel --netns {middle}"),
        ),
    ]
}

#[test]
fn every_signal_that_ends_a_command_ends_each_with_its_ledger() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let hosts = ["left", "middle", "right"].map(|host| lab.netns(host));
    let folder = tempfile::tempdir().unwrap();
    let replayed = folder.path().join("replayed.pcap");
    numbered(&replayed, 0..10, 0, 1000);
    for signal in [Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTERM] {
        let file = folder.path().join(format!("{signal}.pcapng.zst"));
        let socket = folder.path().join("socket");
        let running = endless(&hosts, &file, &replayed, &socket).map(|(what, command)| {
            let arguments: Vec<&str> = command.split(' ').chain(["--json"]).collect();
            (what, Running::unawaited(&mut sluice(&arguments)))
        });
        running.iter().for_each(|(_, running)| running.catches_signals());
        running.iter().for_each(|(_, running)| running.signal(signal));
        for (what, running) in running {
            let ended = running.end();
            assert_eq!(ended.status, Some(0), "{what}, {signal}: {ended:?}");
            assert!(ended.report()["ledger"].is_object(), "{what}, {signal}: {ended:?}");
        }
        let read = run(&["count", &format!("pcap:{}", file.display()), "--json"]);
        assert_eq!(read.status, Some(0), "{signal}: the compressed file is whole: {}", read.err);
        assert!(!socket.exists(), "{signal}: the switch's socket");
    }
}

#[test]
fn a_closed_pipe_ends_every_command() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let hosts = ["left", "middle", "right"].map(|host| lab.netns(host));
    let folder = tempfile::tempdir().unwrap();
    let [replayed, file, socket] =
        ["replayed.pcap", "file.pcapng.zst", "socket"].map(|name| folder.path().join(name));
    numbered(&replayed, 0..10, 0, 1000);
    let mut running = endless(&hosts, &file, &replayed, &socket).map(|(what, command)| {
        let arguments: Vec<&str> = command.split(' ').chain(["--json"]).collect();
        (what, Running::unawaited(&mut sluice(&arguments)))
    });
    running.iter().for_each(|(_, running)| running.catches_signals());
    running.iter_mut().for_each(|(_, running)| drop(running.child().stdout.take()));
    for (what, running) in running {
        let ended = running.end();
        assert_eq!(ended.status, Some(0), "{what}: {ended:?}");
    }
    run(&["count", &format!("pcap:{}", file.display()), "--json"]).good();
}

#[test]
fn signals_end_commands_without_a_ledger_too() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("left");
    for signal in [Signal::SIGHUP, Signal::SIGQUIT] {
        let top = Running::unawaited(&mut sluice(&["top", "--netns", &netns, "--plain"]));
        top.catches_signals();
        top.signal(Signal::SIGUSR1);
        eventually("the request is taken", || !top.has_pending());
        assert!(!top.has_ended(), "SIGUSR1 ends nothing");
        top.signal(signal);
        assert_eq!(top.end().status, Some(0), "top, {signal}");
        let between = format!("{0}/left0,{1}/right0", lab.netns("left"), lab.netns("right"));
        let arguments = ["bench", "rx", "--between", &between, "--seconds", "1s", "--rounds", "1"];
        let mut bench = Running::unawaited(&mut sluice(&arguments));
        bench.says();
        bench.signal(Signal::SIGUSR1);
        bench.signal(signal);
        let ended = bench.end();
        assert!(ended.signal.is_none(), "bench, {signal}: {ended:?}");
        assert!(ended.err.contains("stopped"), "bench, {signal}: {ended:?}");
    }
}

#[test]
fn a_ledger_requested_just_before_the_end_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket").display().to_string();
    for arguments in [
        &["generate", "null:", "--rate", "10pps", "--json"][..],
        &["switch", "null:", "--tx-only", "null", "--control", &socket, "--json"],
    ] {
        let running = Running::unawaited(&mut sluice(arguments));
        running.catches_signals();
        // Both signals are pending when the command continues.
        for signal in [Signal::SIGSTOP, Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGCONT] {
            running.signal(signal);
        }
        let ended = running.end();
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let so_far = ended.err.lines().find(|line| line.contains("\"so_far\":true"));
        let so_far: Value =
            serde_json::from_str(so_far.unwrap_or_else(|| panic!("{ended:?}"))).unwrap();
        assert!(so_far["port"].as_str().is_some_and(|port| port.contains("null")), "{so_far}");
    }
}

#[test]
fn only_sigint_or_sigquit_as_a_second_signal_ends_at_once() {
    use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let folder = tempfile::tempdir().unwrap();
    let sources = ["1.pcap", "2.pcap"].map(|name| folder.path().join(name));
    sources.iter().for_each(|path| numbered(path, 0..20_000, 0, 1000));
    let [one, two] = sources.map(|path| format!("pcap:{}", path.display()));
    for (signals, status) in [
        (&[SIGHUP, SIGHUP][..], 0),
        (&[SIGTERM, SIGHUP, SIGTERM], 0),
        (&[SIGINT, SIGTERM], 0),
        (&[SIGHUP, SIGINT], 130),
        (&[SIGTERM, SIGQUIT], 130),
        (&[SIGINT, SIGINT], 130),
    ] {
        // The end waits for a reader that does not read.
        let mut capture =
            Running::unawaited(&mut sluice(&["capture", &one, &two, "-w", "-", "--json"]));
        capture.has_written(4);
        eventually("all is read", || !capture.has_workers());
        for signal in signals {
            capture.catches_signals();
            eventually("the one before it is taken", || !capture.has_pending());
            capture.signal(*signal);
        }
        if let (130, Some(last)) = (status, signals.last()) {
            // Sent again, because a signal that follows the first at once repeats its request.
            eventually("it ends without its reader", || {
                capture.signal(*last);
                capture.has_ended()
            });
        } else {
            eventually("the last one is taken", || !capture.has_pending());
        }
        let ended = capture.end();
        assert_eq!(ended.status, Some(status), "{signals:?}: {ended:?}");
        assert!(status != 0 || ended.report()["ledger"].is_object(), "{signals:?}: {ended:?}");
    }
}

#[test]
fn a_signal_that_comes_with_the_first_is_the_same_request() {
    use Signal::{SIGCONT, SIGINT, SIGQUIT, SIGSTOP};
    let running =
        Running::unawaited(&mut sluice(&["generate", "null:", "--rate", "10pps", "--json"]));
    running.catches_signals();
    // Both are pending when the command continues, as timeout(1) sends them to a command and to its group.
    for signal in [SIGSTOP, SIGINT, SIGQUIT, SIGCONT] {
        running.signal(signal);
    }
    let ended = running.end();
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.report()["ledger"].is_object(), "{ended:?}");
}

#[test]
fn a_reader_that_leaves_ends_commands_that_send_to_it_with_their_result() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("source.pcap");
    numbered(&file, 0..1000, 0, 1000);
    let file = file.to_str().unwrap();
    for arguments in [
        &["replay", file, "-", "--loop", "0", "--top-speed"][..],
        &["generate", "-", "--dst", "198.18.0.9"],
        &["generate", "-", "--dst", "198.18.0.9", "--rate", "0.001pps"],
        &["generate", "null:", "-", "--dst", "198.18.0.9"],
        &["forward", "null:", "-", "--one-way", "--duration", "1h"],
    ] {
        let mut running = Running::unawaited(&mut sluice(&[arguments, &["--json"]].concat()));
        running.has_written(4);
        drop(running.child().stdout.take());
        let ended = running.end();
        ended.good();
        assert!(ended.err.ends_with("sluice: the reader closed the pipe\n"), "{ended:?}");
    }
}

#[test]
fn a_reader_that_leaves_ends_a_command_whose_input_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..10, 0, 1000);
    let source = std::fs::read(&source).unwrap();
    // The input has sent nothing, or packets.
    for begun in [&[][..], &source] {
        for arguments in [
            &["count", "pcap:-"][..],
            &["count", "pcap:/dev/stdin"],
            &["capture", "pcap:-", "-w", "-"],
            &["edit", "-", "-"],
            &["replay", "-", "null:", "--top-speed"],
            &["forward", "pcap:-", "null:", "--one-way"],
        ] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let mut running = Running::unawaited(sluice(arguments).stdin(reader));
            writer.write_all(begun).unwrap();
            if begun.is_empty() {
                eventually("it waits for its input", || running.has_sleeping("sluice"));
            } else {
                running.catches_signals();
            }
            drop(running.child().stdout.take());
            let ended = running.end();
            assert_eq!(ended.status, Some(0), "{arguments:?}: {ended:?}");
        }
    }
}

#[test]
fn a_closed_socket_ends_a_command_as_a_closed_pipe_does() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = sluice(&["generate", "null:", "--rate", "10pps", "--interval", "1h"]);
    let running = Running::unawaited(command.stdout(OwnedFd::from(theirs)));
    running.catches_signals();
    drop((command, ours));
    assert_eq!(running.end().status, Some(0));
}

#[test]
fn a_reader_that_leaves_ends_top_and_a_bench_in_a_wait() {
    let Some(lab) = lab() else { return };
    let between = format!("{0}/left0,{1}/right0", lab.netns("left"), lab.netns("right"));
    for arguments in [
        &["top", "lo", "--plain", "--interval", "1h"][..],
        &["bench", "rx", "--between", &between, "--seconds", "1h", "--rounds", "1"],
    ] {
        let mut running = Running::unawaited(&mut sluice(arguments));
        running.catches_signals();
        drop(running.child().stdout.take());
        let ended = running.end();
        assert_eq!(ended.status, Some(0), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn a_hangup_that_nohup_ignores_stays_ignored() {
    if !have(&["nohup"]) {
        return;
    }
    let mut command = Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_sluice"), "generate", "null:", "--rate", "10pps", "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::unawaited(&mut command);
    running.catches_signals();
    running.signal(Signal::SIGHUP);
    running.signal(Signal::SIGUSR1);
    eventually("the request is taken", || !running.has_pending());
    assert!(!running.has_ended());
    assert!(running.stop().good()["packets"].is_number());
}

/// Asks for the ledger until it has the expected counts: packets may still be on their way.
pub fn ledger_until(running: &mut Running, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        running.signal(Signal::SIGUSR1);
        let line = loop {
            let line = running.says();
            if line.starts_with('{') {
                break line;
            }
        };
        let report: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(report["so_far"], true, "{report}");
        if is_so(&report) {
            return report;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the ledger so far never says so");
}

#[test]
fn sigusr1_prints_the_ledger_so_far_and_disturbs_nothing() {
    if !have(&["tcpreplay"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let hosts = ["left", "middle", "right"].map(|host| lab.netns(host));
    let folder = tempfile::tempdir().unwrap();
    let sent = folder.path().join("sent.pcap");
    numbered(&sent, 0..500, 0, 1000);
    let file = folder.path().join("kept.pcapng").display().to_string();
    let socket = folder.path().join("socket").display().to_string();
    let middle = hosts[1].as_str();
    without_gro(&lab, "middle", &["middle0", "middle1"]);
    for (what, arguments, out) in [
        ("a capture", vec!["capture", "middle0", "-w", &file, "-f", NUMBERED], "written"),
        ("a count", vec!["count", "packet:middle0", "-f", NUMBERED], "counted"),
        (
            "a forwarder",
            vec!["forward", "packet:middle0", "packet:middle1", "--one-way", "-f", NUMBERED],
            "sent",
        ),
        (
            "a switch",
            vec![
                "switch",
                "a=packet:middle0?filter=ether proto 0x88b5",
                "b=packet:middle1",
                "--rx-only",
                "a",
                "--tx-only",
                "b",
                "--control",
                &socket,
            ],
            "sent",
        ),
    ] {
        let mut running = Running::unawaited(&mut sluice(
            &[&arguments[..], &["--netns", middle, "--json"]].concat(),
        ));
        running.catches_signals();
        eventually("it works", || {
            running.has_workers()
                || running.has_threads("forward-")
                || running.has_threads("switch")
        });
        replay(&lab, "left", "left0", &sent, 20_000);
        // The file's count is read a moment after the workers'.
        let is_all = |report: &Value| report["ledger"]["out"] == 500 && report["packets"] == 500;
        let report = ledger_until(&mut running, is_all);
        assert_eq!(report["ledger"]["unexplained"], 0, "{what}: {report}");
        replay(&lab, "left", "left0", &sent, 20_000);
        ledger_until(&mut running, |report| report["ledger"]["out"] == 1000);
        let ended = running.stop();
        let last = ended.good();
        assert!(last["so_far"].is_null(), "{what}: {last}");
        assert_eq!(last["packets"], 1000, "{what} ({out}): {last}");
    }
    for (what, arguments) in [
        (
            "a sender by a ring",
            vec![
                "replay",
                sent.to_str().unwrap(),
                "packet:left0",
                "--loop",
                "0",
                "--rate",
                "10kpps",
            ],
        ),
        (
            "live frames",
            vec!["generate", "left0", "--dst", "198.18.0.9", "--dmac", NOBODY, "--rate", "10kpps"],
        ),
    ] {
        let mut running = Running::unawaited(&mut sluice(
            &[&arguments[..], &["--netns", &hosts[0], "--json"]].concat(),
        ));
        running.catches_signals();
        let report = ledger_until(&mut running, |report| report["packets"].as_u64() > Some(1000));
        let ended = running.stop();
        let last = ended.good();
        assert!(last["packets"].as_u64() >= report["packets"].as_u64(), "{what}: {last}");
    }
}

#[test]
fn sigusr1_without_json_prints_for_people() {
    let mut running = Running::unawaited(&mut sluice(&["generate", "null:", "--rate", "100pps"]));
    running.catches_signals();
    running.signal(Signal::SIGUSR1);
    let mut said = String::new();
    while !said.contains("on its way, or unexplained") {
        said += &running.says();
    }
    assert!(said.starts_with("so far: null:, "), "{said}");
    assert!(said.contains("ledger\n"), "{said}");
    assert_eq!(running.stop().status, Some(0));
}

/// A terminal and its program's end. No other process inherits either, or the terminal would not hang
/// up.
fn terminal() -> (PtyMaster, File) {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let mut slave = File::options();
    slave.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
    let slave = slave.open(ptsname_r(&master).unwrap()).unwrap();
    (master, slave)
}

#[test]
fn a_terminal_that_hangs_up_is_no_failure_and_files_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..100, 0, 1000);
    for (what, more, signal) in [
        ("status and ledger", &["--count", "100"][..], None),
        ("a dropped session", &[], Some(Signal::SIGHUP)),
        ("lines besides the file", &["--print"], Some(Signal::SIGHUP)),
    ] {
        let (master, slave) = terminal();
        let file = folder.path().join("kept.pcapng.zst").display().to_string();
        let arguments = ["capture", "pcap:-", "-w", &file, "--interval", "10ms"];
        let mut command = sluice(&[&arguments, more].concat());
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::from(OwnedFd::from(reader)));
        let clone = || Stdio::from(slave.try_clone().unwrap());
        command.stdout(clone()).stderr(clone());
        let running = Running::unawaited(&mut command);
        let mut writer = File::from(OwnedFd::from(writer));
        writer.write_all(&std::fs::read(&source).unwrap()[..24]).unwrap();
        running.catches_signals();
        drop(master);
        // A forked child of another test holds the terminal until it executes its command.
        let hung_up = || tcgetattr(&slave).err() == Some(Errno::EIO);
        eventually("the terminal has hung up", hung_up);
        writer.write_all(&std::fs::read(&source).unwrap()[24..]).unwrap();
        if let Some(signal) = signal {
            running.signal(signal);
        }
        let ended = running.end();
        assert_eq!(ended.status, Some(0), "{what}: {ended:?}");
        let read = run(&["count", &format!("pcap:{file}"), "--json"]);
        assert_eq!(read.status, Some(0), "{what}: the file is whole: {}", read.err);
        assert!(signal.is_some() || read.report()["packets"] == 100, "{what}: {}", read.out);
    }
}

#[test]
fn a_command_whose_terminal_hung_up_still_sleeps() {
    let (master, slave) = terminal();
    let mut command = sluice(&["generate", "null:", "--rate", "10pps"]);
    let clone = || Stdio::from(slave.try_clone().unwrap());
    let running = Running::unawaited(command.stdout(clone()).stderr(clone()));
    running.catches_signals();
    drop(master);
    eventually("the terminal has hung up", || tcgetattr(&slave).err() == Some(Errno::EIO));
    running.signal(Signal::SIGUSR1);
    eventually("the request is taken", || !running.has_pending());
    eventually("it sleeps", || running.has_sleeping("sluice"));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().status, Some(0));
}

#[test]
fn top_ends_with_its_terminal() {
    let (mut master, slave) = terminal();
    let mut top = sluice(&["top", "lo"]);
    top.env("TERM", "xterm");
    let clone = || Stdio::from(slave.try_clone().unwrap());
    top.stdin(clone()).stdout(clone()).stderr(clone());
    let running = Running::unawaited(&mut top);
    running.catches_signals();
    // Its first screen.
    assert!(master.read(&mut [0; 4096]).unwrap() > 0);
    drop(master);
    assert_eq!(running.end().status, Some(0));
}

#[test]
fn a_capture_into_a_pipe_that_nobody_reads_still_takes_signals() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.pcap");
    numbered(&source, 0..40_000, 0, 1000);
    let port = format!("pcap:{}", source.display());
    let arguments = ["capture", &port, "-w", "-", "--json", "--interval", "10ms"];
    let mut capture = Running::unawaited(&mut sluice(&arguments));
    capture.has_written(4);
    // Statistics are noted in the file at each interval.
    eventually("it waits for its reader", || capture.has_sleeping("queue-"));
    eventually("it ends without its reader", || {
        capture.signal(Signal::SIGINT);
        capture.has_ended()
    });
    assert_eq!(capture.end().status, Some(130));
}
