//! The drivers of a card's rings: they copy packets between the region and the queues of ports.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use sluicegate::Error;
use sluicegate::ring::{Meta, Packet, RingMut};

use super::queues::{HostQueues, SharedQueue, WeakQueues};
use crate::abi::flags;
use crate::abi::structures::{RingHeader, ring_flags};
use crate::engine::indirect::IndirectSlots;
use crate::engine::kring::RingDriver;
use crate::engine::region::BUFFER_BYTES;
use crate::engine::ring::RingState;
use crate::engine::{EngineOptions, WaitSources};

/// Time between two syncs of a transmit ring while the port has no room: nothing wakes the program.
const RETRY_INTERVAL: Duration = Duration::from_micros(100);
/// The interval of checks of an interface from which no packets come.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The results of a ring's syncs. A failure is logged once.
#[derive(Debug)]
struct SyncLog {
    options: EngineOptions,
    logged: bool,
}

impl SyncLog {
    fn new(options: &EngineOptions) -> Self {
        Self { options: options.clone(), logged: false }
    }

    /// Returns the errno of a failed sync. An interface that is down is no failure: packets wait for it.
    fn check<T: Default>(&mut self, synced: Result<T, Error>) -> Result<T, Errno> {
        match synced {
            Err(error) if error.errno() == Some(libc::ENETDOWN) => Ok(T::default()),
            other => other.map_err(|error| {
                if !std::mem::replace(&mut self.logged, true) {
                    self.options.say(format_args!("a sync failed: {error}"));
                }
                match EngineOptions::errno_of(&error) {
                    // It would mean that the program's ring is broken.
                    Errno::EINVAL => Errno::EIO,
                    errno => errno,
                }
            }),
        }
    }
}

/// A transmit ring of a card, or to the host.
#[derive(Debug)]
pub(super) struct QueueTx {
    queue: SharedQueue,
    log: SyncLog,
    indirect: IndirectSlots,
    /// The bytes of a packet of several slots.
    scratch: Vec<u8>,
}

impl QueueTx {
    pub(super) fn new(queue: SharedQueue, options: &EngineOptions) -> Self {
        let (log, indirect) = (SyncLog::new(options), IndirectSlots::new(options));
        Self { queue, log, indirect, scratch: Vec::new() }
    }
}

impl RingDriver for QueueTx {
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        let mut queue = self.queue.lock();
        loop {
            let copied = copy_out(ring, &mut queue.tx_mut(), &mut self.indirect, &mut self.scratch);
            let freed = queue.sync_tx();
            // Slots are free as soon as their packets are copied.
            ring.hwtail = ring.before(ring.hwcur);
            let (copied, freed) = (copied?, self.log.check(freed)?);
            if ring.hwcur == ring.rhead || copied == 0 && freed == 0 {
                return Ok(());
            }
        }
    }

    fn arm(&mut self, ring: &RingState, sources: &mut WaitSources) {
        if ring.hwcur != ring.rhead || self.queue.lock().needs_sync_tx() {
            sources.limit(RETRY_INTERVAL);
        }
    }

    fn has_thread(&self) -> bool {
        self.queue.lock().sends_live()
    }

    fn close(&mut self, ring: &RingState) {
        let closed = self.queue.lock().close_tx();
        if let Err(error) = closed {
            self.log.options.say(format_args!("closing a transmit ring: {error}"));
        }
        ring.shared.free(|_| true);
    }
}

/// Copies the packets of released slots into a queue's ring, as far as it has room. Returns their number of slots.
///
/// # Errors
/// EINVAL: a slot names no buffer, or is longer than one. The packets before it are copied.
fn copy_out(
    ring: &mut RingState,
    to: &mut RingMut<'_>,
    indirect: &mut IndirectSlots,
    scratch: &mut Vec<u8>,
) -> Result<u32, Errno> {
    let (meta, mut copied) = (Meta::default(), 0);
    while ring.hwcur != ring.rhead && to.available() > 0 {
        let single = ring.packet(ring.hwcur).filter(|(slot, _)| slot.flags & flags::MOREFRAG == 0);
        let slots = if let Some((slot, at)) = single {
            if !indirect.drops(slot) {
                let (memory, len) = (&ring.shared.region().memory, usize::from(slot.len));
                to.build(1, |buffer| {
                    memory.read(at, &mut buffer[..len]);
                    Some(len)
                });
            }
            1
        } else {
            scratch.clear();
            let (slots, is_lost) = match gather(ring, indirect, scratch)? {
                Some(whole) => whole,
                None => break,
            };
            let packet = Packet::new(&meta, scratch);
            if !is_lost && !to.push(&packet) && to.can_ever_hold(&packet) {
                break;
            }
            slots
        };
        for _ in 0..slots {
            let slot = ring.shared.slot(ring.hwcur);
            ring.clear_marks(ring.hwcur, slot);
            ring.hwcur = ring.next(ring.hwcur);
        }
        copied += slots;
    }
    Ok(copied)
}

