//! Shared by the tests: the command, its report, a lab, traffic, and files to send and read.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluicegate::link::{self, Ethtool, Lab, Shape};

use crate::child;
pub use crate::scratch::lab_of;

/// The longest anything here waits for something to happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Packets on their way arrive within this time, on a busy machine too.
const QUIET: Duration = Duration::from_secs(3);

pub fn sluice(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How a command ended, as text.
#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub signal: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            signal: output.status.signal(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// The report: the last line on standard output, or else on stderr.
    pub fn report(&self) -> Value {
        let lines = self.err.lines().chain(self.out.lines()).filter(|l| l.starts_with("{\"c"));
        let line = lines.reduce(|_, last| last).unwrap_or_else(|| panic!("no report in {self:?}"));
        serde_json::from_str(line).unwrap()
    }

    /// Returns the report. The run must have succeeded, and its ledger must close.
    pub fn good(&self) -> Value {
        assert_eq!(self.status, Some(0), "{}", self.err);
        let report = self.report();
        closes(&report);
        report
    }
}

pub fn run(arguments: &[&str]) -> Ended {
    ended(&mut sluice(arguments))
}

/// Runs an invalid command: it exits at once, and the error has the remedy.
pub fn refused(arguments: &[&str], said: &str) {
    let ended = run(arguments);
    assert_eq!(ended.status, Some(2), "{arguments:?}: {}", ended.err);
    assert!(ended.err.contains(said), "{arguments:?}: {}", ended.err);
}

/// A capture of what comes to a port and matches, into a file.
pub fn capture(netns: &str, port: &str, filter: &str, file: &Path) -> Running {
    let file = file.to_str().unwrap();
    Running::start(&["capture", port, "--netns", netns, "-f", filter, "-w", file, "--json"])
}

/// A capture of all matching packets that come to `right0`.
pub fn capture_all(netns: &str, filter: &str, file: &Path) -> Running {
    capture(netns, "right0?blocks=64", filter, file)
}

/// Runs a command to its end.
pub fn ended(command: &mut Command) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::unawaited(command).end()
}

/// A capture that runs; killed if the test forgets it.
pub struct Running(Option<Child>);

