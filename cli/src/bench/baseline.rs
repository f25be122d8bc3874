//! Hidden commands, as references for steps: a UDP listener, a relay of two ports by one thread and poll(2),
//! and the two ends of a pipe or a Unix socket, with a system call for each packet.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write, stdout};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;
use serde_json::json;
use sluicegate::error::Error;
use sluicegate::forward::forward;
use sluicegate::link::{self, pin_thread};
use sluicegate::port::{Directions, OpenOptions as PortOptions, Port, PortName, Queue, wait_any};
use sluicegate::ring::Wait;
use sluicegate_bench::BpfPeer;
use sluicegate_bench::cost::RELAYING;
use sluicegate_bench::scrub_policy::PolicySize;

use crate::signals::Signals;

/// How often the listener and the relay check for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct ListenerArgs {
    /// The UDP port
    #[arg(long, value_name = "PORT")]
    port: u16,

    /// A TCP port instead, whose connections are not accepted
    #[arg(long)]
    tcp: bool,
}

/// Reads until a signal arrives; then prints the number of datagrams.
pub fn listener(args: &ListenerArgs) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    if args.tcp {
        let failed = |error| Error::system("listen on", format!("TCP port {}", args.port), error);
        let _listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, args.port)).map_err(failed)?;
        writeln!(stdout(), "listening")?;
        while !signals.wait(Instant::now() + POLL_INTERVAL)? {}
        return Ok(());
    }
    let failed = |error| Error::system("listen on", format!("UDP port {}", args.port), error);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, args.port)).map_err(failed)?;
    socket.set_read_timeout(Some(POLL_INTERVAL)).map_err(failed)?;
    writeln!(stdout(), "listening")?;
    let mut received = 0_u64;
    let mut bytes = [0; 2048];
    let mut checks = true;
    while !(checks && signals.take()) {
        checks = match socket.recv(&mut bytes) {
            Ok(_) => {
                received += 1;
                // Rarely, because the check is not part of the measured work.
                received.is_multiple_of(1024)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                true
            }
            Err(error) => return Err(failed(error).into()),
        };
    }
    writeln!(stdout(), "{}", json!({ "received": received }))?;
    Ok(())
}

#[derive(clap::Args)]
pub struct RelayArgs {
    /// The two ports, of one queue each
    #[arg(value_name = "PORT", num_args = 2)]
    ports: Vec<PortName>,

    /// The CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Forwards packets between the two ports, both ways, until a signal arrives.
pub fn relay(args: &RelayArgs) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    args.cpu.map_or(Ok(()), pin_thread)?;
    let wanted: Vec<_> = args.ports.iter().map(|name| (name.clone(), Directions::Both)).collect();
    let mut ports = Port::open_all(&wanted, &PortOptions { queues: 1, ..PortOptions::default() })?;
    let mut queues: Vec<&mut Queue> = ports.iter_mut().flat_map(|port| &mut port.queues).collect();
    let [left, right] = &mut queues[..] else {
        return Err(Error::Usage("a relay needs two ports with one queue each".into()).into());
    };
    writeln!(stdout(), "{RELAYING}")?;
    while !signals.take() {
        if pass(left, right)? + pass(right, left)? == 0 {
            wait_any(&mut [left, right], Wait::Sleep, POLL_INTERVAL)?;
        }
    }
    Ok(())
}

/// Forwards the received packets, and returns their number.
fn pass(from: &mut Queue, to: &mut Queue) -> sluicegate::Result<u32> {
    from.sync_rx()?;
    let moved = forward(from.rx_mut(), to.tx_mut());
    to.sync_tx()?;
    Ok(moved.packets())
}

/// Time between two reports of a receiver's rate.
const INTERVAL: Duration = Duration::from_millis(200);
/// Packets between two reads of the clock.
const BATCH: u64 = 1024;

#[derive(clap::Args)]
pub struct EndArgs {
    /// Direction: send or receive
    #[arg(value_name = "send|receive", value_parser = ["send", "receive"])]
    what: String,

    /// The pipe or socket: pipe:FILE or unix:FILE
    #[arg(value_name = "KIND:FILE")]
    way: String,

    /// Bytes of a packet
    #[arg(long)]
    size: usize,
}

/// Opens a pipe, or a Unix socket of datagrams: both are read and written as files. A pipe waits here for the
/// other end; a socket's receiver has to exist before.
fn open(way: &str, sends: bool) -> Result<File, Error> {
    let failed = |error| Error::system("open", way, error);
    match (way.split_once(':'), sends) {
        (Some(("pipe", file)), _) => {
            OpenOptions::new().read(!sends).write(sends).open(file).map_err(failed)
        }
        (Some(("unix", file)), false) => {
            UnixDatagram::bind(Path::new(file)).map(|it| OwnedFd::from(it).into()).map_err(failed)
        }
        (Some(("unix", file)), true) => {
            let socket = UnixDatagram::unbound().map_err(failed)?;
            socket.connect(Path::new(file)).map_err(failed)?;
            Ok(OwnedFd::from(socket).into())
        }
        _ => Err(Error::Usage(format!("{way}: use pipe:FILE or unix:FILE"))),
    }
}

