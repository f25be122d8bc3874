//! `sluice netmap check`: tries what netmap programs use, in a lab, and reports what works on this kernel.

use std::cell::OnceCell;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::pipe;
use serde_json::json;
use sluicegate::error::{Error, ErrorKind};
use sluicegate::link::{Lab, Shape, netns};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet};
use sluicegate_netmap::abi::bodies::{Register, modes, register_flags};
use sluicegate_netmap::engine::{Backend, Engine, EngineOptions, MappedPort, NetmapFile};
use sluicegate_netmap::shared::{RemoteFile, Server};

use super::{library, run};
use crate::notice::{ExitStatus, say, write_printable};
use crate::signals::Signals;
use crate::units::show_count;

/// Packets of each check, and those on their way at the same time: no queue of the lab overflows.
const PACKETS: u32 = 1000;
const BATCH: usize = 250;
/// Packets that the host answers.
const ROUND_TRIPS: u32 = 100;
/// The longest time without a packet.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest sleep of a receiver, after which the sender syncs again.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// The longest sleep of a program between two looks at the host's sockets.
const HOST_INTERVAL: Duration = Duration::from_millis(1);
/// An EtherType for experiments (IEEE 802): the packets of the check among others.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const FILTER: &str = "ether proto 0x88b5";

/// Options of `check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The result of a check: what it found, or why it could not.
type Outcome = Result<String, CheckError>;

enum CheckError {
    /// A privilege or a kernel feature is missing.
    Missing(String),
    Failed(String),
    /// A signal ended the command.
    Stopped,
}

impl From<Error> for CheckError {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for CheckError {
    fn from(error: &Error) -> Self {
        match error {
            Error::Privilege { capability, remedy, .. } => {
                Self::Missing(format!("needs {capability}: {remedy}"))
            }
            _ if error.kind() == ErrorKind::Privilege => Self::Missing(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// An error of the engine, which has logged the cause.
impl From<Errno> for CheckError {
    fn from(errno: Errno) -> Self {
        let lines = std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner));
        let text = if lines.is_empty() { errno.to_string() } else { lines.join("; ") };
        match errno {
            Errno::EPERM | Errno::EOPNOTSUPP => Self::Missing(text),
            _ => Self::Failed(text),
        }
    }
}

/// The lines of the engine in the present check.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep_line(line: &str) {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.into());
}

/// Tries one feature.
type Check = fn(&Checker) -> Outcome;

const CHECKS: [(&str, Check); 10] = [
    ("preload library", preload),
    ("VALE switch", vale),
    ("pipe", pipes),
    ("monitor", monitor),
    ("server", server),
    ("AF_XDP", af_xdp),
    ("live frames", live_frames),
    ("packet sockets", packet_sockets),
    ("host rings", host_rings),
    ("filter", filter),
];

/// Runs all checks and prints their results.
pub fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let checker =
        Checker { lab: OnceCell::default(), signals: Signals::catch()?, frames: frames() };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (kernel, version) = (kernel.trim(), env!("CARGO_PKG_VERSION"));
    // The status is that of the checks, also if nobody reads them.
    let print = |text: &str| {
        if !args.json {
            let _ = write_printable(&mut io::stdout(), |out| writeln!(out, "{text}"));
        }
    };
    print(&format!("netmap programs on Linux {kernel} with sluice {version}"));
    let (mut checks, mut status, mut complete) = (Vec::new(), 0, true);
    for (name, check) in CHECKS {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let outcome =
            if checker.signals.take() { Err(CheckError::Stopped) } else { check(&checker) };
        let (verdict, detail) = match outcome {
            Ok(detail) => ("ok", detail),
            Err(CheckError::Missing(detail)) => ("missing", detail),
            Err(CheckError::Failed(detail)) => {
                let lines =
                    std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner));
                ("fail", [vec![detail], lines].concat().join("; "))
            }
            Err(CheckError::Stopped) => {
                complete = false;
                break;
            }
        };
        status = match (verdict, status) {
            ("fail", _) => 1,
            ("missing", 0) => 3,
            _ => status,
        };
        print(&format!("{name:<15}  {verdict:<7}  {detail}"));
        checks.push(json!({"name": name, "verdict": verdict, "detail": detail}));
    }
    if args.json {
        let object = json!({
            "command": "netmap check",
            "version": version,
            "kernel": kernel,
            "complete": complete,
            "checks": checks,
        });
        let _ = writeln!(io::stdout(), "{object}");
    }
    if !complete {
        say("stopped before all checks were done");
        status = 1;
    }
    if status == 0 { Ok(()) } else { Err(ExitStatus(status).into()) }
}