impl Running {
    /// Starts and waits until it has its sockets open.
    pub fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut sluice(arguments))
    }

    pub fn spawn(command: &mut Command) -> Self {
        let running = Self::unawaited(command);
        running.has_begun();
        running
    }

    /// Starts, and waits for nothing.
    pub fn unawaited(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// Waits until it has its sockets open.
    pub fn has_begun(&self) {
        // A worker's thread begins when everything is open.
        eventually("the capture begins", || self.has_workers() || self.has_ended());
    }

    pub fn has_workers(&self) -> bool {
        self.has_threads("queue-")
    }

    /// Returns true if a thread's name begins so. The first thread does not count: it has the test's name
    /// until it becomes the command.
    pub fn has_threads(&self, named: &str) -> bool {
        let first = self.pid().to_string();
        let tasks = std::fs::read_dir(format!("/proc/{first}/task"));
        tasks
            .into_iter()
            .flatten()
            .flatten()
            .filter(|task| task.file_name() != first.as_str())
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .any(|name| name.starts_with(named))
    }

    /// Returns true if a thread with a name that begins so sleeps in the kernel.
    pub fn has_sleeping(&self, named: &str) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        tasks.into_iter().flatten().flatten().any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.contains(&format!("({named}")) && stat.contains(") S ")
        })
    }

    pub fn has_ended(&self) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        state.is_ok_and(|state| state.contains(") Z "))
    }

    /// Returns true if a signal is pending.
    pub fn has_pending(&self) -> bool {
        self.signal_set("ShdPnd:") != 0
    }

    /// Waits until it catches the signals that end it. While it starts a thread it blocks all.
    pub fn catches_signals(&self) {
        let bit = |signal: Signal| 1_u64 << (signal as u32 - 1);
        let (ends, other) = (bit(Signal::SIGTERM), bit(Signal::SIGCHLD));
        let catches = || self.signal_set("SigBlk:") & (ends | other) == ends;
        eventually("it catches signals", || catches() || self.has_ended());
    }

    /// A set of signals in the first thread's status.
    fn signal_set(&self, named: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let set = status.lines().find_map(|line| line.strip_prefix(named));
        set.map_or(0, |set| u64::from_str_radix(set.trim(), 16).unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Waits for a number of bytes on its standard output, and reads them.
    pub fn has_written(&mut self, bytes: usize) {
        let mut out = self.child().stdout.take().unwrap();
        let wait = move || (out.read_exact(&mut vec![0; bytes]), out);
        let (read, out) = child::limited(self.pid(), wait);
        read.unwrap();
        self.child().stdout = Some(out);
    }

    /// Waits for a line on its standard error, and returns it.
    pub fn says(&mut self) -> String {
        let mut err = self.child().stderr.take().unwrap();
        let wait = move || {
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                let mut byte = [0];
                err.read_exact(&mut byte).expect("it says something before it ends");
                line.extend(byte);
            }
            (String::from_utf8(line).unwrap(), err)
        };
        let (line, err) = child::limited(self.pid(), wait);
        self.child().stderr = Some(err);
        line
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Waits until it exits by itself.
    pub fn end(mut self) -> Ended {
        child::end(self.0.take().unwrap()).into()
    }

    pub fn stop(self) -> Ended {
        self.signal(Signal::SIGINT);
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The program that a test pins on right0 of a namespace. Dropping this removes it, however the test
/// ends.
pub struct Attached<'a>(&'a str);

impl<'a> Attached<'a> {
    /// Attaches it, unless programs cannot be pinned here.
    pub fn to(netns: &'a str, more: &[&str]) -> Option<Self> {
        let attached = run(&[&["attach", "right0", "--netns", netns], more].concat());
        if attached.status == Some(0) {
            return Some(Self(netns));
        }
        eprintln!(
            "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {}",
            attached.err
        );
        None
    }

    pub fn detach(&self) -> Ended {
        run(&["detach", "right0", "--netns", self.0])
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.detach();
    }
}

pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < WAIT_TIMEOUT, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a count is `all`, or stops growing. A busy machine loses some packets; the program that
/// lost them reports that at its end.
pub fn settles(all: u64, count: impl Fn() -> u64) {
    let (mut last, mut since) = (count(), Instant::now());
    while last < all && since.elapsed() < QUIET {
        std::thread::sleep(Duration::from_millis(10));
        let now = count();
        if now > last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// A loss or note of a report's ledger; 0 if the ledger does not list it, as long as the documents do.
pub fn entry(report: &Value, role: &str, name: &str) -> u64 {
    let documents = [
        include_str!("../../../docs/design/accounting.md"),
        include_str!("../../../docs/commands/switch.md"),
    ];
    let named = format!("`{name}`");
    assert!(documents.iter().any(|page| page.contains(&named)), "no entry is called {name}");
    let entries = report["ledger"][role].as_object().unwrap_or_else(|| panic!("{role}: {report}"));
    entries.get(name).map_or(0, |packets| packets.as_u64().unwrap())
}

/// A loss of a report's ledger.
pub fn loss(report: &Value, name: &str) -> u64 {
    entry(report, "losses", name)
}

/// Packets that were sent or lost: the ledger has them only if there are some.
pub fn uncertain(report: &Value) -> u64 {
    match &report["ledger"]["uncertain"] {
        Value::Null => 0,
        packets => packets["max"].as_u64().unwrap(),
    }
}

/// in = out + losses + omitted + uncertain + unexplained, and nothing is unexplained; here and in each port's
/// part.
pub fn closes(report: &Value) {
    let ledger = &report["ledger"];
    let sum = |role: &str| -> u64 {
        let entries = ledger[role].as_object();
        entries.into_iter().flat_map(|it| it.values()).map(|n| n.as_u64().unwrap()).sum()
    };
    assert!(ledger["losses"].is_object(), "{report}");
    let [whole, out] = ["in", "out"].map(|key| ledger[key].as_u64().unwrap());
    assert_eq!(ledger["unexplained"].as_i64(), Some(0), "{report}");
    assert_eq!(whole, out + sum("losses") + sum("omitted") + uncertain(report), "{report}");
    report["ports"].as_array().into_iter().flatten().for_each(closes);
}

/// Returns true if this is root, which may become another user; prints that it is not.
pub fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root, to become somebody else; get it by sudo");
    }
    is_root
}

/// A scratch lab, unless there is no privilege to make one.
pub fn lab() -> Option<Lab> {
    lab_of(Shape::Pair, 1)
}

/// A scratch lab for a test that also needs tools.
pub fn lab_with(tools: &[&str]) -> Option<Lab> {
    have(tools).then(lab).flatten()
}

/// Returns true if the tools are installed; prints which one is not.
pub fn have(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| {
        let which = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        !which.is_ok_and(|output| output.status.success())
    });
    if let Some(tool) = missing {
        eprintln!("skipped: needs {tool}; get it by scripts/setup.sh");
    }
    missing.is_none()
}

/// Runs a command on a host of a lab, to its end.
pub fn on(lab: &Lab, host: &str, command: &[&str]) -> Ended {
    let mut child = background(lab, host, command);
    child.child().stdin.take();
    child.end()
}

/// Runs a command on a host of a lab, beside the test.
pub fn background(lab: &Lab, host: &str, command: &[&str]) -> Running {
    let mut running = background_fed(lab, host, command);
    running.child().stdin.take();
    running
}

/// Runs a command on a host of a lab, beside the test, with a pipe to its standard input.
pub fn background_fed(lab: &Lab, host: &str, command: &[&str]) -> Running {
    let mut to_run = Command::new(command[0]);
    to_run.args(&command[1..]).stdin(Stdio::piped());
    to_run.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(Some(lab.spawn(host, &mut to_run).unwrap()))
}

/// Frame `number`: of an EtherType for experiments (IEEE 802), its number in the payload.
pub fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 198, 18, 0, 2, 2, 0, 198, 18, 0, 1, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.resize(60 + (number as usize * 7) % 64, number as u8);
    frame
}

