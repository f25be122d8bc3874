//! One queue of a TAP device, read and written by one system call per frame. For `tap:` and `host:`.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::backend::{Backend, WakeSource};
use super::interface;
use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::rings::{PoolRequirements, RingMaker, TxProgress};
use super::stats::QueueStats;
use super::wait::is_readable;
use crate::error::{Error, Result};
use crate::link::{LinkState, Netlink, Tap};
use sluicegate_base::memory::PoolConfig;
use sluicegate_base::ring::{
    Direction, Interface, Meta, Readiness, Ring, TimestampSource, Wait, now_ns,
};

/// Maximum length of a frame: the longest IP packet, an Ethernet header and two VLAN tags.
const MAX_BYTES: usize = 65_535 + 14 + 8;

/// Returns the length of a frame at an MTU, with a header and a tag.
pub(super) fn frame_bytes(mtu: u32) -> u32 {
    mtu.saturating_add(18)
}

/// Describes the packets of an interface and their timestamps.
pub(super) fn described(name: &str) -> Interface {
    interface::described(name, "timestamps: software, taken when a batch is read")
}

/// Plans the rings of a port with `queues` queues. In a pool of its own, a slot has room for a frame of
/// `frame_bytes`, up to 65,535.
pub(super) fn rings(
    name: &PortName,
    options: &OpenOptions,
    slots: u32,
    queues: usize,
    frame_bytes: u32,
) -> Result<RingMaker> {
    let usage = options.usage;
    let buffers = if usage == Directions::Both { 2 * slots } else { slots };
    let bytes = frame_bytes.next_multiple_of(64).max(PoolConfig::default().buffer_bytes);
    let pool = PoolRequirements::of_queues(queues as u32, buffers, bytes).pool_of(options)?;
    let least = slots_for(MAX_BYTES, pool.buffer_bytes()) + 1;
    if usage.receives() && slots < least {
        let advice = format!("the longest frame needs {least} in this pool");
        return Err(name.bad_option("slots", &slots.to_string(), &advice));
    }
    Ok(RingMaker { pool, usage, slots })
}

/// A queue of a TAP device.
#[derive(Debug)]
pub(super) struct TapQueue {
    tap: Tap,
    name: String,
    presence: LinkState,
    /// Overflow buffer: the bytes of a frame beyond a slot's buffer.
    overflow: Vec<u8>,
    /// Buffer to assemble a packet of several slots.
    whole: Vec<u8>,
    progress: TxProgress,
    received: u64,
    /// Packets lost before they reached a queue: the device's first queue counts them for all.
    drops: Option<DeviceDrops>,
    /// Packets that may still arrive after receiving was stopped; None while it continues.
    left: Option<u32>,
    /// Maximum number of packets that wait in the device.
    waiting: u32,
    down: bool,
}

