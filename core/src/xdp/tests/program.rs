//! The smallest program that hands packets to sockets: redirect to the XSKMAP's entry of the
//! queue, pass on what has none. Loaded by bpf(2) itself, so that the tests need nothing else.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::link::netns;

// Commands, types and flags of linux/bpf.h and linux/if_link.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const HAS_FRAGS: u32 = 1 << 5;
pub const SKB_MODE: u32 = 1 << 1;
pub const NATIVE_MODE: u32 = 1 << 2;

/// A program on an interface, and its map; it goes when this is dropped.
pub struct Redirect {
    map: OwnedFd,
    _link: OwnedFd,
}

impl Redirect {
    pub fn attach(namespace: &str, ifindex: u32, mode: u32) -> Result<Self> {
        let failed = |what| move |e| Error::system("load", what, e);
        // map_type, key_size, value_size, max_entries.
        let map = bpf(MAP_CREATE, &words(&[MAP_TYPE_XSKMAP, 4, 4, 64])).map_err(failed("a map"))?;
        let program = load(&map).map_err(failed("a program"))?;
        let attributes = words(&[program.as_raw_fd().cast_unsigned(), ifindex, ATTACH_XDP, mode]);
        // The interface's number is one of this thread's namespace.
        let link = netns::within(Some(namespace), || {
            bpf(LINK_CREATE, &attributes).map_err(failed("a link"))
        })?;
        Ok(Self { map, _link: link })
    }

    /// Hands the packets of a queue to a socket.
    pub fn serve(&self, queue: u32, socket: &impl AsRawFd) {
        let (key, value) = (queue, socket.as_raw_fd());
        let mut attributes = words(&[self.map.as_raw_fd().cast_unsigned(), 0]);
        attributes[8..16].copy_from_slice(&(&raw const key as u64).to_ne_bytes());
        attributes[16..24].copy_from_slice(&(&raw const value as u64).to_ne_bytes());
        call(MAP_UPDATE_ELEM, &attributes).unwrap();
    }
}

fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    let instruction = |code: u8, registers: u8, offset: i16, immediate: i32| {
        let mut bytes = [0; 8];
        (bytes[0], bytes[1]) = (code, registers);
        bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
        bytes[4..8].copy_from_slice(&immediate.to_ne_bytes());
        bytes
    };
    let program = [
        instruction(0x61, 0x12, 16, 0), // r2 = ctx->rx_queue_index
        instruction(0x18, 0x11, 0, map.as_raw_fd()), // r1 = the map
        instruction(0x00, 0x00, 0, 0),
        instruction(0xb7, 0x03, 0, 2),  // r3 = XDP_PASS
        instruction(0x85, 0x00, 0, 51), // r0 = bpf_redirect_map(r1, r2, r3)
        instruction(0x95, 0x00, 0, 0),  // return r0
    ]
    .concat();
    let license = c"MIT";
    let mut attributes = words(&[PROG_TYPE_XDP, program.len() as u32 / 8]);
    attributes[8..16].copy_from_slice(&(program.as_ptr() as u64).to_ne_bytes());
    attributes[16..24].copy_from_slice(&(license.as_ptr() as u64).to_ne_bytes());
    attributes[44..48].copy_from_slice(&HAS_FRAGS.to_ne_bytes());
    attributes[68..72].copy_from_slice(&ATTACH_XDP.to_ne_bytes());
    bpf(PROG_LOAD, &attributes)
}

/// The beginning of a `union bpf_attr`; the rest is zero.
fn words(words: &[u32]) -> [u8; 128] {
    let mut attributes = [0; 128];
    for (place, word) in attributes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    attributes
}

/// bpf(2) for a command that returns a descriptor.
fn bpf(command: libc::c_long, attributes: &[u8; 128]) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    // SAFETY: these commands return a new descriptor, which belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn call(command: libc::c_long, attributes: &[u8; 128]) -> io::Result<libc::c_long> {
    let size = attributes.len();
    // SAFETY: the attributes have `size` bytes, and the addresses in them are of live values of
    // the size the command reads; none of these commands writes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