/// Makes broadcast frames of many sizes, each with its number.
fn frames() -> Vec<Vec<u8>> {
    let frame = |number: u32| {
        let mut frame = vec![number as u8; 60 + number as usize % 1400];
        frame[..12].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 198, 18, 0, 1]);
        frame[12..14].copy_from_slice(&ETHER_TYPE);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        frame
    };
    (0..PACKETS).map(frame).collect()
}

/// The lab and the packets of all checks.
struct Checker {
    /// Made for the first check that needs it. Dropping it removes it, while signals are still held.
    lab: OnceCell<sluicegate::Result<Lab>>,
    signals: Signals,
    frames: Vec<Vec<u8>>,
}

/// A side that packets go to, or come from.
trait Side {
    /// Sends packets, and syncs.
    fn send(&mut self, packets: &[Vec<u8>]) -> Result<(), CheckError>;
    /// Returns the packets that have arrived. Without one it sleeps for a while.
    fn receive(&mut self) -> Result<Vec<Vec<u8>>, CheckError>;
}

/// A netmap program.
struct Program<'a, F> {
    checker: &'a Checker,
    port: MappedPort<F>,
}

impl<F: NetmapFile> Side for Program<'_, F> {
    fn send(&mut self, packets: &[Vec<u8>]) -> Result<(), CheckError> {
        let (ring, end) = (self.port.tx(0).ok_or(Errno::ENXIO)?, Instant::now() + TIMEOUT);
        for packet in packets {
            while !ring.put(packet) {
                self.port.poll(PollFlags::POLLOUT, self.checker.signals.as_fd(), MAX_SLEEP)?;
                self.checker.go_on(end, || "a transmit ring stays full".into())?;
            }
        }
        Ok(self.port.file().txsync()?)
    }

    fn receive(&mut self) -> Result<Vec<Vec<u8>>, CheckError> {
        self.port.poll(PollFlags::POLLIN, self.checker.signals.as_fd(), MAX_SLEEP)?;
        let ring = self.port.rx(0).ok_or(Errno::ENXIO)?;
        Ok(std::iter::from_fn(|| ring.take()).collect())
    }
}

/// The host at the other end of the lab's link.
struct OtherHost<'a> {
    checker: &'a Checker,
    queue: Queue,
}

