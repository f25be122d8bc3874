//! The lab of the checks: netmap programs on one host, and the other host at the end of the link.

use std::cell::OnceCell;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate::error::Error;
use sluicegate::link::{Lab, Shape, netns};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet};
use sluicegate_netmap::abi::bodies::Register;
use sluicegate_netmap::engine::{Backend, Engine, EngineOptions, MappedPort, NetmapFile};

use super::{CheckError, keep_line};
use crate::signals::Signals;

/// Packets of each check, and those on their way at the same time: no queue of the lab overflows.
pub(super) const PACKETS: u32 = 1000;
const BATCH: usize = 250;
/// Packets that the host answers.
pub(super) const ROUND_TRIPS: u32 = 100;
/// The longest time without a packet.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest sleep of a receiver, after which the sender syncs again.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// An EtherType for experiments (IEEE 802): the packets of the check among others.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
pub(super) const FILTER: &str = "ether proto 0x88b5";

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
pub(super) struct Checker {
    /// Made for the first check that needs it. Dropping it removes it, while signals are still held.
    lab: OnceCell<sluicegate::Result<Lab>>,
    pub(super) signals: Signals,
    frames: Vec<Vec<u8>>,
}

/// A side that packets go to, or come from.
pub(super) trait Side {
    /// Sends packets, and syncs.
    fn send(&mut self, packets: &[Vec<u8>]) -> Result<(), CheckError>;
    /// Returns the packets that have arrived. Without one it sleeps for a while.
    fn receive(&mut self) -> Result<Vec<Vec<u8>>, CheckError>;
}

/// A netmap program.
pub(super) struct Program<'a, F> {
    checker: &'a Checker,
    pub(super) port: MappedPort<F>,
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
pub(super) struct OtherHost<'a> {
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
    pub(super) fn new(signals: Signals) -> Self {
        Self { lab: OnceCell::default(), signals, frames: frames() }
    }

    /// Returns the lab.
    pub(super) fn lab(&self) -> Result<&Lab, CheckError> {
        let lab = self.lab.get_or_init(|| Lab::scratch_with(Shape::Pair, 1));
        lab.as_ref().map_err(CheckError::from)
    }

    /// Makes an engine whose interfaces are those of the lab's right host, by default with the backend of `run`.
    pub(super) fn engine(
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
    pub(super) fn open<F: NetmapFile>(
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

    pub(super) fn other_host(&self) -> Result<OtherHost<'_>, CheckError> {
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
    pub(super) fn pass(&self, from: &mut dyn Side, to: &mut dyn Side) -> Result<(), CheckError> {
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
    pub(super) fn round_trips(
        &self,
        work: impl Fn() -> Result<(), CheckError>,
    ) -> Result<(), CheckError> {
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
