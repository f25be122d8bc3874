//! The program's restricted access to a ring: everything but the exchange of whole rings.
//!
//! A queue lends its rings through [`RingMut`] and not as `&mut Ring`, because two `&mut Ring` can be
//! swapped. A ring whose slots point into one queue's memory would then stay with another queue, and
//! outlive that memory.
#![allow(unsafe_code)]

use std::ops::Deref;

use super::{Meta, Packet, Ring, Slot, flags};

/// A ring lent by the queue of a port. It dereferences to [`Ring`] for reading.
#[derive(Debug)]
pub struct RingMut<'a>(&'a mut Ring);

impl Deref for RingMut<'_> {
    type Target = Ring;

    #[inline]
    fn deref(&self) -> &Ring {
        self.0
    }
}

/// Counts of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swapped {
    /// Slots whose buffers were exchanged.
    pub slots: u32,
    /// Whole packets in them.
    pub packets: u32,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Counts of packets put into a transmit ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Packets.
    pub packets: u32,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
}

impl<'a> RingMut<'a> {
    /// Wraps a ring to lend it to a program.
    pub fn new(ring: &'a mut Ring) -> Self {
        Self(ring)
    }

    /// Gives the first `n` slots back to the backend: packets that were read, or packets to send.
    ///
    /// # Panics
    /// If the program owns fewer slots.
    #[inline]
    pub fn release(&mut self, n: u32) {
        self.0.release(n);
    }

