//! One queue of a TAP device: a frame a system call, into the slots and out of them.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};
use crate::link::{LinkState, Netlink, Tap};
use crate::port::QueueStats;
use crate::port::backend::{Backend, WakeSource};
use sluicegate_base::ring::{Direction, Meta, Readiness, Ring, TimestampSource, Wait, now_ns};

/// The longest frame: what an IP packet can have, an Ethernet header and two VLAN tags.
pub(super) const MAX_BYTES: usize = 65_535 + 14 + 8;

/// A queue of a TAP device.
#[derive(Debug)]
pub(crate) struct TapQueue {
    tap: Tap,
    name: String,
    presence: LinkState,
    /// The bytes of a frame beyond a slot's buffer.
    spill: Vec<u8>,
    /// A packet of several slots, put together.
    whole: Vec<u8>,
    /// The first slot that has not been written.
    next: u32,
    counts: QueueStats,
    /// Packets lost before the queues: the device's first queue counts them for all.
    drops: Option<Drops>,
    /// Packets that may still come after the intake was closed; none: it is open.
    left: Option<u32>,
    /// As many packets wait at most.
    waiting: u32,
    down: bool,
}

impl TapQueue {
    /// Makes a queue of a device with room for `waiting` packets, which is up or not.
    pub(in crate::port) fn new(
        tap: Tap,
        name: &str,
        presence: LinkState,
        drops: Option<Drops>,
        waiting: u32,
        up: bool,
    ) -> Self {
        Self {
            tap,
            name: name.to_owned(),
            presence,
            spill: vec![0; MAX_BYTES],
            whole: Vec::new(),
            next: 0,
            counts: QueueStats::default(),
            drops,
            left: None,
            waiting,
            down: !up,
        }
    }

    fn is_ready(&self) -> Result<bool> {
        let mut fds = [PollFd::new(self.tap.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(Error::system("wait for", self.name.as_str(), error)),
        }
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::EBADFD | libc::EFAULT | libc::ENODEV) => Error::removed(self.name.as_str()),
            // drivers/net/tun.c, tun_get_user
            Some(libc::EIO) => {
                let down = io::Error::from_raw_os_error(libc::ENETDOWN);
                Error::system(operation, self.name.as_str(), down)
                    .remedy("the interface is down: bring it up")
            }
            _ => Error::system(operation, self.name.as_str(), error),
        }
    }
}

