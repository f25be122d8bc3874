//! Receiving: full frames come back from the receive ring, and empty ones go out to the fill ring.
//!
//! For each packet, the slot takes the packet's frame, and the kernel gets the slot's previous buffer in
//! exchange. The ring and the kernel each keep their number of buffers, and nothing is copied. If the fill
//! ring has no room, the buffer waits for the next call.

use std::sync::Arc;

use libc::xdp_desc;

use super::ring::{Consumer, Producer};
use super::rx_metadata::{RxMetadata, RxMetadataReader};
use super::socket::XskSocket;
use super::umem::{FrameAddress, Frames, Umem};
use crate::error::Result;
use sluicegate_base::ring::{Direction, Meta, Ring};

/// The receiving side of an AF_XDP socket.
#[derive(Debug)]
pub struct XskReceiver {
    rings: RxRings,
    // Last: the rings are unmapped before the socket is closed.
    socket: Arc<XskSocket>,
}

/// Result of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets.
    pub packets: u32,
    /// Slots that they occupy.
    pub slots: u32,
}

/// Counters of a receiver since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Packets put into slots.
    pub received: u64,
    /// Packets that need more slots than the ring has.
    pub too_long: u64,
    /// Packets with an invalid piece: outside the pool, in a frame that was not lent, or beyond its frame's
    /// end.
    pub refused: u64,
    /// Reads of an invalid kernel index.
    pub index_faults: u64,
}

impl XskReceiver {
    pub(super) fn new(rings: RxRings, socket: &Arc<XskSocket>) -> Self {
        Self { rings, socket: Arc::clone(socket) }
    }

    /// Moves arrived packets into the slots that the program has released, and gives the kernel empty
    /// frames. Never waits. A packet becomes available as a whole, however many slots it takes. Pass
    /// the same ring in each call.
    ///
    /// # Errors
    /// The interface was removed; packets in the ring stay valid.
    ///
    /// # Panics
    /// If the ring's buffers are not of the socket's pool.
    #[inline]
    pub fn receive(&mut self, ring: &mut Ring) -> Result<Received> {
        if let Some(metadata_reader) = &mut self.rings.metadata_reader {
            metadata_reader.begin_batch();
        }
        let received = self.rings.receive(ring);
        // In every call, not only after a refill, because the kernel may request it later.
        self.socket.drive_rx(self.rings.fill.needs_wakeup(), received.packets == 0)?;
        Ok(received)
    }

    /// Counts the packets, or pieces of packets, that have arrived but are not in slots yet.
    #[inline]
    pub fn available(&mut self) -> u32 {
        self.rings.rx.peek()
    }

    /// Reads each packet's time from the metadata in front of it.
    pub(crate) fn read_rx_metadata(&mut self, rx_metadata: RxMetadata) {
        self.rings.metadata_reader =
            (rx_metadata != RxMetadata::None).then(|| RxMetadataReader::new(rx_metadata));
    }

    /// Limits the bytes shown of each packet, at least 1; its metadata has the full length.
    pub fn set_snaplen(&mut self, bytes: u32) {
        self.rings.snaplen = bytes.max(1);
    }

    /// Returns the socket, to use in an XSKMAP, for statistics, or to wait.
    pub fn socket(&self) -> &Arc<XskSocket> {
        &self.socket
    }

    /// Returns the counters since the receiver was opened. The socket has the kernel's counters.
    pub fn stats(&self) -> ReceiverStats {
        self.rings.stats()
    }
}

impl Drop for XskReceiver {
    fn drop(&mut self) {
        self.socket.keep(self.rings.take_frames());
    }
}

/// Receive ring and fill ring, and the frames between them.
#[derive(Debug)]
pub(super) struct RxRings {
    umem: Umem,
    rx: Consumer<xdp_desc>,
    fill: Producer<u64>,
    /// Frames lent to the kernel.
    lent: Frames,
    /// Buffers that wait for room in the fill ring. The number of waiting and lent buffers is constant, so
    /// the vector never grows.
    spare: Vec<u32>,
    /// The packet whose end has not arrived: its slots, after the ring's tail, and their bytes.
    unfinished: Unfinished,
    /// True if the rest of the arriving packet is discarded.
    discarding: bool,
    snaplen: u32,
    /// Reads the timestamps in front of packets, if there are any.
    metadata_reader: Option<RxMetadataReader>,
    stats: ReceiverStats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Unfinished {
    slots: u32,
    bytes: u32,
}

impl RxRings {
    /// Lends `frames` to the kernel. The caller must be their only holder.
    pub(super) fn new(
        umem: &Umem,
        rx: Consumer<xdp_desc>,
        fill: Producer<u64>,
        frames: Vec<u32>,
    ) -> Self {
        let mut rings = Self {
            umem: umem.clone(),
            rx,
            fill,
            lent: umem.no_frames(),
            spare: frames,
            unfinished: Unfinished::default(),
            discarding: false,
            snaplen: u32::MAX,
            metadata_reader: None,
            stats: ReceiverStats::default(),
        };
        rings.refill();
        rings
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

    /// Returns true if the next piece has a slot or needs none. A packet that fills the whole ring and
    /// still continues is discarded.
    #[inline]
    fn has_slot(&mut self, ring: &Ring) -> bool {
        let left_out = self.discarding || self.unfinished.bytes >= self.snaplen;
        if left_out || self.unfinished.slots < ring.backend_slots() {
            return true;
        }
        let endless = self.unfinished.slots == ring.num_slots() - 1;
        if endless {
            self.stats.too_long += 1;
            self.discard();
        }
        endless
    }

    /// Takes one piece of a packet. If it is the last, publishes the packet and returns its slots.
    #[inline]
    fn take(&mut self, descriptor: xdp_desc, ring: &mut Ring) -> Option<u32> {
        let continues = descriptor.options & libc::XDP_PKT_CONTD != 0;
        match self.admit(descriptor) {
            Some(place) if self.discarding => self.spare.push(place.buffer),
            Some(FrameAddress { buffer, offset, bytes }) => {
                // While bytes are left, all previous pieces were shown completely.
                let left = self.snaplen.saturating_sub(self.unfinished.bytes);
                if left == 0 {
                    self.spare.push(buffer);
                } else {
                    let shown = u32::from(bytes).min(left);
                    let goes_on = continues && shown < left;
                    let at = ring.after(ring.tail(), self.unfinished.slots);
                    // SAFETY: the kernel has returned the frame, as `admit` has checked; `held` goes to
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
                self.discard();
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
        let mut meta = Meta { wire_bytes: bytes, direction: Direction::In, ..Meta::default() };
        if let Some(metadata_reader) = &mut self.metadata_reader {
            metadata_reader.read(ring.headroom_mut(first, metadata_reader.bytes()), &mut meta);
        }
        *ring.meta_mut(first) = meta;
        ring.publish(ring.after(first, slots));
        Some(slots)
    }

    /// Validates a piece and takes its frame back. None if the piece is invalid. A lent frame with an
    /// invalid length is taken back, too.
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

    /// Discards the arriving packet up to its end. Its slots keep the frames that they took.
    fn discard(&mut self) {
        self.unfinished = Unfinished::default();
        self.discarding = true;
    }

    /// Gives the kernel as many empty frames as the fill ring has room for, the most recently used first,
    /// because they are still in the cache.
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

    /// Takes all frames that are not in slots. The kernel may use them until the socket is closed.
    pub(super) fn take_frames(&mut self) -> Vec<u32> {
        let mut frames = self.lent.drain();
        frames.append(&mut self.spare);
        frames
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
