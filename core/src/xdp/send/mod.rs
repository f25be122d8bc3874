//! Sending: full frames go out by the transmit ring, and come back by the completion ring.
//!
//! ```text
//!                 done        next        head            tail = the slot before `done`
//!                  v           v           v
//!   +----+----+----+----+----+----+----+----+----+----+
//!   | b  | b  | -  | -  | -  | p  | p  | b  | b  | b  |
//!   +----+----+----+----+----+----+----+----+----+----+
//!                  at the       to be
//!                  kernel       sent
//! ```
//!
//! A slot whose frame is at the kernel has no buffer. Each frame that comes back goes to the
//! first such slot, whichever slot it came from, and that slot is room again: so the order in
//! which the kernel is done does not matter. It keeps to no order where it sends without copying.

use std::sync::Arc;

use libc::xdp_desc;

use super::calls::Woken;
use super::ring::{Consumer, Producer};
use super::socket::XskSocket;
use super::uapi::COPIED_A_CALL;
use super::umem::{Frames, Umem};
use crate::error::Result;
use sluicegate_base::memory::prefetch;
use sluicegate_base::ring::Ring;

/// An Ethernet header: nothing shorter is a packet, and some drivers choke on it.
const MIN_BYTES: u32 = 14;

/// The sending side of an AF_XDP socket.
#[derive(Debug)]
pub struct Sender {
    outlet: TxPath,
    // Last: the rings are unmapped before the socket ends.
    socket: Arc<XskSocket>,
}

/// Counters of a sender since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Packets that the kernel says it is done with.
    pub sent: u64,
    /// Of these, packets that the device dropped on the way (known in copy mode only).
    pub dropped: u64,
    /// Packets that could not be sent and were not given to the kernel: too short or too long,
    /// in more pieces than can be.
    pub refused: u64,
    /// Frames that came back without having been sent.
    pub strays: u64,
    /// Looks at which one of the kernel's indices made no sense.
    pub index_faults: u64,
}

/// What a packet must keep to for the kernel to take it. One that does not would be skipped, and
/// its frames would never come back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most bytes of a packet.
    pub(super) bytes: u32,
    /// Most slots of a packet.
    pub(super) slots: u32,
}

/// A packet that is to be sent.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    slots: u32,
    bytes: u32,
    /// All its pieces are bytes of frames, and the last one ends it.
    is_sound: bool,
}

impl Ahead {
    /// Whether the kernel would take it (net/xdp/xsk_queue.h, xp_aligned_validate_desc).
    #[inline]
    fn keeps_to(&self, limits: Limits) -> bool {
        let fits = (MIN_BYTES..=limits.bytes).contains(&self.bytes);
        self.is_sound && fits && self.slots <= limits.slots
    }
}

impl Sender {
    pub(super) fn new(mut outlet: TxPath, socket: &Arc<XskSocket>) -> Self {
        outlet.copied = socket.copies();
        Self { outlet, socket: Arc::clone(socket) }
    }

    /// Sends the packets that the program has released, and gives back the slots of those the
    /// kernel is done with. Never waits. Returns how many slots are room again. What the kernel
    /// has no room for stays for the next call. The ring is always the same one.
    ///
    /// # Errors
    /// The interface is down or removed; what was not sent stays in the ring.
    ///
    /// # Panics
    /// If the ring's buffers are not of the pool that the socket was opened with.
    #[inline]
    pub fn send(&mut self, ring: &mut Ring) -> Result<u32> {
        let mut slots = 0;
        loop {
            let before = self.outlet.next;
            slots += self.outlet.send(ring);
            let driven = self.drive();
            let TxPath { copied, next, tx, .. } = &mut self.outlet;
            let more = *copied && *next != before && *next != ring.head();
            if driven.is_err() || !more || tx.waiting() > 0 {
                slots += self.outlet.reap(ring);
                return driven.map(|()| slots);
            }
        }
    }

    /// Slots whose frames are at the kernel.
    pub fn outstanding(&self) -> u32 {
        self.outlet.lent.count()
    }