impl Backend for TapQueue {
    /// Takes in what the host has sent, as far as there is room for the longest frame.
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let most_slots = slots_for(MAX_BYTES, ring.buffer_bytes());
        let before = ring.tail();
        let mut meta = Meta { direction: Direction::Out, ..Meta::default() };
        while ring.room() >= most_slots && self.left != Some(0) {
            let in_slot = slot_bytes(ring.buffer_bytes());
            let Some(buffer) = ring.tail_buffer() else { break };
            let first = buffer.len().min(in_slot);
            match self.tap.read(&mut buffer[..first], &mut self.spill) {
                Ok(bytes) => {
                    if meta.timestamp_ns == 0 {
                        // The device tells no time.
                        meta.timestamp_ns = now_ns();
                        meta.timestamp_source = TimestampSource::Software;
                    }
                    meta.wire_bytes = bytes as u32;
                    place(ring, bytes, &self.spill, meta);
                    self.counts.received += 1;
                    self.left = self.left.map(|left| left - 1);
                }
                Err(error) if is_nothing_now(&error) => {
                    self.left = self.left.map(|_| 0);
                    break;
                }
                // What came before it comes out; the next call finds the same.
                Err(_) if ring.tail() != before => break,
                Err(error) => {
                    // A removed device has no packets waiting.
                    self.left = self.left.map(|_| 0);
                    return Err(self.failed("receive from", error));
                }
            }
        }
        Ok(ring.distance(before, ring.tail()))
    }

    /// Has the host receive what the program has released.
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        let before = self.next;
        let mut result = Ok(());
        for packet in ring.pending_tx(before) {
            match self.tap.write(packet.contiguous(&mut self.whole)) {
                Ok(()) => self.counts.sent += 1,
                Err(error) if is_nothing_now(&error) => break,
                // Too short for an Ethernet header, or longer than a packet can be.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EMSGSIZE)) =>
                {
                    self.counts.refused += 1;
                }
                Err(error) => {
                    result = Err(self.failed("send to", error));
                    break;
                }
            }
            self.next = ring.after(self.next, packet.slots());
        }
        if ring.is_endless(self.next) {
            self.counts.refused += 1;
            self.next = ring.head();
        }
        // One slot stays with the backend: room ends before the first slot still to be sent.
        ring.publish(ring.before(self.next));
        result.map(|()| ring.distance(before, self.next))
    }

    /// Counts what waits as refused, and unsent: sending has ended.
    fn close_tx(&mut self, ring: &mut Ring, _: Duration) -> Result<()> {
        let waiting = ring.pending_tx(self.next).count() as u64;
        self.counts.refused += waiting;
        self.counts.unsent += waiting;
        self.next = ring.head();
        ring.publish(ring.before(self.next));
        Ok(())
    }

    /// Checks that the device still exists.
    fn check(&mut self) -> Result<()> {
        self.presence.look().map(|_| ())
    }

    /// After the intake was closed: all that waited has come out.
    fn is_finished(&mut self) -> bool {
        self.left == Some(0)
    }

    /// From now on only what waits is received.
    fn stop_rx(&mut self) -> Result<()> {
        self.left.get_or_insert(self.waiting);
        Ok(())
    }

    /// Returns the queue's counts; the first queue's include packets lost before any of them.
    fn stats(&mut self) -> Result<QueueStats> {
        let dropped_ring_full = self.drops.as_mut().map_or(0, Drops::count);
        Ok(QueueStats {
            received: self.counts.received + dropped_ring_full,
            dropped_ring_full,
            ..self.counts
        })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        Ok(self.is_ready()?.then_some(Readiness::Ready))
    }

    fn spins(&mut self, _wait: Wait) -> bool {
        true
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        WakeSource::Descriptor(self.tap.as_fd())
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        if ready {
            return Ok(Readiness::Ready);
        }
        let was_down = std::mem::replace(&mut self.down, !self.presence.look()?.up);
        Ok(if self.down && !was_down { Readiness::Down } else { Readiness::TimedOut })
    }
}

/// Returns the slots that `bytes` bytes take, with buffers of one size.
pub(super) fn slots_for(bytes: usize, buffer_bytes: u32) -> u32 {
    bytes.div_ceil(slot_bytes(buffer_bytes)) as u32
}

/// Bytes that a slot says it has at most, however long its buffer.
fn slot_bytes(buffer_bytes: u32) -> usize {
    buffer_bytes.min(u16::MAX.into()) as usize
}

/// Hands a frame over whose beginning is in the buffer at the ring's tail, and what that had no
/// room for in `spill`.
#[inline]
fn place(ring: &mut Ring, bytes: usize, spill: &[u8], meta: Meta) {
    let in_slot = slot_bytes(ring.buffer_bytes());
    let (mut here, mut rest) = match bytes.checked_sub(in_slot) {
        Some(beyond) if beyond > 0 => (in_slot, &spill[..beyond]),
        _ => (bytes, &spill[..0]),
    };
    loop {
        let at = ring.tail();
        ring.fill(at, here as u16, !rest.is_empty(), meta);
        ring.publish(ring.next(at));
        if rest.is_empty() {
            return;
        }
        let Some(buffer) = ring.tail_buffer() else { return };
        here = rest.len().min(buffer.len()).min(in_slot);
        buffer[..here].copy_from_slice(&rest[..here]);
        rest = &rest[here..];
    }
}

fn is_nothing_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The count of a device, all its queues together, from now on.
#[derive(Debug)]
pub(crate) struct Drops {
    netlink: Netlink,
    device: String,
    before: u64,
    /// The last count read.
    since: u64,
}

impl Drops {
    /// Starts counting for a device of this thread's network namespace.
    pub fn of(device: &str) -> Result<Self> {
        let mut netlink = Netlink::open(None)?;
        let before = netlink.link(device)?.stats.tx_dropped;
        Ok(Self { netlink, device: device.to_owned(), before, since: 0 })
    }

    /// Packets that the host sent and that found no room (drivers/net/tun.c, `tun_net_xmit`). A
    /// removed device keeps its last count.
    pub fn count(&mut self) -> u64 {
        if let Ok(link) = self.netlink.link(&self.device) {
            self.since = link.stats.tx_dropped.saturating_sub(self.before);
        }
        self.since
    }
}