impl Side for OtherHost<'_> {
    fn send(&mut self, packets: &[Vec<u8>]) -> Result<(), CheckError> {
        let end = Instant::now() + TIMEOUT;
        let mut packets = packets.iter().peekable();
        while packets.peek().is_some() || self.queue.needs_sync_tx() {
            let mut tx = self.queue.tx_mut();
            while packets.next_if(|it| tx.push(&Packet::new(&Meta::default(), it))).is_some() {}
            self.queue.sync_tx()?;
            self.checker.go_on(end, || "left0 does not send".into())?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<Vec<u8>>, CheckError> {
        let batch = self.queue.receive(MAX_SLEEP)?;
        Ok(batch.packets().map(|packet| packet.head().to_vec()).collect())
    }
}

impl Checker {
    /// Returns the lab.
    fn lab(&self) -> Result<&Lab, CheckError> {
        let lab = self.lab.get_or_init(|| Lab::scratch_with(Shape::Pair, 1));
        lab.as_ref().map_err(CheckError::from)
    }

    /// Makes an engine whose interfaces are those of the lab's right host, by default with the backend of `run`.
    fn engine(
        &self,
        backend: Option<Backend>,
        filter: Option<&str>,
    ) -> Result<Arc<Engine>, CheckError> {
        Ok(Engine::new(EngineOptions {
            backend,
            filter: filter.map(str::to_owned),
            netns: Some(self.lab()?.netns("right")),
            log: Some(keep_line),
            ..EngineOptions::default()
        }))
    }

    /// Registers a port.
    fn open<F: NetmapFile>(
        &self,
        file: F,
        name: &str,
        mode: u32,
        flags: u64,
    ) -> Result<Program<'_, F>, CheckError> {
        let register = Register { mode, flags, ..Register::default() };
        let port = MappedPort::register(file, &name.into(), register)?;
        Ok(Program { checker: self, port })
    }

    fn other_host(&self) -> Result<OtherHost<'_>, CheckError> {
        let name = format!("packet:left0?filter={FILTER}&tx_copies=off&buffer=8M&method=recvmmsg");
        let (usage, netns) = (Directions::Both, Some(self.lab()?.netns("left")));
        let options = OpenOptions { usage, netns, ..OpenOptions::default() };
        let queue = Port::open(&name.parse()?, &options)?.queues.swap_remove(0);
        Ok(OtherHost { checker: self, queue })
    }

    /// Fails after `end`, with a reason, and after a signal.
    fn go_on(&self, end: Instant, reason: impl FnOnce() -> String) -> Result<(), CheckError> {
        match self.signals.take() {
            true => Err(CheckError::Stopped),
            false if Instant::now() < end => Ok(()),
            false => Err(CheckError::Failed(reason())),
        }
    }

    /// Sends all packets: each must arrive unchanged and in its order.
    fn pass(&self, from: &mut dyn Side, to: &mut dyn Side) -> Result<(), CheckError> {
        let mut arrived = 0;
        for portion in self.frames.chunks(BATCH) {
            from.send(portion)?;
            let (mut expected, mut end) = (portion.iter(), Instant::now() + TIMEOUT);
            while expected.len() > 0 {
                let received = to.receive()?;
                let ours = received.iter().filter(|it| it.get(12..14) == Some(&ETHER_TYPE[..]));
                for packet in ours {
                    if expected.next() != Some(packet) {
                        let text = "is changed, lost or out of order";
                        return Err(CheckError::Failed(format!("packet {arrived} {text}")));
                    }
                    arrived += 1;
                    end = Instant::now() + TIMEOUT;
                }
                from.send(&[])?;
                self.go_on(end, || format!("only {arrived} of {PACKETS} packets arrived"))?;
            }
        }
        Ok(())
    }

    /// Sends datagrams from the left host's socket to the right host's, which answers. `work` is the program, with a
    /// short sleep.
    fn round_trips(&self, work: impl Fn() -> Result<(), CheckError>) -> Result<(), CheckError> {
        let lab = self.lab()?;
        let socket = |host, address| {
            netns::run_in(Some(&lab.netns(host)), || {
                let socket = UdpSocket::bind((address, 0));
                let socket = socket.and_then(|it| it.set_nonblocking(true).map(|()| it));
                socket.map_err(|error| Error::system("open", "a UDP socket", error))
            })
        };
        let (left, right) = (socket("left", "198.18.0.1")?, socket("right", "198.18.0.2")?);
        let failed = |error| Error::system("send", "a datagram", error);
        let address = right.local_addr().map_err(failed)?;
        for number in 0..ROUND_TRIPS {
            let (datagram, mut buffer) = (number.to_be_bytes(), [0; 4]);
            left.send_to(&datagram, address).map_err(failed)?;
            let end = Instant::now() + TIMEOUT;
            loop {
                work()?;
                if let Ok((4, from)) = right.recv_from(&mut buffer) {
                    right.send_to(&buffer, from).map_err(failed)?;
                }
                if matches!(left.recv(&mut buffer), Ok(4)) && buffer == datagram {
                    break;
                }
                let text = "datagrams of the host were answered";
                self.go_on(end, || format!("only {number} of {ROUND_TRIPS} {text}"))?;
            }
        }
        Ok(())
    }
}

/// Starts a program that opens `/dev/netmap`, as a user does.
fn preload(_: &Checker) -> Outcome {
    let library = library::find()?;
    let sluice = std::env::current_exe().map_err(|error| Error::start("sluice", error))?;
    let mut command = Command::new(sluice);
    command.args(["netmap", "run", "--server", "off", "--log", "error", "--", "/bin/sh", "-c"]);
    let output = command.arg(": < /dev/netmap").stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::start("/bin/sh", error))?;
    // The dynamic linker prints why it did not load the library, and starts the program without it.
    if output.status.success() && output.stderr.is_empty() {
        return Ok(library.display().to_string());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim().trim_start_matches("sluice: ").replace('\n', "; ");
    match output.status.code() {
        Some(3) => Err(CheckError::Missing(text)),
        _ => Err(CheckError::Failed(text)),
    }
}

fn vale(checker: &Checker) -> Outcome {
    between(checker, ["vale0:a", "vale0:b"])
}

fn pipes(checker: &Checker) -> Outcome {
    between(checker, ["check{1", "check}1"])
}

/// Sends from port to port of an engine.
fn between(checker: &Checker, names: [&str; 2]) -> Outcome {
    let engine = private_engine();
    let open = |name| checker.open(engine.open(), name, modes::ALL_NIC, 0);
    let (mut from, mut to) = (open(names[0])?, open(names[1])?);
    checker.pass(&mut from, &mut to)?;
    Ok(format!("{} packets", show_count(PACKETS.into())))
}

/// Makes an engine without interfaces.
fn private_engine() -> Arc<Engine> {
    Engine::new(EngineOptions { log: Some(keep_line), ..EngineOptions::default() })
}

