//! Receiving: frames that come back full from the receive ring, and go out empty to the fill
//! ring.
//!
//! For each packet the slot takes the frame it came in, and the buffer the slot held before goes
//! to the kernel in exchange: ring and kernel always have the same number of buffers each, and
//! not a byte is copied. Where the fill ring has no room the buffer waits for the next call.

use std::sync::Arc;

use libc::xdp_desc;

use super::ring::{Consumer, Producer};
use super::socket::XskSocket;
use super::stamp::{Stamp, Stamps};
use super::umem::{FrameAddress, Frames, Umem};
use crate::error::Result;
use sluicegate_base::ring::{Direction, Meta, Ring};

/// The receiving side of an AF_XDP socket.
#[derive(Debug)]
pub struct Receiver {
    intake: RxRings,
    // Last: the rings are unmapped before the socket ends.
    socket: Arc<XskSocket>,
}

/// What one call has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets.
    pub packets: u32,
    /// Slots they take.
    pub slots: u32,
}

/// What a receiver has seen since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Packets put into slots.
    pub received: u64,
    /// Packets of more slots than the ring has.
    pub too_long: u64,
    /// Packets of which a part was not where it could be: not in the pool, in a frame the kernel
    /// did not have, beyond its frame's end.
    pub refused: u64,
    /// Looks at which one of the kernel's indices made no sense.
    pub index_faults: u64,
}

impl Receiver {
    pub(super) fn new(intake: RxRings, socket: &Arc<XskSocket>) -> Self {
        Self { intake, socket: Arc::clone(socket) }
    }

    /// Puts the packets that have arrived into the slots that the program has given back, and
    /// gives the kernel empty frames. Never waits. A packet is shown whole, however many slots
    /// it takes. The ring is always the same one.
    ///
    /// # Errors
    /// The interface is gone; packets in the ring stay valid.
    ///
    /// # Panics
    /// If the ring's buffers are not of the pool that the socket was opened with.
    #[inline]
    pub fn receive(&mut self, ring: &mut Ring) -> Result<Received> {
        if let Some(stamps) = &mut self.intake.stamps {
            stamps.begin_batch();
        }
        let received = self.intake.receive(ring);
        // In every call, not only after frames were given: the kernel may have asked later.
        self.socket.drive_rx(self.intake.fill.needs_wakeup(), received.packets == 0)?;
        Ok(received)
    }

    /// Whether packets have arrived that are not in slots yet.
    #[inline]
    pub fn has_packets(&mut self) -> bool {
        self.intake.rx.peek() > 0
    }

    /// How many packets, or pieces of packets, have arrived that are not in slots yet.
    #[inline]
    pub(crate) fn available(&mut self) -> u32 {
        self.intake.rx.peek()
    }

    /// Gives each packet the time that the claim's program has written in front of it.
    pub(crate) fn read_stamps(&mut self, stamp: Stamp) {
        self.intake.stamps = (stamp != Stamp::None).then(|| Stamps::new(stamp));
    }

    /// Shows at most so many bytes of each packet, 1 at least; its metadata says how many it had.
    pub fn set_snaplen(&mut self, bytes: u32) {
        self.intake.snaplen = bytes.max(1);
    }

    /// What the metadata of each packet starts from; its length and direction are filled in.
    pub fn set_meta(&mut self, meta: Meta) {
        self.intake.meta = meta;
    }

    /// The socket, for an XSKMAP, its statistics and waiting.
    pub fn socket(&self) -> &Arc<XskSocket> {
        &self.socket
    }

    /// Counts since it was opened. What the kernel has counted is the socket's to say.
    pub fn stats(&self) -> ReceiverStats {
        self.intake.stats()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.socket.keep(self.intake.take_frames());
    }
}

/// Receive ring and fill ring, and the frames between them.
#[derive(Debug)]
pub(super) struct RxRings {
    umem: Umem,
    rx: Consumer<xdp_desc>,
    fill: Producer<u64>,
    /// Frames that the kernel has.
    lent: Frames,
    /// Buffers that wait for room in the fill ring. With the lent ones they are always as many
    /// as at the start, so it never grows beyond the room it was made with.
    spare: Vec<u32>,
    /// The packet that is not whole yet: its slots, behind the ring's tail, and their bytes.
    unfinished: Unfinished,
    /// The rest of the packet that is coming is to be left out.
    discarding: bool,
    /// Bytes that are shown of a packet.
    snaplen: u32,
    meta: Meta,
    /// Where packets have a time in front of them.
    stamps: Option<Stamps>,
    stats: ReceiverStats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Unfinished {
    slots: u32,
    bytes: u32,
}

impl RxRings {
    /// Lends `frames` to the kernel: the caller holds them, and nobody else.
    pub(super) fn new(
        umem: &Umem,
        rx: Consumer<xdp_desc>,
        fill: Producer<u64>,
        frames: Vec<u32>,
    ) -> Self {
        let mut intake = Self {
            umem: umem.clone(),
            rx,
            fill,
            lent: umem.no_frames(),
            spare: frames,
            unfinished: Unfinished::default(),
            discarding: false,
            snaplen: u32::MAX,
            meta: Meta::default(),
            stamps: None,
            stats: ReceiverStats::default(),
        };
        intake.refill();
        intake
    }