    /// Returns the bytes in a slot that the program owns, to rewrite in place: those of its buffer, or those that
    /// an INDIRECT slot points at.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn bytes_mut(&mut self, index: u32) -> &mut [u8] {
        self.assert_owned(index);
        let slot = self.slot(index);
        let (start, len) = (self.start_of(index, slot), usize::from(slot.len));
        // SAFETY: as in `bytes_unchecked`; `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Returns the metadata of a slot that the program owns, for writing.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn meta_mut(&mut self, index: u32) -> &mut Meta {
        self.0.assert_owned(index);
        self.0.meta_mut(index)
    }

    /// Returns the whole buffer of a slot that the program owns, to build a packet in; empty if the slot
    /// has none. Call [`set_bytes`](Self::set_bytes) afterwards.
    ///
    /// # Panics
    /// On a slot the program does not own.
    #[inline]
    pub fn buffer_mut(&mut self, index: u32) -> &mut [u8] {
        self.assert_owned(index);
        self.copy_in(index);
        self.0.start_at_zero(index);
        // SAFETY: the program owns the slot.
        unsafe { self.0.buffer_unchecked(index) }
    }

    /// Sets the packet's length in a slot's buffer, and whether the packet continues in the next slot.
    ///
    /// # Panics
    /// If the buffer is shorter, or on a slot the program does not own.
    #[inline]
    pub fn set_bytes(&mut self, index: u32, bytes: u16, continues: bool) {
        self.0.assert_owned(index);
        self.0.copy_in(index);
        self.0.set_bytes(index, bytes, continues);
    }

    /// Copies one packet into the transmit ring, over as many slots as it needs, and gives them to the
    /// backend. Returns false, without effect, if there is no room, or never will be
    /// ([`can_ever_hold`](Ring::can_ever_hold)). The bytes of a frame begin with the link header and exclude
    /// the frame check sequence. Interfaces need no metadata (`Meta::default()`); a capture file writes it,
    /// or the current time if the time is 0, and at least the packet's length.
    #[inline]
    pub fn push(&mut self, packet: &Packet<'_>) -> bool {
        let size = self.pool.buffer_bytes().min(u32::from(u16::MAX)) as usize;
        let total = packet.captured_bytes();
        let needed = self.slots_for(packet);
        if needed > self.available() {
            return false;
        }
        let mut index = self.head();
        *self.0.meta_mut(index) = *packet.meta();
        let mut filled = 0;
        let mut left = total;
        for mut segment in packet.segments() {
            while !segment.is_empty() {
                if filled == size {
                    index = self.next(index);
                    filled = 0;
                }
                let n = segment.len().min(size - filled);
                let (now, later) = segment.split_at(n);
                self.buffer_mut(index)[filled..filled + n].copy_from_slice(now);
                segment = later;
                filled += n;
                left -= n;
                self.0.set_bytes(index, filled as u16, left > 0 && filled == size);
            }
        }
        if total == 0 {
            self.0.start_at_zero(index);
            self.0.set_bytes(index, 0, false);
        }
        self.release(needed);
        true
    }

    /// Builds up to `most` packets, one per slot, as long as there is room. `build` gets the slot's whole
    /// buffer ([`Ring::buffer_bytes`]) and returns the packet's length, or None to stop; longer packets need
    /// [`push`](Self::push). Stops at a slot without a buffer. Gives the slots to the backend;
    /// `Queue::sync_tx` has an example.
    ///
    /// A packet is whole, from its Ethernet addresses on, with its checksums; the MAC addresses are those of
    /// `link::interface` and `link::NextHops`. Shorter frames than 60 bytes are padded by cards.
    ///
    /// Leaves the metadata unchanged. Interfaces need none, but a capture file writes it, with the current time if
    /// the time is 0: clear it by [`meta_mut`](Self::meta_mut), from [`Ring::head`] on, if the ring has carried
    /// other packets.
    ///
    /// # Panics
    /// If a packet is longer than its buffer.
    #[inline]
    pub fn build(
        &mut self,
        most: u32,
        mut build: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Filled {
        let mut filled = Filled::default();
        let mut at = self.head();
        let room = self.available().min(most);
        while filled.packets < room {
            // SAFETY: the program owns the slot, one of `available` from the head on.
            let buffer = unsafe { self.0.buffer_unchecked(at) };
            let limit = buffer.len().min(u16::MAX.into());
            if limit == 0 {
                break;
            }
            let Some(bytes) = build(buffer) else { break };
            assert!(bytes <= limit, "{bytes} bytes built in a buffer of {limit}");
            let slot = self.0.slot_mut(at);
            (slot.ptr, slot.len, slot.flags) = (0, bytes as u16, 0);
            filled.packets += 1;
            filled.bytes += bytes as u64;
            at = self.next(at);
        }
        self.release(filled.packets);
        filled
    }

    /// Moves whole packets to a transmit ring of the same pool by exchanging buffers, without copying but for
    /// SHARED slots. Stops at `max` slots, at the end of either ring, or before a packet with an INDIRECT
    /// slot, which has to be copied. Gives the slots of both rings back.
    #[inline]
    pub fn swap_packets(&mut self, to: &mut RingMut<'_>, max: u32) -> Swapped {
        let mut swapped = Swapped::default();
        if !self.uses_pool(&to.pool) {
            return swapped;
        }
        let mut limit = max.min(self.available()).min(to.available());
        // Whole packets only: the other ring's backend may send them at once.
        while limit > 0 && self.slot(self.after(self.head(), limit - 1)).continues() {
            limit -= 1;
        }
        let (mut from_index, mut to_index) = (self.head(), to.head());
        let mut is_begun = false;
        while swapped.slots < limit {
            if !is_begun {
                let run = self.swap_run(from_index, to, to_index, limit - swapped.slots);
                swapped.slots += run.slots;
                swapped.packets += run.packets;
                swapped.bytes += run.bytes;
                from_index = self.after(from_index, run.slots);
                to_index = to.after(to_index, run.slots);
                if swapped.slots == limit {
                    break;
                }
            }
            let (source, target) = (self.slot(from_index), to.slot(to_index));
            if !can_swap(source, target)
                || source.continues() && !is_begun && !self.can_swap_rest(from_index, to, to_index)
            {
                if source.is_shared() {
                    self.copy_in(from_index);
                    continue;
                }
                break;
            }
            is_begun = source.continues();
            let emptied = Slot { ptr: 0, buf: target.buf, flags: flags::BUF_CHANGED, ..source };
            *self.0.slot_mut(from_index) = emptied;
            *to.0.slot_mut(to_index) = Slot { flags: source.flags | flags::BUF_CHANGED, ..source };
            swapped.bytes += u64::from(source.len);
            swapped.packets += u32::from(!is_begun);
            *to.0.meta_mut(to_index) = *self.meta(from_index);
            from_index = self.next(from_index);
            to_index = to.next(to_index);
            swapped.slots += 1;
        }
        self.release(swapped.slots);
        to.release(swapped.slots);
        swapped
    }

    /// Swaps packets of one slot, at most `max`, up to the end of either array. Nearly all packets take this
    /// path, which has no index to check or wrap.
    #[inline(always)]
    fn swap_run(&mut self, from: u32, to: &mut RingMut<'_>, at: u32, max: u32) -> Swapped {
        let (from, at) = (from as usize, at as usize);
        let (sources, targets) = (&mut self.0.slots[from..], &mut to.0.slots[at..]);
        let run = sources.len().min(targets.len()).min(max as usize);
        let sources = sources[..run].iter_mut().zip(&self.0.metas[from..][..run]);
        let targets = targets[..run].iter_mut().zip(&mut to.0.metas[at..][..run]);
        let mut swapped = Swapped::default();
        for ((source, meta), (target, target_meta)) in sources.zip(targets) {
            let (slot, room) = (source.get(), target.get());
            if !can_swap(slot, room) || slot.continues() {
                break;
            }
            source.set(Slot { ptr: 0, buf: room.buf, flags: flags::BUF_CHANGED, ..slot });
            target.set(Slot { flags: slot.flags | flags::BUF_CHANGED, ..slot });
            *target_meta = *meta;
            swapped.slots += 1;
            swapped.bytes += u64::from(slot.len);
        }
        swapped.packets = swapped.slots;
        swapped
    }

    /// Replaces the first `cut` bytes of a slot that the program owns by `head`. Returns false, without
    /// effect, if the slot has fewer bytes or no room for a longer `head`.
    pub fn replace_front(&mut self, index: u32, cut: usize, head: &[u8]) -> bool {
        self.assert_owned(index);
        self.copy_in(index);
        let slot = self.slot(index);
        let Some(rest) = usize::from(slot.len).checked_sub(cut) else { return false };
        let Ok(len) = u16::try_from(head.len() + rest) else { return false };
        if slot.is_indirect() {
            // The memory before an INDIRECT packet's bytes belongs to something else.
            let Some(skip) = cut.checked_sub(head.len()) else { return false };
            self.bytes_mut(index)[skip..cut].copy_from_slice(head);
            let slot = self.0.slot_mut(index);
            (slot.ptr, slot.len) = (slot.ptr + skip as u64, len);
            return true;
        }
        let keep_from = usize::from(slot.offset()) + cut;
        // SAFETY: the program owns the slot.
        let buffer = unsafe { self.0.buffer_unchecked(index) };
        let first = match keep_from.checked_sub(head.len()) {
            Some(first) => first,
            None if head.len() + rest <= buffer.len() => {
                buffer.copy_within(keep_from..keep_from + rest, head.len());
                0
            }
            None => return false,
        };
        buffer[first..first + head.len()].copy_from_slice(head);
        let slot = self.0.slot_mut(index);
        (slot.ptr, slot.len) = (first as u64, len);
        true
    }
}

