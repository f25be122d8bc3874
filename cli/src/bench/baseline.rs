//! Hidden commands that steps are compared with: a UDP listener, a relay of two ports by one thread and poll(2), and
//! the two ends of a pipe or a Unix socket with a system call a packet.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write, stdout};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate::error::Error;
use sluicegate::forward::forward;
use sluicegate::link::pin_thread;
use sluicegate::port::{OpenOptions as PortOptions, Port, PortName, Queue, Use, wait_any};
use sluicegate::ring::Wait;
use sluicegate_bench::cost::RELAYING;

use crate::signals::Signals;

/// How often the listener and the relay check for a signal.
const LOOK: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct ListenerArgs {
    /// The UDP port
    #[arg(long, value_name = "PORT")]
    port: u16,
}

/// Reads until a signal comes; then prints how many datagrams there were.
pub fn listener(args: &ListenerArgs) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    let failed = |error| Error::system("listen on", format!("UDP port {}", args.port), error);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, args.port)).map_err(failed)?;
    socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
    writeln!(stdout(), "listening")?;
    let mut received = 0_u64;
    let mut bytes = [0; 2048];
    loop {
        match socket.recv(&mut bytes) {
            Ok(_) => received += 1,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if signals.take() {
                    break;
                }
            }
            Err(error) => return Err(failed(error).into()),
        }
        // Now and then, for it is no part of the work.
        if received.is_multiple_of(1024) && signals.take() {
            break;
        }
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

/// Moves what comes in at one port to the other, both ways, until a signal comes.
pub fn relay(args: &RelayArgs) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    args.cpu.map_or(Ok(()), pin_thread)?;
    let wanted: Vec<_> = args.ports.iter().map(|name| (name.clone(), Use::Both)).collect();
    let mut ports = Port::open_all(&wanted, &PortOptions { queues: 1, ..PortOptions::default() })?;
    let mut queues: Vec<&mut Queue> = ports.iter_mut().flat_map(|port| &mut port.queues).collect();
    let [left, right] = &mut queues[..] else {
        return Err(Error::Usage("a relay has two ports of one queue each".into()).into());
    };
    writeln!(stdout(), "{RELAYING}")?;
    while !signals.take() {
        if pass(left, right)? + pass(right, left)? == 0 {
            wait_any(&mut [left, right], Wait::Sleep, LOOK)?;
        }
    }
    Ok(())
}

/// Moves what has come. Returns how many packets.
fn pass(from: &mut Queue, to: &mut Queue) -> sluicegate::Result<u32> {
    from.sync_rx()?;
    let moved = forward(from.rx_mut(), to.tx_mut());
    to.sync_tx()?;
    Ok(moved.packets())
}

/// How often a receiver tells its rate.
const INTERVAL: Duration = Duration::from_millis(200);
/// Packets between two looks at the clock.
const BATCH: u64 = 1024;

#[derive(clap::Args)]
pub struct EndArgs {
    /// Direction: send or receive
    #[arg(value_name = "send|receive", value_parser = ["send", "receive"])]
    what: String,

    /// Through what: pipe:FILE or unix:FILE
    #[arg(value_name = "KIND:FILE")]
    way: String,

    /// Bytes of a packet
    #[arg(long)]
    size: usize,
}

/// One end of a pipe, or of a Unix socket.
enum PipeEnd {
    Pipe(File),
    Socket(UnixDatagram),
}

impl PipeEnd {
    /// A pipe waits here for the other end; a socket's receiver has to be there first.
    fn open(way: &str, sends: bool) -> Result<Self, Error> {
        let failed = |error| Error::system("open", way, error);
        match (way.split_once(':'), sends) {
            (Some(("pipe", file)), _) => {
                let file = OpenOptions::new().read(!sends).write(sends).open(file);
                file.map(Self::Pipe).map_err(failed)
            }
            (Some(("unix", file)), false) => {
                UnixDatagram::bind(Path::new(file)).map(Self::Socket).map_err(failed)
            }
            (Some(("unix", file)), true) => {
                let socket = UnixDatagram::unbound().map_err(failed)?;
                socket.connect(Path::new(file)).map_err(failed)?;
                Ok(Self::Socket(socket))
            }
            _ => Err(Error::Usage(format!("{way}: it is pipe:FILE or unix:FILE"))),
        }
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<usize> {
        match self {
            // What is longer than a page is written, and comes, in pieces (pipe(7)).
            Self::Pipe(file) => file.write_all(packet).map(|()| packet.len()),
            Self::Socket(socket) => socket.send(packet),
        }
    }

    fn receive(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(file) => match file.read_exact(packet) {
                Ok(()) => Ok(packet.len()),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
                Err(error) => Err(error),
            },
            Self::Socket(socket) => socket.recv(packet),
        }
    }
}

/// Sends or receives until a signal comes or the other end closes.
pub fn end(args: &EndArgs) -> anyhow::Result<()> {
    let sends = args.what == "send";
    let mut end = PipeEnd::open(&args.way, sends)?;
    let mut packet = vec![0; args.size];
    let mut rate = Rate::new();
    loop {
        for _ in 0..BATCH {
            match if sends { end.send(&packet) } else { end.receive(&mut packet) } {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(Error::system("use", args.way.clone(), error).into()),
            }
        }
        if !sends {
            rate.add(BATCH)?;
        }
    }
}

/// One line of a receiver's periodic output.
struct Rate {
    begun: Instant,
    last: Instant,
    packets: u64,
}

impl Rate {
    fn new() -> Self {
        Self { begun: Instant::now(), last: Instant::now(), packets: 0 }
    }

    fn add(&mut self, packets: u64) -> io::Result<()> {
        self.packets += packets;
        let interval = self.last.elapsed();
        if interval < INTERVAL {
            return Ok(());
        }
        let pps = self.packets as f64 / interval.as_secs_f64();
        (self.last, self.packets) = (Instant::now(), 0);
        let line = json!({ "time_s": self.begun.elapsed().as_secs_f64(), "pps": pps });
        writeln!(stdout(), "{line}")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::thread;

    use super::*;

    #[test]
    fn a_packet_that_comes_through_a_pipe_in_pieces_is_one() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut end = PipeEnd::Pipe(File::from(OwnedFd::from(reader)));
        writer.write_all(&[7; 4000]).unwrap();
        let rest = thread::spawn(move || writer.write_all(&[7; 5000]).unwrap());
        let mut packet = [0; 9000];
        assert_eq!(end.receive(&mut packet).unwrap(), 9000);
        rest.join().unwrap();
        assert_eq!(end.receive(&mut packet).unwrap(), 0, "the other end is closed");
    }
}