    #[inline]
    pub(super) fn receive(&mut self, ring: &mut Ring) -> Received {
        assert!(ring.uses_pool(self.umem.pool()), "the ring is of another pool");
        let mut received = Received::default();
        let found = self.rx.peek();
        let mut taken = 0;
        while taken < found && self.has_slot(ring) {
            let descriptor = self.rx.read(taken);
            taken += 1;
            if let Some(slots) = self.take(descriptor, ring) {
                received.packets += 1;
                received.slots += slots;
            }
        }
        if taken > 0 {
            self.rx.release(taken);
        }
        self.stats.received += u64::from(received.packets);
        self.refill();
        received
    }

    /// Whether the next piece has a place to go. One of a packet that has filled the whole ring
    /// and still goes on has none ever, and is let go.
    #[inline]
    fn has_slot(&mut self, ring: &Ring) -> bool {
        let left_out = self.discarding || self.unfinished.bytes >= self.snaplen;
        if left_out || self.unfinished.slots < ring.room() {
            return true;
        }
        let endless = self.unfinished.slots == ring.num_slots() - 1;
        if endless {
            self.stats.too_long += 1;
            self.leave_out();
        }
        endless
    }

    /// Takes one piece of a packet. Where that makes it whole, shows it and says how many slots
    /// it has.
    #[inline]
    fn take(&mut self, descriptor: xdp_desc, ring: &mut Ring) -> Option<u32> {
        let continues = descriptor.options & libc::XDP_PKT_CONTD != 0;
        match self.admit(descriptor) {
            Some(place) if self.discarding => self.spare.push(place.buffer),
            Some(FrameAddress { buffer, offset, bytes }) => {
                // As long as some are, all pieces before are whole.
                let left = self.snaplen.saturating_sub(self.unfinished.bytes);
                if left == 0 {
                    self.spare.push(buffer);
                } else {
                    let shown = u32::from(bytes).min(left);
                    let goes_on = continues && shown < left;
                    let at = ring.after(ring.tail(), self.unfinished.slots);
                    // SAFETY: the kernel has given the frame back, which `admit` has checked; `held` goes to
                    // `spare`.
                    #[allow(unsafe_code, reason = "buffers change hands by number")]
                    let held = unsafe { ring.fill_at(at, buffer, offset, shown as u16, goes_on) };
                    if held != 0 {
                        self.spare.push(held);
                    }
                    self.unfinished.slots += 1;
                }
                self.unfinished.bytes = self.unfinished.bytes.saturating_add(bytes.into());
            }
            None if self.discarding => {}
            None => {
                self.stats.refused += 1;
                self.leave_out();
            }
        }
        if continues {
            return None;
        }
        if std::mem::take(&mut self.discarding) {
            return None;
        }
        let Unfinished { slots, bytes } = std::mem::take(&mut self.unfinished);
        let first = ring.tail();
        let mut meta = Meta { wire_bytes: bytes, direction: Direction::In, ..self.meta };
        if let Some(stamps) = &mut self.stamps {
            stamps.read(ring.headroom_mut(first, stamps.bytes()), &mut meta);
        }
        *ring.meta_mut(first) = meta;
        ring.publish(ring.after(first, slots));
        Some(slots)
    }

    /// Where a piece lies, if it can lie there; its frame is ours from then on. A frame that has
    /// come back with a length that cannot be is ours, too.
    #[inline]
    fn admit(&mut self, descriptor: xdp_desc) -> Option<FrameAddress> {
        let buffer = self.umem.frame_of(descriptor.addr)?;
        self.lent.take_back(buffer)?;
        let place = self.umem.locate(descriptor.addr, descriptor.len);
        if place.is_none() {
            self.spare.push(buffer);
        }
        place
    }

    /// Leaves the packet that is coming out, up to its end. Its slots keep the frames they have
    /// taken: one is as good as another.
    fn leave_out(&mut self) {
        self.unfinished = Unfinished::default();
        self.discarding = true;
    }

    /// Gives the kernel as many empty frames as the fill ring has room for, the last one used
    /// first: it is still in the cache.
    #[inline]
    fn refill(&mut self) {
        let n = self.fill.reserve(self.spare.len() as u32);
        let kept = self.spare.len() - n as usize;
        for (i, &buffer) in (0..n).zip(self.spare[kept..].iter().rev()) {
            let is_new = self.lent.lend(buffer, false);
            debug_assert!(is_new, "buffer {buffer} has two holders");
            self.fill.write(i, self.umem.address(buffer, 0));
        }
        if n > 0 {
            self.spare.truncate(kept);
            self.fill.submit(n);
        }
    }

    fn stats(&self) -> ReceiverStats {
        ReceiverStats { index_faults: self.rx.faults() + self.fill.faults(), ..self.stats }
    }

    /// All frames that are not in slots. Some are the kernel's until the socket has ended.
    pub(super) fn take_frames(&mut self) -> Vec<u32> {
        let mut frames = self.lent.drain();
        frames.append(&mut self.spare);
        frames
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
