//! The structures in a region that netmap programs map: `netmap_slot`, `netmap_ring` and `netmap_if`
//! (sys/net/netmap.h, API 14 and 15, 64-bit).

use std::mem::{offset_of, size_of};

/// Flags of a [`Slot`], with netmap's values and meanings.
pub mod flags {
    pub use sluicegate_base::ring::flags::{BUF_CHANGED, MOREFRAG};

    /// The program wants to know when the slot was sent; accepted and without effect.
    pub const REPORT: u16 = 2;
    /// The packet is to be passed to the other side of the port: from the card to the host, or back.
    pub const FORWARD: u16 = 4;
    /// A switch shall not learn from the packet.
    pub const NO_LEARN: u16 = 8;
    /// The bytes are at `ptr`. Cards and switches drop the slot, because the engine reads no address of the program.
    pub const INDIRECT: u16 = 0x10;
    /// Marks a packet that a monitor saw on a transmit ring.
    pub const TXMON: u16 = 0x40;
}

/// Flags of a ring.
pub mod ring_flags {
    /// The program wants the time of each sync in `ts`; the engine writes it at every receive sync.
    pub const TIMESTAMP: u32 = 2;
    /// The slots with [`FORWARD`](super::flags::FORWARD) are passed to the other side of the port.
    pub const FORWARD: u32 = 4;
}

/// A flag of [`InterfaceHeader::ni_flags`]: the port has a region of its own.
pub const NI_PRIV_MEM: u32 = 1;

/// One slot of a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The number of the slot's buffer.
    pub buf_idx: u32,
    /// Bytes of the packet.
    pub len: u16,
    /// See [`flags`].
    pub flags: u16,
    /// The offset of the packet in the buffer.
    pub ptr: u64,
}

/// The header of a ring; `num_slots` slots follow it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct RingHeader {
    /// The distance from the ring's address to buffer 0 of its pool.
    pub buf_ofs: i64,
    /// Slots in the ring; not necessarily a power of two.
    pub num_slots: u32,
    /// Bytes in each buffer.
    pub nr_buf_size: u32,
    /// The queue's number.
    pub ringid: u16,
    /// 0 transmit, 1 receive.
    pub dir: u16,
    /// The first slot that the program owns. Written by the program.
    pub head: u32,
    /// The first slot that the program has not seen; it wakes when `cur != tail`. Written by the program.
    pub cur: u32,
    /// The first slot that the program does not own. Written by the backend.
    pub tail: u32,
    /// Flags of the ring; without effect.
    pub flags: u32,
    _pad: u32,
    /// Time of the last sync: seconds, microseconds.
    pub ts: [i64; 2],
    /// The bits of a slot's `ptr` that are an offset into the buffer.
    pub offset_mask: u64,
    /// Alignment of buffers; 0 for none.
    pub buf_align: u64,
    _pad2: [u64; 7],
    /// Scratch that netmap's `lb` uses between processes.
    pub sem: [u8; 128],
}

/// The header of a port; the offsets of its rings follow it, as `i64` from the header's address: the card's
/// transmit rings, the host's transmit rings, the card's receive rings, the host's receive rings. A ring that
/// the program did not ask for has offset 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct InterfaceHeader {
    /// The port's name, ended by a zero byte.
    pub ni_name: [u8; 16],
    /// The version of the API.
    pub ni_version: u32,
    /// [`NI_PRIV_MEM`] or 0.
    pub ni_flags: u32,
    /// Transmit rings of the card.
    pub ni_tx_rings: u32,
    /// Receive rings of the card.
    pub ni_rx_rings: u32,
    /// The first extra buffer; the first u32 of each is the next one, and 0 ends the list.
    pub ni_bufs_head: u32,
    /// Transmit rings to the host.
    pub ni_host_tx_rings: u32,
    /// Receive rings from the host.
    pub ni_host_rx_rings: u32,
    _spare: [u32; 3],
}

const _: () = {
    assert!(size_of::<InterfaceHeader>() == 56);
    assert!(offset_of!(InterfaceHeader, ni_name) == 0);
    assert!(offset_of!(InterfaceHeader, ni_version) == 16);
    assert!(offset_of!(InterfaceHeader, ni_flags) == 20);
    assert!(offset_of!(InterfaceHeader, ni_tx_rings) == 24);
    assert!(offset_of!(InterfaceHeader, ni_rx_rings) == 28);
    assert!(offset_of!(InterfaceHeader, ni_bufs_head) == 32);
    assert!(offset_of!(InterfaceHeader, ni_host_tx_rings) == 36);
    assert!(offset_of!(InterfaceHeader, ni_host_rx_rings) == 40);
};

const _: () = {
    assert!(size_of::<Slot>() == 16);
    assert!(offset_of!(Slot, buf_idx) == 0);
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
