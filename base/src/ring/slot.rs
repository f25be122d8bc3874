//! A slot of a ring: 16 bytes that locate a packet's bytes, and beside them its metadata: time, length
//! on the wire, VLAN tag, hash, direction, interface.

use std::mem::size_of;
use std::time::SystemTime;

/// Flags of a [`Slot`], with netmap's values (sys/net/netmap.h).
pub mod flags {
    /// The slot's buffer was exchanged since the last sync.
    pub const BUF_CHANGED: u16 = 1;
    /// The bytes are at the slot's pointer, not in the pool: look or copy, but do not swap.
    pub const INDIRECT: u16 = 0x10;
    /// The packet continues in the next slot.
    pub const MOREFRAG: u16 = 0x20;
}

/// The buffer number, length, flags and pointer of a packet, or of a piece of one.
///
/// Only the ring changes a slot, so a buffer number is never in two slots and `ptr` never comes from
/// outside. `ptr` is an address in an INDIRECT slot; in any other it is the packet's offset in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub(super) ptr: u64,
    pub(super) buf: u32,
    pub(super) len: u16,
    pub(super) flags: u16,
}

impl Slot {
    /// The pool's number for the slot's buffer; 0 for none.
    #[inline]
    pub fn buffer(&self) -> u32 {
        self.buf
    }

    /// Bytes of the packet in this slot.
    #[inline]
    pub fn bytes(&self) -> u16 {
        self.len
    }

    /// Where in the slot's buffer the packet starts; 0 if the bytes are outside the pool.
    #[inline]
    pub fn offset(&self) -> u16 {
        if self.is_indirect() { 0 } else { self.ptr as u16 }
    }

    /// See [`flags`].
    #[inline]
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// The packet continues in the next slot.
    #[inline]
    pub fn continues(&self) -> bool {
        self.flags & flags::MOREFRAG != 0
    }

    /// The bytes are outside the pool.
    #[inline]
    pub fn is_indirect(&self) -> bool {
        self.flags & flags::INDIRECT != 0
    }
}

/// Metadata of a packet, one entry beside each slot; a packet of several slots has it at the
/// first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// When it was seen: nanoseconds since 1970 (UTC).
    pub timestamp_ns: u64,
    /// Bytes it had on the wire, without the frame check sequence; the ring may hold fewer.
    pub wire_bytes: u32,
    /// The receive hash, where the backend knows it; 0 otherwise.
    pub hash: u32,
    /// Packets known to be lost between the one before and this one.
    pub drops_before: u32,
    /// The VLAN tag that the kernel had taken out and the backend put back: control
    /// information, 0 where there was none.
    pub vlan_tci: u16,
    /// That tag's protocol: 0x8100, 0x88a8; 0 where there was none.
    pub vlan_tpid: u16,
    /// Which of the port's interfaces it belongs to: 0 but for files that hold several,
    /// and `packet:any`.
    pub interface: u32,
    /// The source of the time.
    pub timestamp_source: TimestampSource,
    /// Which way it went.
    pub direction: Direction,
}

const _: () = assert!(size_of::<Meta>() == 32);

/// The source of a packet's timestamp.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampSource {
    /// None: the time is 0.
    #[default]
    None,
    /// The kernel, on the way up.
    Software,
    /// The card.
    Hardware,
    /// The file it was read from.
    File,
}

/// This moment as [`Meta::timestamp_ns`] has it. Not for each packet: once per batch.
#[cold]
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Which way a packet went, as the host sees it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The backend does not report it.
    #[default]
    Unknown,
    /// Towards the host, or past it in promiscuous mode.
    In,
    /// Sent by the host.
    Out,
}

/// An interface of a port or file; [`Meta::interface`] is its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name: "eth0"; empty where a file does not say.
    pub name: String,
    /// The link type of its packets: a LINKTYPE_ number (tcpdump.org); 1 is Ethernet.
    pub link_type: u16,
    /// The most bytes of a packet that are kept; 0 means no limit.
    pub snaplen: u32,
    /// A comment, for example on its clock.
    pub comment: String,
}

/// The link type of Ethernet.
pub const LINKTYPE_ETHERNET: u16 = 1;
