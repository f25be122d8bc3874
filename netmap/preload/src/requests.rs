//! Requests of a program: their names, for lines on stderr, and those that start threads.

use sluicegate_netmap::abi::CallerMemory;
use sluicegate_netmap::abi::ioctls::{
    NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC,
};

use crate::caller_memory::OwnMemory;

/// The types of requests of NIOCCTRL, from 1 on (net/netmap.h).
const TYPES: [&str; 15] = [
    "REGISTER",
    "PORT_INFO_GET",
    "VALE_ATTACH",
    "VALE_DETACH",
    "VALE_LIST",
    "PORT_HDR_SET",
    "PORT_HDR_GET",
    "VALE_NEWIF",
    "VALE_DELIF",
    "VALE_POLLING_ENABLE",
    "VALE_POLLING_DISABLE",
    "POOLS_INFO_GET",
    "SYNC_KLOOP_START",
    "SYNC_KLOOP_STOP",
    "CSB_ENABLE",
];

/// The type of VALE_ATTACH in a header, and the command of a legacy request.
const VALE_ATTACH: u16 = 3;
const LEGACY_ATTACH: u16 = 1;

/// Returns false for the syncs, which open nothing.
pub fn is_control(request: u32) -> bool {
    !matches!(request, NIOCTXSYNC | NIOCRXSYNC)
}

/// Returns true if a request attaches a port to a switch: for a card, a thread passes its packets.
pub fn attaches(request: u32, argument: u64) -> bool {
    // Offsets of nr_reqtype in struct nmreq_header, and of nr_cmd in struct nmreq.
    let (at, wanted) = match request {
        NIOCCTRL => (2, VALE_ATTACH),
        NIOCREGIF => (42, LEGACY_ATTACH),
        _ => return false,
    };
    let mut number = [0; 2];
    let read = OwnMemory.read(argument.wrapping_add(at), &mut number);
    read.is_ok() && u16::from_le_bytes(number) == wanted
}

/// Describes a request: "NIOCCTRL REGISTER vale1:a with options".
pub fn describe(request: u32, argument: u64) -> String {
    match request {
        NIOCCTRL => control(argument),
        NIOCREGIF => "NIOCREGIF".into(),
        NIOCGINFO => "NIOCGINFO".into(),
        NIOCCONFIG => "NIOCCONFIG".into(),
        NIOCTXSYNC => "NIOCTXSYNC".into(),
        NIOCRXSYNC => "NIOCRXSYNC".into(),
        other => format!("{other:#x}"),
    }
}

/// Describes the request that a header at this address has: type, name, options.
fn control(address: u64) -> String {
    let mut header = [0; 80];
    if OwnMemory.read(address, &mut header).is_err() {
        return "NIOCCTRL".into();
    }
    let kind = usize::from(u16::from_le_bytes([header[2], header[3]]));
    let kind = kind.checked_sub(1).and_then(|at| TYPES.get(at)).unwrap_or(&"of unknown type");
    let name = header[8..72].split(|byte| *byte == 0).next().unwrap_or_default();
    let options = if header[72..].iter().any(|byte| *byte != 0) { " with options" } else { "" };
    format!("NIOCCTRL {kind} {}{options}", name.escape_ascii())
}
