//! One queue of a `packet:` port: a socket, its method of receiving, and its counts.

use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::any::Devices;
use super::block::BlockRing;
use super::config::{Clock, PacketConfig, PacketMethod};
use super::frames::FrameRing;
use super::receive::BatchReceiver;
use super::send::SocketSender;
use super::tpacket::FillCounts;
use crate::error::{Error, Result};
use crate::link;
use crate::port::backend::{Backend, WakeSource};
use crate::port::options::{Directions, Fallback};
use crate::port::packet_socket::Socket;
use crate::port::rings::RingMaker;
use crate::port::stats::QueueStats;
use sluicegate_base::ring::{Interface, Readiness, Ring, Wait};

/// Maximum time that a packet takes after the filter.
const DRAIN_TIME: Duration = Duration::from_millis(5);
/// Maximum time in addition to its timeout until the kernel passes the last block to user space.
const LAST_BLOCK_DELAY: Duration = Duration::from_secs(1);

/// Number of packets after which the kernel's 32-bit counts are read, even if the program does not ask for
/// them.
const COUNT_AFTER: u32 = 1 << 30;

/// One queue of a `packet:` port.
#[derive(Debug)]
pub(crate) struct PacketQueue {
    socket: Socket,
    /// The method of receiving; None if it only sends.
    method: Option<PacketMethod>,
    receiver: Option<Receive>,
    /// For `packet:any`: the devices of received packets.
    devices: Option<Devices>,
    sender: Option<SocketSender>,
    stats: QueueStats,
    /// Packets put into the ring.
    delivered: u64,
    /// The number of these since the kernel's counts were last read.
    uncounted: u32,
    rx_closed: Option<Instant>,
    block_timeout: Duration,
    removed: bool,
}

#[derive(Debug)]
enum Receive {
    Blocks(BlockRing),
    Frames(FrameRing),
    Calls(Box<BatchReceiver>),
}

impl PacketQueue {
    /// Sets up a socket for receiving, sending or both, before it is bound, and makes its rings.
    pub(super) fn new(
        socket: Socket,
        config: &PacketConfig,
        interface: Option<&link::Interface>,
        rings: &RingMaker,
        fallbacks: &mut Vec<Fallback>,
    ) -> Result<(Self, Ring, Ring)> {
        let usage = rings.usage;
        let (method, receiver, rx) = match usage {
            Directions::Send => (None, None, rings.receive(false)?),
            Directions::Receive | Directions::Both => {
                // The port of all interfaces has no frames, whose size depends on the MTU.
                let mtu = interface.map_or(0, |interface| interface.mtu);
                let (method, receiver, ring) = receive(&socket, config, mtu, rings, fallbacks)?;
                (Some(method), Some(receiver), ring)
            }
        };
        let sender = interface
            .filter(|_| usage.sends())
            .map(|interface| SocketSender::open(&socket, config, interface, usage, fallbacks));
        let sender = sender.transpose()?;
        let tx = rings.transmit(sender.is_some())?;
        let queue = Self {
            socket,
            method,
            receiver,
            devices: None,
            sender,
            stats: QueueStats::default(),
            delivered: 0,
            uncounted: 0,
            rx_closed: None,
            block_timeout: config.block_timeout,
            removed: false,
        };
        Ok((queue, rx, tx))
    }

    /// Receives from all devices, numbered by `devices`.
    pub(super) fn receive_from(&mut self, devices: Devices) {
        self.devices = Some(devices);
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn method(&self) -> Option<PacketMethod> {
        self.method
    }

    /// Returns the name of the method of receiving or, if it only sends, of sending.
    pub(super) fn method_name(&self) -> &'static str {
        let sending = || self.sender.as_ref().map_or("", SocketSender::name);
        self.method.map_or_else(sending, PacketMethod::name)
    }

