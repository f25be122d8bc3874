//! Sending: full frames go out through the transmit ring, and come back through the completion ring.
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
//! A slot whose frame the kernel holds has no buffer. Each returned frame goes to the first such slot, no
//! matter which slot it came from, and frees that slot. So frames may return in any order, as they do in
//! zero-copy mode.

use std::sync::Arc;

use libc::xdp_desc;

use super::ring::{Consumer, Producer};
use super::socket::XskSocket;
use super::uapi::TX_SKB_BUDGET;
use super::umem::{Frames, Umem};
use crate::error::Result;
use sluicegate_base::memory::prefetch;
use sluicegate_base::ring::Ring;

/// An Ethernet header: the shortest packet. Some drivers fail on shorter ones.
const MIN_BYTES: u32 = 14;

/// The sending side of an AF_XDP socket.
#[derive(Debug)]
pub struct XskSender {
    path: TxPath,
    // Last: the rings are unmapped before the socket is closed.
    socket: Arc<XskSocket>,
}

/// Counters of a sender since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Packets that the kernel has completed.
    pub sent: u64,
    /// Completed packets that the device dropped (reported in copy mode only).
    pub dropped: u64,
    /// Packets that the kernel would not send: too short, too long, or in too many pieces.
    pub refused: u64,
    /// Frames that came back although they were not lent.
    pub strays: u64,
    /// Reads of an invalid kernel index.
    pub index_faults: u64,
}

/// The kernel's limits on a packet. It would skip a packet beyond these limits and never return its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxLimits {
    pub(super) bytes: u32,
    pub(super) slots: u32,
}

/// The next packet to send.
#[derive(Clone, Copy, Debug)]
struct NextPacket {
    slots: u32,
    bytes: u32,
    /// True if all its pieces are bytes of frames, and the last one ends it.
    is_sound: bool,
}

impl NextPacket {
    /// Returns true if the kernel would accept it (net/xdp/xsk_queue.h, xp_aligned_validate_desc).
    #[inline]
    fn keeps_to(&self, limits: TxLimits) -> bool {
        let fits = (MIN_BYTES..=limits.bytes).contains(&self.bytes);
        self.is_sound && fits && self.slots <= limits.slots
    }
}

impl XskSender {
    pub(super) fn new(mut path: TxPath, socket: &Arc<XskSocket>) -> Self {
        path.copied = !socket.is_zero_copy();
        Self { path, socket: Arc::clone(socket) }
    }

    /// Sends the packets that the program has released, and frees the slots of packets that the kernel has
    /// completed. Never waits. Returns the number of freed slots. If the kernel has no room for a packet,
    /// it stays for the next call. Pass the same ring in each call.
    ///
    /// # Errors
    /// The interface is down or removed; unsent packets stay in the ring.
    ///
    /// # Panics
    /// If the ring's buffers are not of the socket's pool.
    #[inline]
    pub fn send(&mut self, ring: &mut Ring) -> Result<u32> {
        let mut slots = 0;
        loop {
            let before = self.path.next;
            slots += self.path.send(ring);
            let driven = self.drive();
            let TxPath { copied, next, tx, .. } = &mut self.path;
            let more = *copied && *next != before && *next != ring.head();
            if driven.is_err() || !more || tx.waiting() > 0 {
                slots += self.path.reap(ring);
                return driven.map(|()| slots);
            }
        }
    }

    /// Counts the released packets that the kernel has not completed.
    pub fn unsent(&self, ring: &Ring) -> u64 {
        self.path.unsent(ring)
    }

    /// Returns true if packets wait for another [`send`](Self::send): the transmit ring has no room for
    /// them, or the kernel needs another call.
    pub(crate) fn needs_send(&mut self, ring: &Ring) -> bool {
        let TxPath { next, tx, .. } = &mut self.path;
        let called = tx.needs_wakeup() || self.socket.busy_polls();
        *next != ring.head() || called && tx.waiting() > 0
    }

    /// Returns the socket, for its statistics and waiting.
    pub fn socket(&self) -> &Arc<XskSocket> {
        &self.socket
    }

    /// Returns the counters since the sender was opened. The socket has the kernel's counters.
    pub fn stats(&self) -> SenderStats {
        self.path.stats()
    }

