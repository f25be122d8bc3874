//! Numbers of netmap's ioctls and versions of its API (sys/net/netmap.h, netmap_legacy.h), for 64-bit x86 and ARM.
//!
//! glibc passes the number as `unsigned long`; only the low 32 bits count.

/// Returns facts about a port; the argument is a `struct nmreq`. Superseded by [`NIOCCTRL`].
pub const NIOCGINFO: u32 = 0xC03C_6991;
/// Registers a port, or controls a VALE switch; the argument is a `struct nmreq`. Superseded by [`NIOCCTRL`].
pub const NIOCREGIF: u32 = 0xC03C_6992;
/// Syncs transmit rings; no argument.
pub const NIOCTXSYNC: u32 = 0x6994;
/// Syncs receive rings; no argument.
pub const NIOCRXSYNC: u32 = 0x6995;
/// Configures a VALE switch that a kernel module extends; the argument is a `struct nm_ifreq`.
pub const NIOCCONFIG: u32 = 0xC110_6996;
/// Performs the request of a `struct nmreq_header`.
pub const NIOCCTRL: u32 = 0xC058_6997;

/// The oldest version of the API that is accepted.
pub const MIN_API: u16 = 14;
/// The newest version of the API that is accepted.
pub const MAX_API: u16 = 15;

/// Bytes of a `struct nmreq_header`.
pub(crate) const HEADER_BYTES: usize = 88;
/// Bytes of a `struct nmreq`.
pub(crate) const NMREQ_BYTES: usize = 60;
/// Bytes of a `struct nm_ifreq`.
pub(crate) const NM_IFREQ_BYTES: usize = 272;

/// The number that `_IOWR('i', number, bytes)` makes.
const fn iowr(number: u32, bytes: usize) -> u32 {
    3 << 30 | (bytes as u32) << 16 | (b'i' as u32) << 8 | number
}

const _: () = {
    assert!(NIOCGINFO == iowr(145, NMREQ_BYTES));
    assert!(NIOCREGIF == iowr(146, NMREQ_BYTES));
    assert!(NIOCCONFIG == iowr(150, NM_IFREQ_BYTES));
    assert!(NIOCCTRL == iowr(151, HEADER_BYTES));
};