/// Sends or receives until a signal arrives or the other end closes. A pipe splits a packet longer than a
/// page (pipe(7)).
pub fn end(args: &EndArgs) -> anyhow::Result<()> {
    let sends = args.what == "send";
    let mut end = open(&args.way, sends)?;
    let mut packet = vec![0; args.size];
    let begun = Instant::now();
    let (mut last, mut packets) = (begun, 0);
    loop {
        for _ in 0..BATCH {
            let passed = if sends { end.write_all(&packet) } else { end.read_exact(&mut packet) };
            match passed.map_err(|error| (error.kind(), error)) {
                Ok(()) => {}
                Err((ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof, _)) => return Ok(()),
                Err((_, error)) => return Err(Error::system("use", args.way.clone(), error).into()),
            }
        }
        packets += BATCH;
        let interval = last.elapsed();
        if !sends && interval >= INTERVAL {
            let pps = packets as f64 / interval.as_secs_f64();
            let line = json!({ "time_s": begun.elapsed().as_secs_f64(), "pps": pps });
            writeln!(stdout(), "{line}")?;
            (last, packets) = (Instant::now(), 0);
        }
    }
}

#[derive(clap::Args)]
pub struct PolicyArgs {
    /// The folder of its files
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Networks in a set
    #[arg(long, value_name = "N", default_value_t = 0)]
    networks: u32,

    /// Rules
    #[arg(long, value_name = "N", default_value_t = 0)]
    rules: u32,

    /// Limit each source
    #[arg(long)]
    limit: bool,

    /// Challenge TCP connections
    #[arg(long)]
    challenge: bool,
}

/// Writes a policy that drops all packets.
pub fn policy(args: &PolicyArgs) -> anyhow::Result<()> {
    let &PolicyArgs { networks, rules, limit, challenge, .. } = args;
    Ok(PolicySize { networks, rules, limit, challenge }.write(&args.folder)?)
}

#[derive(clap::Args)]
pub struct BpfDropArgs {
    /// The interface
    #[arg(value_name = "IFACE")]
    interface: String,

    /// lpm: look up the source in a list; lru: limit each source; source: drop only one network; destination: drop
    /// packets to one network; the program stays attached
    #[arg(value_name = "lpm|lru|source|destination", value_parser = ["lpm", "lru", "source", "destination"])]
    what: String,

    /// The list of lpm, a network a line
    #[arg(long, value_name = "FILE", required_if_eq("what", "lpm"))]
    networks: Option<PathBuf>,

    /// The network of source and of destination
    #[arg(long, value_name = "NETWORK", required_if_eq_any([("what", "source"), ("what", "destination")]))]
    network: Option<Ipv4Net>,
}

/// Drops packets until a signal arrives; then prints their number.
pub fn bpf_drop(args: &BpfDropArgs) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    let interface = link::interface(None, &args.interface)?;
    let program = match (&args.networks, args.network) {
        (_, Some(network)) if args.what == "destination" => {
            return Ok(BpfPeer::attach_destination(&interface, network)?);
        }
        (_, Some(network)) => BpfPeer::source(&interface, network)?,
        (Some(file), None) => BpfPeer::lpm(&interface, file)?,
        (None, None) => BpfPeer::lru(&interface)?,
    };
    writeln!(stdout(), "attached")?;
    while !signals.wait(Instant::now() + POLL_INTERVAL)? {}
    writeln!(stdout(), "{}", json!({ "dropped": program.dropped()? }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_packet_longer_than_a_page_passes_a_pipe_and_a_socket_whole() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let socket = folder.path().join("socket");
        for way in [format!("unix:{}", socket.display()), format!("pipe:{}", pipe.display())] {
            let receives = way.clone();
            let receiver = thread::spawn(move || {
                let mut end = open(&receives, false).unwrap();
                let mut packets = vec![0; 2 * 9000];
                let (first, second) = packets.split_at_mut(9000);
                end.read_exact(first).unwrap();
                end.read_exact(second).unwrap();
                packets
            });
            while way.starts_with("unix") && !socket.exists() {
                thread::yield_now();
            }
            let mut end = open(&way, true).unwrap();
            end.write_all(&[1; 9000]).unwrap();
            end.write_all(&[2; 9000]).unwrap();
            let packets = receiver.join().unwrap();
            assert!(packets[..9000].iter().all(|&byte| byte == 1), "{way}");
            assert!(packets[9000..].iter().all(|&byte| byte == 2), "{way}");
        }
    }
}
