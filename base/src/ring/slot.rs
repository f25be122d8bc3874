//! A slot of a ring (16 bytes that locate a packet's bytes), and its packet's metadata (time, length on the
//! wire, VLAN tag, hash, direction, interface, drops before).

use std::mem::size_of;
use std::ptr::NonNull;
use std::time::SystemTime;

/// Flags of a [`Slot`], with netmap's values (sys/net/netmap.h).
pub mod flags {
    /// The slot's buffer was exchanged since the last sync.
    pub const BUF_CHANGED: u16 = 1;
    /// The bytes are at the slot's pointer, not in the pool: read or copy them, but do not swap the slot.
    pub const INDIRECT: u16 = 0x10;
    /// The packet continues in the next slot.
    pub const MOREFRAG: u16 = 0x20;
    /// The bytes are in memory that another process may write, so no slice of them exists. The program's
    /// first look at them, or the next sync, copies them into the slot's buffer. Not a flag of netmap's.
    pub const SHARED: u16 = 0x80;
}

/// The buffer number, length, flags and pointer of a packet, or of a piece of one.
///
/// Only the ring changes a slot, so a buffer number is never in two slots and `ptr` never comes from
/// outside. `ptr` is an address in an INDIRECT or SHARED slot; in any other it is the packet's offset in the
/// buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub(super) ptr: u64,
    pub(super) buf: u32,
    pub(super) len: u16,
    pub(super) flags: u16,
}

impl Slot {
    /// Returns the number of the slot's buffer in the pool; 0 for none.
    #[inline]
    pub fn buffer(&self) -> u32 {
        self.buf
    }

    /// Returns the number of bytes of the packet in this slot.
    #[inline]
    pub fn bytes(&self) -> u16 {
        self.len
    }

    /// Returns the packet's offset in the slot's buffer; 0 if the bytes are not there.
    #[inline]
    pub fn offset(&self) -> u16 {
        if self.is_external() { 0 } else { self.ptr as u16 }
    }

    /// Returns the slot's [`flags`].
    #[inline]
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// Returns true if the packet continues in the next slot.
    #[inline]
    pub fn continues(&self) -> bool {
        self.flags & flags::MOREFRAG != 0
    }

    /// Returns true if the bytes are outside the pool, and stay there.
    #[inline]
    pub fn is_indirect(&self) -> bool {
        self.flags & flags::INDIRECT != 0
    }

    /// Returns true if the bytes are outside the pool until the ring copies them.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.flags & flags::SHARED != 0
    }

    /// Returns true if the bytes are outside the pool.
    #[inline]
    pub(super) fn is_external(&self) -> bool {
        self.flags & (flags::INDIRECT | flags::SHARED) != 0
    }

    /// Returns the address of bytes outside the pool.
    #[inline]
    pub(super) fn external_address(&self) -> Option<NonNull<u8>> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.ptr as usize))
    }
}

/// Metadata of a packet, one entry per slot. A packet of several slots has it at the first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Time of the packet: nanoseconds since 1970 (UTC); 0 if the port records none (`timestamp=off`).
    pub timestamp_ns: u64,
    /// Length on the wire, without the frame check sequence; the ring may hold fewer bytes.
    pub wire_bytes: u32,
    /// The receive hash if the backend knows it; otherwise 0.
    pub hash: u32,
    /// Known number of packets lost between the previous packet and this one.
    pub drops_before: u32,
    /// Control information of the VLAN tag that the kernel removed and the backend restored; 0 without one.
    pub vlan_tci: u16,
    /// Protocol of that tag: 0x8100, 0x88a8; 0 without one.
    pub vlan_tpid: u16,
    /// Index of the packet's interface in the port: 0 except in files with several interfaces, and
    /// `packet:any`.
    pub interface: u32,
    /// The source of the time.
    pub timestamp_source: TimestampSource,
    /// Direction of the packet.
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
    /// The kernel.
    Software,
    /// The card.
    Hardware,
    /// The file it was read from.
    File,
}

/// Returns the current time as in [`Meta::timestamp_ns`]. Call it once per batch, not per packet.
#[cold]
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Direction of a packet, from the host's point of view.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface {
    /// Its name: "eth0"; empty if a file does not contain one.
    pub name: String,
    /// The link type of its packets: a LINKTYPE_ number (tcpdump.org); 1 is Ethernet.
    pub link_type: u16,
    /// The maximum number of bytes kept of a packet; 0 means no limit.
    pub snaplen: u32,
    /// A comment, for example on its clock.
    pub comment: String,
}

/// The link type of Ethernet.
pub const LINKTYPE_ETHERNET: u16 = 1;