    /// Packets that were released and that the kernel has not said it is done with.
    pub fn unsent(&self, ring: &Ring) -> u64 {
        self.outlet.unsent(ring)
    }

    /// Whether packets wait for another [`send`](Self::send): the transmit ring has no room for them, or
    /// the kernel has to be called again.
    pub(crate) fn needs_send(&mut self, ring: &Ring) -> bool {
        let TxPath { next, tx, .. } = &mut self.outlet;
        let called = tx.needs_wakeup() || self.socket.wakes_always();
        *next != ring.head() || called && tx.waiting() > 0
    }

    /// The socket, for its statistics and waiting.
    pub fn socket(&self) -> &Arc<XskSocket> {
        &self.socket
    }

    /// Counts since it was opened. What the kernel has counted is the socket's to say.
    pub fn stats(&self) -> SenderStats {
        self.outlet.stats()
    }

    /// Calls the kernel until it has taken what is in the transmit ring, or takes no more: in
    /// copy mode it sends 32 packets a call, 256 since Linux 6.17, and only when called. Looked at in
    /// each sync as long as there is anything, not only after something was added: the kernel may
    /// have asked later.
    fn drive(&mut self) -> Result<()> {
        let TxPath { tx, stats, .. } = &mut self.outlet;
        let mut waiting = tx.waiting();
        // Each call moves at least one packet on; this bounds them if one should not.
        let mut calls = waiting;
        while waiting > 0 && calls > 0 && (tx.needs_wakeup() || self.socket.wakes_always()) {
            let woken = self.socket.drive_tx()?;
            let left = tx.waiting();
            match woken {
                // The index that says how far it has come may lag behind the packet dropped.
                Woken::Dropped if self.socket.copies() => stats.dropped += 1,
                _ if left == waiting => return Ok(()),
                _ => {}
            }
            waiting = left;
            calls -= 1;
        }
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.socket.keep(self.outlet.take_frames());
    }
}

/// Transmit ring and completion ring, and the frames between them.
#[derive(Debug)]
pub(super) struct TxPath {
    umem: Umem,
    tx: Producer<xdp_desc>,
    completion: Consumer<u64>,
    limits: Limits,
    /// The kernel copies each packet when it is called: frames go to it a call's worth at a time, and
    /// stay in the cache until they are copied.
    copied: bool,
    /// The first slot whose frame is at the kernel; `next` if there is none.
    done: u32,
    /// The next slot to send.
    next: u32,
    /// Frames that the kernel has; as many as there are slots from `done` to `next`.
    lent: Frames,
    /// The packets in them.
    packets: u32,
    stats: SenderStats,
}

impl TxPath {
    pub(super) fn new(
        umem: &Umem,
        tx: Producer<xdp_desc>,
        completion: Consumer<u64>,
        limits: Limits,
    ) -> Self {
        Self {
            umem: umem.clone(),
            tx,
            completion,
            limits,
            copied: false,
            done: 0,
            next: 0,
            lent: umem.no_frames(),
            packets: 0,
            stats: SenderStats::default(),
        }
    }

    /// Puts into the transmit ring what it has room for. Returns how many slots are room again.
    #[inline]
    pub(super) fn send(&mut self, ring: &mut Ring) -> u32 {
        assert!(ring.uses_pool(self.umem.pool()), "the ring is of another pool");
        let mut freed = self.reap(ring);
        let most = if self.copied { COPIED_A_CALL } else { u32::MAX };
        let room = self.tx.reserve(ring.distance(self.next, ring.head())).min(most);
        let mut written = 0;
        while let Some(packet) = self.next_packet(ring) {
            if !packet.keeps_to(self.limits) {
                freed += self.refuse(ring, packet.slots);
            } else if written + packet.slots <= room {
                for i in written..written + packet.slots {
                    self.write(ring, i);
                }
                written += packet.slots;
            } else {
                break;
            }
        }
        if written > 0 {
            self.tx.submit(written);
        }
        if freed > 0 {
            ring.publish(ring.before(self.done));
        }
        freed
    }