fn monitor(checker: &Checker) -> Outcome {
    let engine = private_engine();
    let open = |flags| checker.open(engine.open(), "vale0:a", modes::ALL_NIC, flags);
    let (mut sender, mut monitor) = (open(0)?, open(register_flags::MONITOR_TX)?);
    checker.pass(&mut sender, &mut monitor)?;
    Ok(format!("{} packets seen", show_count(PACKETS.into())))
}

fn server(checker: &Checker) -> Outcome {
    let folder = run::private_folder()?;
    let outcome = by_server(checker, &folder.join("socket"));
    let _ = std::fs::remove_dir(&folder);
    outcome
}

fn by_server(checker: &Checker, path: &Path) -> Outcome {
    let (end, keep) = pipe()?;
    let server = Server::bind(path, None, EngineOptions::default())?;
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(&[end.as_fd()], |error| keep_line(&error.to_string())));
        // Dropping it ends the server.
        let _keep = keep;
        let open = |name| {
            let file = RemoteFile::open(path, false, keep_line)?.ok_or(Errno::ENOENT)?;
            checker.open(file, name, modes::ALL_NIC, 0)
        };
        let (mut from, mut to) = (open("vale0:a")?, open("vale0:b")?);
        checker.pass(&mut from, &mut to)?;
        Ok(format!("{} packets by a VALE switch", show_count(PACKETS.into())))
    })
}

fn af_xdp(checker: &Checker) -> Outcome {
    let (usage, netns) = (Directions::Both, Some(checker.lab()?.netns("right")));
    let options = OpenOptions { usage, netns, ..OpenOptions::default() };
    let mode = match Port::open(&"xdp:right0/0?timestamp=off".parse()?, &options)?.mode {
        Some("native-zero-copy") => "native mode, zero-copy",
        Some("native-copy") => "native mode, copies",
        _ => "skb mode, copies",
    };
    Ok(format!("{mode}: {}", both_ways(checker, Backend::Xdp)?))
}

fn packet_sockets(checker: &Checker) -> Outcome {
    both_ways(checker, Backend::Packet)
}

/// Receives from the other host, and sends to it.
fn both_ways(checker: &Checker, backend: Backend) -> Outcome {
    let engine = checker.engine(Some(backend), None)?;
    let mut program = checker.open(engine.open(), "right0", modes::ALL_NIC, 0)?;
    let mut other = checker.other_host()?;
    checker.pass(&mut other, &mut program)?;
    checker.pass(&mut program, &mut other)?;
    let packets = show_count(PACKETS.into());
    Ok(format!("{packets} sent, {packets} received"))
}

fn live_frames(checker: &Checker) -> Outcome {
    let engine = checker.engine(Some(Backend::Live), None)?;
    let flags = register_flags::TX_RINGS_ONLY;
    let mut program = checker.open(engine.open(), "right0", modes::ALL_NIC, flags)?;
    checker.pass(&mut program, &mut checker.other_host()?)?;
    Ok(format!("{} sent", show_count(PACKETS.into())))
}

/// Passes everything between the interface and its host.
fn host_rings(checker: &Checker) -> Outcome {
    let engine = checker.engine(None, None)?;
    let program = checker.open(engine.open(), "right0", modes::NIC_SW, 0)?;
    let port = &program.port;
    // The lab's interface has one queue, so ring 1 is the host's.
    let rings = [(port.rx(0), port.tx(1)), (port.rx(1), port.tx(0))];
    checker.round_trips(|| {
        port.poll(PollFlags::POLLIN, checker.signals.as_fd(), HOST_INTERVAL)?;
        for (from, to) in rings {
            let (from, to) = from.zip(to).ok_or(Errno::ENXIO)?;
            // As on a card, a full ring loses packets.
            while let Some(packet) = from.take() {
                to.put(&packet);
            }
        }
        Ok(port.file().txsync()?)
    })?;
    Ok(format!("{ROUND_TRIPS} datagrams of the host answered through the program"))
}

/// Takes only matching packets.
fn filter(checker: &Checker) -> Outcome {
    let engine = checker.engine(None, Some(FILTER))?;
    let mut program = checker.open(engine.open(), "right0", modes::ALL_NIC, 0)?;
    checker.pass(&mut checker.other_host()?, &mut program)?;
    checker.round_trips(|| {
        program.port.poll(PollFlags::POLLIN, checker.signals.as_fd(), HOST_INTERVAL)?;
        match program.port.rx(0).and_then(|ring| ring.take()) {
            Some(_) => Err(CheckError::Failed("the program got a packet of the host".into())),
            None => Ok(()),
        }
    })?;
    let packets = show_count(PACKETS.into());
    Ok(format!("{packets} received, {ROUND_TRIPS} datagrams of the host answered"))
}