    /// Returns the meaning of an error of the socket; 0 means none.
    fn readiness_of_errno(&mut self, errno: i32) -> Result<Readiness> {
        match errno {
            0 => Ok(Readiness::Ready),
            libc::ENETDOWN if self.socket.bound_to()?.is_some() => Ok(Readiness::Down),
            libc::ENETDOWN | libc::ENODEV | libc::ENXIO => {
                self.removed = true;
                Err(self.socket.interface_removed())
            }
            errno => {
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Error::system("receive from", self.socket.object(), source))
            }
        }
    }
}

impl Backend for PacketQueue {
    #[inline]
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let Self { socket, stats, devices, .. } = self;
        let filled = match &mut self.receiver {
            Some(Receive::Blocks(blocks)) => {
                blocks.give_back(ring);
                let numbered = devices.as_mut().map(|devices| (devices, &*socket));
                blocks.fill(ring, numbered, || lost_since(socket, stats))
            }
            Some(Receive::Frames(frames)) => {
                frames.give_back(ring);
                frames.fill(ring, || lost_since(socket, stats))
            }
            Some(Receive::Calls(receiver)) => receiver.receive(socket, ring)?,
            None => FillCounts::default(),
        };
        self.delivered += u64::from(filled.packets);
        self.stats.dropped_ring_full += u64::from(filled.cut);
        self.stats.lost_long += u64::from(filled.cut);
        self.uncounted += filled.packets;
        if self.uncounted > COUNT_AFTER {
            self.stats()?;
        }
        Ok(filled.slots)
    }

    #[inline]
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        match &mut self.sender {
            Some(sender) => sender.send(&self.socket, ring),
            None => Ok(0),
        }
    }

    fn add_interfaces(&self, known: &mut Vec<Interface>) {
        if let Some(devices) = &self.devices {
            devices.add_to(known);
        }
    }

    /// Returns true if receiving was stopped and all counted packets were received, or none will arrive any
    /// more.
    fn is_finished(&mut self) -> bool {
        let Some(closed) = self.rx_closed else { return false };
        if closed.elapsed() < DRAIN_TIME {
            return false;
        }
        let complete = match self.stats() {
            Ok(stats) => stats.received == self.delivered + stats.dropped_ring_full,
            Err(_) => false,
        };
        complete || closed.elapsed() > self.block_timeout + LAST_BLOCK_DELAY
    }

    fn stop_rx(&mut self) -> Result<()> {
        self.rx_closed.get_or_insert_with(Instant::now);
        self.socket.reject_all()
    }

    /// Sends waiting packets even if the kernel's queue is full. Packets that are not sent in time count as
    /// refused and unsent.
    fn close_tx(&mut self, ring: &mut Ring, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            let synced = self.sync_tx(ring);
            let Some(sender) = &mut self.sender else { return Ok(()) };
            if !sender.is_waiting(ring) {
                return Ok(());
            }
            if synced.is_err() || Instant::now() >= end {
                sender.give_up(ring);
                return synced.map(|_| ());
            }
            self.socket.poll_for(PollFlags::POLLOUT, Duration::from_millis(10))?;
        }
    }

    fn stats(&mut self) -> Result<QueueStats> {
        self.uncounted = 0;
        if let Some(devices) = &self.devices {
            devices.note_names();
        }
        let lost = accumulate(&self.socket, &mut self.stats)?;
        match &mut self.receiver {
            Some(Receive::Blocks(blocks)) => blocks.note_loss(lost),
            Some(Receive::Frames(frames)) => frames.note_loss(lost),
            Some(Receive::Calls(_)) | None => {}
        }
        let sent = self.sender.as_ref().map(SocketSender::stats).unwrap_or_default();
        let QueueStats { received, dropped_ring_full, lost_long, ring_full_events, .. } =
            self.stats;
        Ok(QueueStats { received, dropped_ring_full, lost_long, ring_full_events, ..sent })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        if self.removed {
            return Err(self.socket.interface_removed());
        }
        let ready = match &mut self.receiver {
            Some(Receive::Calls(receiver)) if receiver.noted != 0 => {
                let noted = std::mem::take(&mut receiver.noted);
                return self.readiness_of_errno(noted).map(Some);
            }
            Some(Receive::Blocks(blocks)) => blocks.is_ready(),
            Some(Receive::Frames(frames)) => frames.is_ready(),
            Some(Receive::Calls(_)) => self.socket.poll(Duration::ZERO)?,
            None => false,
        };
        if ready { self.slept(true).map(Some) } else { Ok(None) }
    }

    /// A block takes milliseconds to arrive, so spinning first has no benefit.
    fn spins(&mut self, wait: Wait) -> bool {
        match &self.receiver {
            Some(Receive::Blocks(_)) => wait == Wait::Spin,
            Some(Receive::Frames(_) | Receive::Calls(_)) => true,
            None => false,
        }
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        WakeSource::Descriptor(self.socket.fd())
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        if ready {
            let errno = self.socket.take_error()?;
            return self.readiness_of_errno(errno);
        }
        // An interface goes down before it is removed, and the kernel reports only that it is down.
        self.removed = self.socket.bound_to()?.is_none();
        if self.removed { Err(self.socket.interface_removed()) } else { Ok(Readiness::TimedOut) }
    }
}