/// Nobody's Ethernet address: a host answers no packet to it.
pub const NOBODY: &str = "02:00:00:00:00:99";

/// A filter for numbered frames.
pub const NUMBERED: &str = "ether proto 0x88b5";

/// A pcap file of numbered frames, `gap_ns` apart from `start_ns` on.
pub fn numbered(path: &Path, numbers: std::ops::Range<u32>, start_ns: u64, gap_ns: u64) {
    let frames = numbers.enumerate();
    timed(path, frames.map(|(place, number)| (start_ns + place as u64 * gap_ns, frame(number))));
}

/// A pcap file of frames without times.
pub fn pcap_file(path: &Path, frames: &[Vec<u8>]) {
    timed(path, frames.iter().map(|frame| (0, frame.clone())));
}

/// A pcap file of frames with times.
pub fn timed(path: &Path, frames: impl Iterator<Item = (u64, Vec<u8>)>) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let head: [u32; 6] = [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65535, 1];
    head.iter().for_each(|word| file.write_all(&word.to_le_bytes()).unwrap());
    for (at_ns, frame) in frames {
        let bytes = frame.len() as u32;
        let head = [(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, bytes, bytes];
        head.iter().for_each(|word| file.write_all(&word.to_le_bytes()).unwrap());
        file.write_all(&frame).unwrap();
    }
    file.flush().unwrap();
}

/// Packets that an interface of a host has received.
pub fn received(lab: &Lab, host: &str, interface: &str) -> u64 {
    link::interface(Some(&lab.netns(host)), interface).unwrap().stats.rx_packets
}

/// Packets that an interface of a host has dropped for want of room: a veth's queue is short, and its
/// reader has to wait for the CPU.
pub fn dropped(lab: &Lab, host: &str, interface: &str) -> u64 {
    link::interface(Some(&lab.netns(host)), interface).unwrap().stats.tx_dropped
}

