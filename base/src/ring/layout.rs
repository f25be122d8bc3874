//! The ring as it lies in memory: netmap's `struct netmap_ring` and `struct netmap_slot`
//! (sys/net/netmap.h, API 14), so that a netmap program can be served by sharing it.

use std::mem::{offset_of, size_of};

/// Flags of a [`Slot`], with netmap's values.
pub mod flags {
    /// The slot's buffer was exchanged since the last sync.
    pub const BUF_CHANGED: u16 = 1;
    /// The program wants to know when the slot has left; nothing here tells it apart.
    pub const REPORT: u16 = 2;
    /// The packet is to go on to the host; unused so far.
    pub const FORWARD: u16 = 4;
    /// A switch shall not learn from the packet; unused so far.
    pub const NO_LEARN: u16 = 8;
    /// The bytes are where `ptr` says, not in the pool: look or copy, but do not swap.
    pub const INDIRECT: u16 = 0x10;
    /// The packet goes on in the next slot.
    pub const MOREFRAG: u16 = 0x20;
}

/// One place in a ring: 16 bytes that name a packet's bytes.
///
/// Only the ring changes a slot, so that a buffer number is never in two slots and `ptr` never
/// comes from outside. `ptr` is an address in an INDIRECT slot; in any other it is where in the
/// buffer the packet starts (netmap's offset).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub(super) buf: u32,
    pub(super) len: u16,
    pub(super) flags: u16,
    pub(super) ptr: u64,
}

impl Slot {
    /// The pool's number for the slot's buffer; 0 for none.
    pub fn buffer(&self) -> u32 {
        self.buf
    }

    /// Bytes of the packet in this slot.
    pub fn bytes(&self) -> u16 {
        self.len
    }

    /// Where in the slot's buffer the packet starts; 0 where the bytes are outside the pool.
    pub fn offset(&self) -> u16 {
        if self.is_indirect() { 0 } else { self.ptr as u16 }
    }

    /// See [`flags`].
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// The packet goes on in the next slot.
    pub fn continues(&self) -> bool {
        self.flags & flags::MOREFRAG != 0
    }

    /// The bytes are outside the pool.
    pub fn is_indirect(&self) -> bool {
        self.flags & flags::INDIRECT != 0
    }
}

/// The head of a ring; `num_slots` slots follow it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct RingHeader {
    /// From the ring's own address to buffer 0 of its pool.
    pub buf_ofs: i64,
    /// Slots in the ring; need not be a power of two.
    pub num_slots: u32,
    /// Bytes in each buffer.
    pub nr_buf_size: u32,
    /// The queue's number.
    pub ringid: u16,
    /// 0 transmit, 1 receive.
    pub dir: u16,
    /// The program's: first slot it still owns.
    pub head: u32,
    /// The program's: where it has looked to; wakes when `cur != tail`.
    pub cur: u32,
    /// The backend's: first slot the program does not own.
    pub tail: u32,
    /// Ring flags of netmap; unused so far.
    pub flags: u32,
    _pad: u32,
    /// Time of the last sync: seconds, microseconds.
    pub ts: [i64; 2],
    /// Which bits of a slot's `ptr` are an offset into the buffer.
    pub offset_mask: u64,
    /// Alignment of buffers: none asked for.
    pub buf_align: u64,
    _pad2: [u64; 7],
    /// Scratch that netmap's `lb` uses between processes.
    pub sem: [u8; 128],
}

const _: () = {
    assert!(size_of::<Slot>() == 16);
    assert!(offset_of!(Slot, buf) == 0);
    assert!(offset_of!(Slot, len) == 4);
    assert!(offset_of!(Slot, flags) == 6);
    assert!(offset_of!(Slot, ptr) == 8);

    assert!(size_of::<RingHeader>() == 256);
    assert!(align_of::<RingHeader>() == 128);
    assert!(offset_of!(RingHeader, buf_ofs) == 0);
    assert!(offset_of!(RingHeader, num_slots) == 8);
    assert!(offset_of!(RingHeader, nr_buf_size) == 12);
    assert!(offset_of!(RingHeader, ringid) == 16);
    assert!(offset_of!(RingHeader, dir) == 18);
    assert!(offset_of!(RingHeader, head) == 20);
    assert!(offset_of!(RingHeader, cur) == 24);
    assert!(offset_of!(RingHeader, tail) == 28);
    assert!(offset_of!(RingHeader, flags) == 32);
    assert!(offset_of!(RingHeader, ts) == 40);
    assert!(offset_of!(RingHeader, offset_mask) == 56);
    assert!(offset_of!(RingHeader, buf_align) == 64);
    assert!(offset_of!(RingHeader, sem) == 128);
};

impl RingHeader {
    /// A header with every slot the backend's.
    pub(super) fn new(buf_ofs: i64, num_slots: u32, nr_buf_size: u32, transmit: bool) -> Self {
        Self {
            buf_ofs,
            num_slots,
            nr_buf_size,
            ringid: 0,
            dir: if transmit { 0 } else { 1 },
            head: 0,
            cur: 0,
            tail: if transmit { num_slots - 1 } else { 0 },
            flags: 0,
            _pad: 0,
            ts: [0; 2],
            offset_mask: u64::from(u16::MAX),
            buf_align: 0,
            _pad2: [0; 7],
            sem: [0; 128],
        }
    }
}