impl TapQueue {
    /// Makes a queue of a device that holds up to `waiting` packets and is up or down.
    pub(super) fn new(
        tap: Tap,
        name: &str,
        presence: LinkState,
        drops: Option<DeviceDrops>,
        waiting: u32,
        up: bool,
    ) -> Self {
        Self {
            tap,
            name: name.to_owned(),
            presence,
            overflow: vec![0; MAX_BYTES],
            whole: Vec::new(),
            progress: TxProgress::default(),
            received: 0,
            drops,
            left: None,
            waiting,
            down: !up,
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
    /// Receives packets of the host as long as there is room for the longest frame.
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let most_slots = slots_for(MAX_BYTES, ring.buffer_bytes());
        let before = ring.tail();
        let mut meta = Meta { direction: Direction::Out, ..Meta::default() };
        while ring.backend_slots() >= most_slots && self.left != Some(0) {
            let in_slot = slot_bytes(ring.buffer_bytes());
            let Some(buffer) = ring.tail_buffer() else { break };
            let first = buffer.len().min(in_slot);
            match self.tap.read(&mut buffer[..first], &mut self.overflow) {
                Ok(bytes) => {
                    if meta.timestamp_ns == 0 {
                        // The device has no timestamps.
                        meta.timestamp_ns = now_ns();
                        meta.timestamp_source = TimestampSource::Software;
                    }
                    meta.wire_bytes = bytes as u32;
                    place(ring, bytes, &self.overflow, meta);
                    self.received += 1;
                    self.left = self.left.map(|left| left - 1);
                }
                Err(error) if is_nothing_now(&error) => {
                    self.left = self.left.map(|_| 0);
                    break;
                }
                // Packets before the error are delivered; the next call gets the same error.
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

    /// Passes the packets that the program has released to the host.
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        let Self { tap, whole, progress, .. } = self;
        let before = progress.next;
        let mut failure = None;
        for packet in ring.pending_tx(before) {
            match tap.write(packet.contiguous(whole)) {
                Ok(()) => progress.sent(ring, 1, packet.slots()),
                Err(error) if is_nothing_now(&error) => break,
                Err(error) => match error.raw_os_error() {
                    // Too short for an Ethernet header, or longer than any packet can be.
                    Some(libc::EINVAL | libc::EMSGSIZE) => {
                        progress.refuse(ring, packet.slots(), false);
                    }
                    _ => {
                        failure = Some(error);
                        break;
                    }
                },
            }
        }
        let slots = self.progress.publish(ring, before);
        failure.map_or(Ok(slots), |error| Err(self.failed("send to", error)))
    }

    /// Counts waiting packets as refused and unsent.
    fn close_tx(&mut self, ring: &mut Ring, _: Duration) -> Result<()> {
        self.progress.give_up(ring);
        Ok(())
    }

    /// Checks that the device still exists.
    fn check(&mut self) -> Result<()> {
        self.presence.query().map(|_| ())
    }

    /// Returns true if all packets that waited when receiving was stopped were received.
    fn is_finished(&mut self) -> bool {
        self.left == Some(0)
    }

    /// Receives only packets that are already waiting.
    fn stop_rx(&mut self) -> Result<()> {
        self.left.get_or_insert(self.waiting);
        Ok(())
    }

    /// Returns the queue's counts; the first queue's include packets lost before they reached any queue.
    fn stats(&mut self) -> Result<QueueStats> {
        let dropped_ring_full = self.drops.as_mut().map_or(0, DeviceDrops::count);
        Ok(QueueStats {
            received: self.received + dropped_ring_full,
            dropped_ring_full,
            // Only the device knows whether it rejects a frame because it is too long.
            too_long: 0,
            too_long_bytes: 0,
            ..self.progress.stats()
        })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        let ready = is_readable(self.tap.as_fd())
            .map_err(|error| Error::system("wait for", self.name.as_str(), error))?;
        Ok(ready.then_some(Readiness::Ready))
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
        let was_down = std::mem::replace(&mut self.down, !self.presence.query()?.up);
        Ok(if self.down && !was_down { Readiness::Down } else { Readiness::TimedOut })
    }
}

/// Returns the number of slots for `bytes` bytes, with buffers of one size.
fn slots_for(bytes: usize, buffer_bytes: u32) -> u32 {
    bytes.div_ceil(slot_bytes(buffer_bytes)) as u32
}

/// Returns the maximum number of bytes in a slot with a buffer of this size.
fn slot_bytes(buffer_bytes: u32) -> usize {
    buffer_bytes.min(u16::MAX.into()) as usize
}

/// Publishes a frame that begins in the buffer at the ring's tail. `overflow` is the overflow buffer with the
/// rest.
#[inline]
fn place(ring: &mut Ring, bytes: usize, overflow: &[u8], meta: Meta) {
    let in_slot = slot_bytes(ring.buffer_bytes());
    let (mut here, mut rest) = match bytes.checked_sub(in_slot) {
        Some(beyond) if beyond > 0 => (in_slot, &overflow[..beyond]),
        _ => (bytes, &overflow[..0]),
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

/// Counts a device's drops of all its queues from now on.
#[derive(Debug)]
pub(super) struct DeviceDrops {
    netlink: Netlink,
    device: String,
    before: u64,
    /// The last count read.
    since: u64,
}

impl DeviceDrops {
    /// Starts counting for a device of this thread's network namespace.
    pub(super) fn of(device: &str) -> Result<Self> {
        let mut netlink = Netlink::open(None)?;
        let before = netlink.link(device)?.stats.tx_dropped;
        Ok(Self { netlink, device: device.to_owned(), before, since: 0 })
    }

    /// Returns the number of packets from the host that found no room (drivers/net/tun.c, `tun_net_xmit`).
    /// Keeps the last count of a removed device.
    pub(super) fn count(&mut self) -> u64 {
        if let Ok(link) = self.netlink.link(&self.device) {
            self.since = link.stats.tx_dropped.saturating_sub(self.before);
        }
        self.since
    }
}