/// Switches GRO off on interfaces of a host: it merges packets into one that is too long to send. A veth
/// without GRO takes no redirected frames, either.
pub fn without_gro(lab: &Lab, host: &str, interfaces: &[&str]) {
    let mut ethtool = Ethtool::open(Some(&lab.netns(host))).unwrap();
    interfaces.iter().for_each(|interface| ethtool.set_gro(interface, false).unwrap());
}

/// Sends a capture file from an interface at `pps` packets a second. Returns when the other end has taken
/// all: only then has a veth counted them.
pub fn replay(lab: &Lab, host: &str, interface: &str, file: &Path, pps: u32) {
    let mut capture = pcap::Capture::from_file(file).unwrap();
    let packets = std::iter::from_fn(|| capture.next_packet().ok().map(|_| ())).count() as u64;
    let sent = || link::interface(Some(&lab.netns(host)), interface).unwrap().stats.tx_packets;
    let all = sent() + packets;
    let (file, pps) = (file.to_str().unwrap(), format!("--pps={pps}"));
    let ended = on(lab, host, &["tcpreplay", "-q", "-i", interface, &pps, "--preload-pcap", file]);
    assert_eq!(ended.status, Some(0), "tcpreplay: {}", ended.err);
    eventually("all has been taken", || sent() >= all);
}

/// Reads a file, unpacked where it has to be, through libpcap: time in ns and bytes.
pub fn packets(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let plain = unpacked(path);
    let mut capture =
        pcap::Capture::from_file_with_precision(&plain, pcap::Precision::Nano).unwrap();
    let mut packets = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let time = packet.header.ts;
        // A hostile file may hold any time.
        let time_ns = (time.tv_sec as u64).wrapping_mul(1_000_000_000);
        packets.push((time_ns.wrapping_add(time.tv_usec as u64), packet.to_vec()));
    }
    packets
}

/// Decompresses a file into one beside it.
pub fn unpacked(path: &Path) -> PathBuf {
    let tool = match path.extension().and_then(|e| e.to_str()) {
        Some("zst") => "zstd",
        Some("lz4") => "lz4",
        Some("gz") => "gzip",
        _ => return path.to_owned(),
    };
    let plain = PathBuf::from(format!("{}.plain", path.display()));
    let output = std::fs::File::create(&plain).unwrap();
    let status = Command::new(tool).args(["-dc"]).arg(path).stdout(output).status().unwrap();
    assert!(status.success(), "{tool} -dc {}", path.display());
    plain
}

/// Runs a tool on a file; what it prints.
pub fn tool(command: &[&str], path: &Path) -> Ended {
    Command::new(command[0]).args(&command[1..]).arg(path).output().unwrap().into()
}

/// The lines tshark prints for a file.
pub fn tshark(path: &Path, more: &[&str]) -> Vec<String> {
    let output = Command::new("tshark").arg("-r").arg(path).args(more).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The times of lines with `--time-format epoch --nano`, in ns.
pub fn times(lines: &str) -> Vec<u64> {
    let time = |line: &str| line.split(' ').next()?.replace('.', "").parse().ok();
    lines.lines().map(|line| time(line).unwrap_or_else(|| panic!("no time in {line}"))).collect()
}

/// The times of objects that `capture --json` prints, in ns.
pub fn object_times(lines: &str) -> Vec<u64> {
    let time = |line: &str| serde_json::from_str::<Value>(line).ok()?["time_ns"].as_u64();
    lines.lines().map(|line| time(line).unwrap_or_else(|| panic!("no time in {line}"))).collect()
}

/// The numbers of the numbered frames in a file, each checked byte by byte.
pub fn numbers(path: &Path) -> Vec<u32> {
    let numbers = packets(path).into_iter().map(|(_, bytes)| {
        let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
        assert_eq!(bytes, frame(number), "frame {number} of {}", path.display());
        number
    });
    numbers.collect()
}