/// Sets up the requested method, or recvmmsg if the kernel lacks it. Returns the method in use.
fn receive(
    socket: &Socket,
    config: &PacketConfig,
    mtu: u32,
    rings: &RingMaker,
    fallbacks: &mut Vec<Fallback>,
) -> Result<(PacketMethod, Receive, Ring)> {
    let mut method = config.method;
    if matches!(method, PacketMethod::Ring | PacketMethod::Frames) {
        let shared = ask_for_times(socket, config).and_then(|()| match method {
            PacketMethod::Frames => FrameRing::new(socket, config, mtu).map(Receive::Frames),
            _ => BlockRing::new(socket, config).map(Receive::Blocks),
        });
        match shared {
            Ok(shared) => return Ok((method, shared, rings.receive_indirect()?)),
            Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENOPROTOOPT)) => {
                let (from, reason) = (method.name(), error.to_string());
                // Once for all queues.
                if !fallbacks.iter().any(|fallback| fallback.from == from) {
                    fallbacks.push(Fallback::new(from, "recvmmsg", reason));
                }
                method = PacketMethod::Recvmmsg;
            }
            Err(error) => return Err(error),
        }
    }
    let ring = rings.receive(true)?;
    let config = PacketConfig { method, ..config.clone() };
    let receiver = BatchReceiver::new(socket, &config, &ring)?;
    Ok((method, Receive::Calls(Box::new(receiver)), ring))
}

/// Requests the card's timestamps in a ring, if configured.
fn ask_for_times(socket: &Socket, config: &PacketConfig) -> Result<()> {
    if config.clock == Clock::Hardware {
        let flags = libc::SOF_TIMESTAMPING_RAW_HARDWARE.cast_signed();
        let operation = "ask for the card's timestamps on";
        socket.set(libc::SOL_PACKET, libc::PACKET_TIMESTAMP, flags, operation)?;
    }
    Ok(())
}

/// Adds the kernel's counts since the last call, which resets them. Returns the packets lost.
fn accumulate(socket: &Socket, stats: &mut QueueStats) -> Result<u32> {
    let news = socket.take_statistics()?;
    stats.received += u64::from(news.tp_packets);
    stats.dropped_ring_full += u64::from(news.tp_drops);
    stats.ring_full_events += u64::from(news.tp_freeze_q_cnt);
    Ok(news.tp_drops)
}

/// Returns the packets lost since the last call; 0 if the kernel does not answer.
fn lost_since(socket: &Socket, stats: &mut QueueStats) -> u32 {
    accumulate(socket, stats).unwrap_or(0)
}