/// Collects the bytes of the next packet, of several slots. Returns their number, and true if the packet is to be
/// dropped; None if the program has not released all of them.
///
/// # Errors
/// EINVAL: one of the slots is invalid, and all are released.
fn gather(
    ring: &RingState,
    indirect: &mut IndirectSlots,
    bytes: &mut Vec<u8>,
) -> Result<Option<(u32, bool)>, Errno> {
    let (mut index, mut slots, mut is_lost, mut is_valid) = (ring.hwcur, 0, false, true);
    // With all slots released the packet never ends.
    let mut is_whole = ring.before(ring.hwcur) == ring.rhead;
    while index != ring.rhead {
        let packet = ring.packet(index);
        is_valid &= packet.is_some();
        if let Some((slot, at)) = packet.filter(|_| is_valid) {
            is_lost |= indirect.drops(slot);
            let begin = bytes.len();
            bytes.resize(begin + usize::from(slot.len), 0);
            ring.shared.region().memory.read(at, &mut bytes[begin..]);
        }
        let marks = packet.map_or_else(|| ring.shared.slot(index).flags, |(slot, _)| slot.flags);
        (index, slots) = (ring.next(index), slots + 1);
        if marks & flags::MOREFRAG == 0 {
            is_whole = true;
            break;
        }
        is_lost |= index == ring.rhead;
    }
    match is_whole {
        true if is_valid => Ok(Some((slots, is_lost))),
        true => Err(Errno::EINVAL),
        false => Ok(None),
    }
}

/// The sleep of programs that wait for a receive ring. The descriptors that they wait for are ready while packets
/// wait, so each of several sleepers may end the queues' state of sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    /// None sleeps.
    #[default]
    None,
    /// The queues were armed. The next sync comes before the sleep, and does not disarm them.
    Armed,
    /// That sync has come: the next one ends the sleep.
    Checked,
}

/// A receive ring of a card.
#[derive(Debug)]
pub(super) struct QueueRx {
    rx_queues: RxQueues,
    host: Arc<HostQueues>,
}

impl QueueRx {
    pub(super) fn new(
        queues: Vec<SharedQueue>,
        host: Arc<HostQueues>,
        options: &EngineOptions,
    ) -> Self {
        Self { rx_queues: RxQueues::new(queues, options), host }
    }
}

impl RingDriver for QueueRx {
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        if forwards(ring)
            && let Ok(queue) = self.host.queue(0)
        {
            forward(ring, &queue, &mut self.rx_queues.log)?;
        }
        self.rx_queues.sync(ring)
    }

    fn arm(&mut self, _ring: &RingState, sources: &mut WaitSources) {
        self.rx_queues.arm(sources);
    }

    fn receives(&self) -> bool {
        true
    }
}

/// A receive ring from the host.
#[derive(Debug)]
pub(super) struct HostRx {
    rx_queues: RxQueues,
    card: Arc<WeakQueues>,
}

impl HostRx {
    pub(super) fn new(queue: SharedQueue, card: Arc<WeakQueues>, options: &EngineOptions) -> Self {
        Self { rx_queues: RxQueues::new(vec![queue], options), card }
    }
}

impl RingDriver for HostRx {
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        if forwards(ring)
            && let Some(queue) = self.card.first()
        {
            forward(ring, &queue, &mut self.rx_queues.log)?;
        }
        self.rx_queues.sync(ring)
    }

    fn arm(&mut self, _ring: &RingState, sources: &mut WaitSources) {
        self.rx_queues.arm(sources);
    }

    fn receives(&self) -> bool {
        true
    }
}

/// The queues of a receive ring.
#[derive(Debug)]
struct RxQueues {
    queues: Vec<SharedQueue>,
    sleep: Sleep,
    /// The time of the last check of the interfaces.
    checked: Instant,
    log: SyncLog,
}

impl RxQueues {
    fn new(queues: Vec<SharedQueue>, options: &EngineOptions) -> Self {
        Self { queues, sleep: Sleep::None, checked: Instant::now(), log: SyncLog::new(options) }
    }

    /// Takes back released slots, and copies received packets into the ring, as far as it has room.
    ///
    /// # Errors
    /// EINVAL: a slot names no buffer. Or a port failed.
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        ring.hwcur = ring.rhead;
        let slept = self.sleep == Sleep::Checked;
        self.sleep = if self.sleep == Sleep::Armed { Sleep::Checked } else { Sleep::None };
        let before = ring.hwtail;
        for queue in &self.queues {
            let mut queue = queue.lock();
            if slept {
                self.log.check(queue.end_sleep())?;
            }
            let received = queue.sync_rx();
            let copied = copy_packets(ring, &mut queue.rx_mut());
            self.log.check(received)?;
            copied?;
        }
        if ring.hwtail == before { self.check_interface() } else { Ok(()) }
    }

    /// Checks now and then that the interface exists, while no packets prove it.
    fn check_interface(&mut self) -> Result<(), Errno> {
        let now = Instant::now();
        if now.duration_since(self.checked) < CHECK_INTERVAL {
            return Ok(());
        }
        for queue in &self.queues {
            self.log.check(queue.lock().check())?;
        }
        self.checked = now;
        Ok(())
    }

    /// Adds the events that end a sleep.
    fn arm(&mut self, sources: &mut WaitSources) {
        self.sleep = Sleep::Armed;
        // No descriptor of AF_XDP reports that the interface was removed.
        sources.limit(CHECK_INTERVAL);
        for queue in &self.queues {
            let mut queue = queue.lock();
            let events = queue.begin_sleep();
            for fd in events.descriptors {
                sources.descriptors.push((fd.as_raw_fd(), PollFlags::POLLIN));
            }
            events.limit.into_iter().for_each(|limit| sources.limit(limit));
        }
    }
}