impl Ring {
    /// Returns true if the packet fits into an empty ring.
    #[inline]
    pub fn can_ever_hold(&self, packet: &Packet<'_>) -> bool {
        self.slots_for(packet) < self.num_slots()
    }

    #[inline]
    fn slots_for(&self, packet: &Packet<'_>) -> u32 {
        let size = self.pool.buffer_bytes().min(u32::from(u16::MAX)) as usize;
        match packet.captured_bytes() {
            // The usual case, without a division.
            bytes if bytes <= size => 1,
            bytes => bytes.div_ceil(size) as u32,
        }
    }

    /// Returns true if all further slots of a packet can be exchanged. The packet's last slot is in the
    /// ring.
    #[cold]
    fn can_swap_rest(&self, from_index: u32, to: &Self, to_index: u32) -> bool {
        let (mut from_index, mut to_index) = (from_index, to_index);
        while self.slot(from_index).continues() {
            (from_index, to_index) = (self.next(from_index), to.next(to_index));
            self.copy_in(from_index);
            if !can_swap(self.slot(from_index), to.slot(to_index)) {
                return false;
            }
        }
        true
    }
}

/// Returns true if both slots hold buffers of their own.
#[inline]
fn can_swap(source: Slot, target: Slot) -> bool {
    !source.is_external() && source.buf != 0 && target.buf != 0
}