    /// Calls the kernel until it has emptied the transmit ring, or accepts no more: in copy mode it sends
    /// 32 packets per call, 256 since Linux 6.17, and only when called. Each sync checks, not only one that
    /// has added packets, because the kernel may request a call later.
    fn drive(&mut self) -> Result<()> {
        let TxPath { tx, stats, copied, .. } = &mut self.path;
        let mut waiting = tx.waiting();
        // Each call consumes at least one packet; this limit ends the loop if a call does not.
        let mut calls = waiting;
        while waiting > 0 && calls > 0 && (tx.needs_wakeup() || self.socket.busy_polls()) {
            let dropped = self.socket.drive_tx()?;
            let left = tx.waiting();
            if dropped && *copied {
                // The kernel's index may lag behind the dropped packet.
                stats.dropped += 1;
            } else if left == waiting {
                return Ok(());
            }
            waiting = left;
            calls -= 1;
        }
        Ok(())
    }
}

impl Drop for XskSender {
    fn drop(&mut self) {
        self.socket.keep(self.path.take_frames());
    }
}

/// Transmit ring and completion ring, and the frames between them.
#[derive(Debug)]
pub(super) struct TxPath {
    umem: Umem,
    tx: Producer<xdp_desc>,
    completion: Consumer<u64>,
    limits: TxLimits,
    /// In copy mode, the kernel gets one call's worth of frames at a time, which stay in the cache until
    /// they are copied.
    copied: bool,
    /// The first slot whose frame the kernel holds; `next` if there is none.
    done: u32,
    /// The next slot to send.
    next: u32,
    /// Frames lent to the kernel: as many as the slots from `done` to `next`.
    lent: Frames,
    /// Number of packets in these frames.
    packets: u32,
    stats: SenderStats,
}

impl TxPath {
    pub(super) fn new(
        umem: &Umem,
        tx: Producer<xdp_desc>,
        completion: Consumer<u64>,
        limits: TxLimits,
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

    /// Fills the transmit ring as far as there is room. Returns the number of freed slots.
    #[inline]
    pub(super) fn send(&mut self, ring: &mut Ring) -> u32 {
        assert!(ring.uses_pool(self.umem.pool()), "the ring is of another pool");
        let mut freed = self.reap(ring);
        let most = if self.copied { TX_SKB_BUDGET } else { u32::MAX };
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

    /// Takes back the frames of completed packets. Returns the number of freed slots.
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
            // One slot stays with the backend: free slots end before the first one without a buffer.
            ring.publish(ring.before(self.done));
        }
        freed
    }

    /// Counts the packets that the kernel holds and those that wait for room.
    fn unsent(&self, ring: &Ring) -> u64 {
        u64::from(self.packets) + ring.pending_tx(self.next).count() as u64
    }

    /// Returns the next packet. None if no packet was released, or its end was not.
    #[inline]
    fn next_packet(&self, ring: &Ring) -> Option<NextPacket> {
        let released = ring.distance(self.next, ring.head());
        let mut packet = NextPacket { slots: 0, bytes: 0, is_sound: true };
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
        // The packet fills the whole ring and can never end.
        let is_endless = released > 0 && released == ring.num_slots() - 1;
        is_endless.then_some(NextPacket { is_sound: false, ..packet })
    }

    /// Lends the next slot's frame to the kernel, as the `i`th entry of the batch.
    #[inline]
    fn write(&mut self, ring: &mut Ring, i: u32) {
        let slot = ring.take(self.next);
        let (buffer, offset) = (slot.buffer(), slot.offset());
        if self.copied {
            // Prefetches packets received on another CPU in parallel in place of one by one.
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

    /// Skips the next packet: its slots become free together with the earlier ones.
    fn refuse(&mut self, ring: &mut Ring, slots: u32) -> u32 {
        self.stats.refused += 1;
        for _ in 0..slots {
            let buffer = ring.take(self.next).buffer();
            self.next = ring.next(self.next);
            self.put_back(ring, buffer);
        }
        slots
    }

    /// Gives a buffer to the first slot without one.
    #[inline]
    fn put_back(&mut self, ring: &mut Ring, buffer: u32) {
        // SAFETY: the buffer came out of a slot of this ring, and the kernel has returned it.
        #[allow(unsafe_code, reason = "buffers change hands by number")]
        let held = unsafe { ring.fill_at(self.done, buffer, 0, 0, false) };
        debug_assert!(held == 0, "slot {} had buffer {held}", self.done);
        self.done = ring.next(self.done);
    }

    fn stats(&self) -> SenderStats {
        let index_faults = self.tx.faults() + self.completion.faults();
        SenderStats { index_faults, ..self.stats }
    }

    /// Takes all frames that are not in slots. The kernel may use them until the socket is closed.
    pub(super) fn take_frames(&mut self) -> Vec<u32> {
        self.lent.drain()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