    /// Takes back what the kernel is done with. Returns how many slots are room again.
    #[inline]
    pub(super) fn reap(&mut self, ring: &mut Ring) -> u32 {
        let found = self.completion.peek();
        let mut freed = 0;
        for i in 0..found {
            let buffer = self.umem.frame_of(self.completion.read(i));
            match buffer.and_then(|buffer| Some((buffer, self.lent.take_back(buffer)?))) {
                Some((buffer, ends)) => {
                    self.packets -= u32::from(ends);
                    self.stats.sent += u64::from(ends);
                    self.put_back(ring, buffer);
                    freed += 1;
                }
                None => self.stats.strays += 1,
            }
        }
        if found > 0 {
            self.completion.release(found);
        }
        if freed > 0 {
            // One slot stays with the backend: room ends before the first slot without a buffer.
            ring.publish(ring.before(self.done));
        }
        freed
    }

    /// Packets at the kernel, and those that wait for room there.
    fn unsent(&self, ring: &Ring) -> u64 {
        u64::from(self.packets) + ring.pending_tx(self.next).count() as u64
    }

    /// The next packet; None if there is none, or its end has not come.
    #[inline]
    fn next_packet(&self, ring: &Ring) -> Option<Ahead> {
        let released = ring.distance(self.next, ring.head());
        let mut packet = Ahead { slots: 0, bytes: 0, is_sound: true };
        let mut at = self.next;
        while packet.slots < released {
            let slot = ring.slot(at);
            packet.slots += 1;
            packet.bytes += u32::from(slot.bytes());
            packet.is_sound &= slot.bytes() > 0
                && !slot.is_indirect()
                && self.umem.has(slot.buffer(), slot.offset(), slot.bytes());
            if !slot.continues() {
                return Some(packet);
            }
            at = ring.next(at);
        }
        // It has all the slots there are, and will never end.
        let is_endless = released > 0 && released == ring.num_slots() - 1;
        is_endless.then_some(Ahead { is_sound: false, ..packet })
    }

    /// Lends the next slot's frame to the kernel, as the `i`th entry of the batch.
    #[inline]
    fn write(&mut self, ring: &mut Ring, i: u32) {
        let slot = ring.take(self.next);
        let (buffer, offset) = (slot.buffer(), slot.offset());
        if self.copied {
            // What came in on another CPU, for all at once in place of one by one.
            prefetch(self.umem.first_byte(buffer, offset));
        }
        let descriptor = xdp_desc {
            addr: self.umem.address(buffer, offset),
            len: slot.bytes().into(),
            options: if slot.continues() { libc::XDP_PKT_CONTD } else { 0 },
        };
        let is_new = self.lent.lend(buffer, !slot.continues());
        debug_assert!(is_new, "buffer {buffer} has two holders");
        self.packets += u32::from(!slot.continues());
        self.tx.write(i, descriptor);
        self.next = ring.next(self.next);
    }

    /// Leaves the next packet out: its slots are room again as soon as those before it are.
    fn refuse(&mut self, ring: &mut Ring, slots: u32) -> u32 {
        self.stats.refused += 1;
        for _ in 0..slots {
            let buffer = ring.take(self.next).buffer();
            self.next = ring.next(self.next);
            self.put_back(ring, buffer);
        }
        slots
    }

    /// Gives a buffer to the first slot that has none.
    #[inline]
    fn put_back(&mut self, ring: &mut Ring, buffer: u32) {
        // SAFETY: the buffer came out of a slot of this ring, and the kernel has given it back.
        #[allow(unsafe_code, reason = "buffers change hands by number")]
        let held = unsafe { ring.fill_at(self.done, buffer, 0, 0, false) };
        debug_assert!(held == 0, "slot {} had buffer {held}", self.done);
        self.done = ring.next(self.done);
    }

    fn stats(&self) -> SenderStats {
        let index_faults = self.tx.faults() + self.completion.faults();
        SenderStats { index_faults, ..self.stats }
    }

    /// All frames that are not in slots. They are the kernel's until the socket has ended.
    pub(super) fn take_frames(&mut self) -> Vec<u32> {
        self.lent.drain()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