/// Copies packets of a queue into the slots from hwtail on, as far as there is room, and releases them.
///
/// # Errors
/// EINVAL: a slot names no buffer. The packets before it are copied.
fn copy_packets(ring: &mut RingState, from: &mut RingMut<'_>) -> Result<(), Errno> {
    let (mut done, mut valid) = (0, true);
    for packet in from.packets() {
        let needed = slots_for(&packet);
        if needed > ring.room() {
            // A packet that an empty ring cannot hold is dropped.
            if needed < ring.num_slots() {
                break;
            }
        } else if !copy_in(ring, &packet) {
            valid = false;
            break;
        }
        done += packet.slots();
    }
    from.release(done);
    if valid { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Returns the number of slots that a packet needs in a region.
#[inline]
fn slots_for(packet: &Packet<'_>) -> u32 {
    match packet.captured_bytes() as u32 {
        // The usual case, without a division.
        bytes if bytes <= BUFFER_BYTES => 1,
        bytes => bytes.div_ceil(BUFFER_BYTES),
    }
}

/// Copies a packet into the slots from hwtail on. Returns false, without effect, if a slot names no buffer.
#[inline]
fn copy_in(ring: &mut RingState, packet: &Packet<'_>) -> bool {
    if packet.slots() == 1 && packet.captured_bytes() <= BUFFER_BYTES as usize {
        let bytes = packet.head();
        let len = bytes.len() as u16;
        let filled =
            ring.fill_slot(ring.hwtail, (len, 0), |region, at| region.memory.write(at, bytes));
        if filled {
            ring.hwtail = ring.next(ring.hwtail);
        }
        return filled;
    }
    let mut scratch = Vec::new();
    let pieces = packet.contiguous(&mut scratch).chunks(BUFFER_BYTES as usize);
    let (mut at, last) = (ring.hwtail, pieces.len() - 1);
    for (i, piece) in pieces.enumerate() {
        let more = if i == last { 0 } else { flags::MOREFRAG };
        let filled = ring.fill_slot(at, (piece.len() as u16, more), |region, at| {
            region.memory.write(at, piece);
        });
        if !filled {
            return false;
        }
        at = ring.next(at);
    }
    ring.hwtail = at;
    true
}

/// Returns true if the program wants released slots to be passed to the other side of the port.
#[inline]
fn forwards(ring: &RingState) -> bool {
    ring.shared.load(std::mem::offset_of!(RingHeader, flags)) & ring_flags::FORWARD != 0
}

/// Sends the released slots that the program has marked to the other side. What has no room there is dropped.
fn forward(ring: &RingState, to: &SharedQueue, log: &mut SyncLog) -> Result<(), Errno> {
    let mut queue = to.lock();
    let (meta, mut buffer) = (Meta::default(), [0; BUFFER_BYTES as usize]);
    let mut index = ring.hwcur;
    let mut any = false;
    while index != ring.rhead {
        if let Some((slot, at)) = ring.packet(index).filter(|it| it.0.flags & flags::FORWARD != 0) {
            let bytes = &mut buffer[..slot.len.into()];
            ring.shared.region().memory.read(at, bytes);
            let packet = Packet::new(&meta, bytes);
            if !queue.tx_mut().push(&packet) && queue.sync_tx().is_ok() {
                queue.tx_mut().push(&packet);
            }
            any = true;
        }
        index = ring.next(index);
    }
    if any { log.check(queue.sync_tx()).map(|_| ()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_error_in_a_sync_does_not_look_like_an_invalid_slot() {
        let system = |errno| Error::system("send", "eth0", std::io::Error::from(errno));
        for (error, expected) in [
            (Error::Usage("the queue only receives".into()), Err(Errno::EIO)),
            (system(Errno::EINVAL), Err(Errno::EIO)),
            (system(Errno::ENOBUFS), Err(Errno::ENOBUFS)),
            (Error::removed("eth0"), Err(Errno::ENXIO)),
            (system(Errno::ENETDOWN), Ok(())),
        ] {
            let text = error.to_string();
            let mut log = SyncLog::new(&EngineOptions::default());
            assert_eq!(log.check::<()>(Err(error)), expected, "{text}");
        }
    }
}
