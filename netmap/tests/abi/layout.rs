//! Structures as bytes, by the offsets of netmap's headers.

use nix::errno::Errno;
use sluicegate_netmap::abi::ioctls::NIOCCTRL;
use sluicegate_netmap::abi::{CallerMemory, IncomingRequest, read_request};

use crate::memory::Memory;

/// Addresses of the structures in tests.
pub const ARGUMENT: u64 = 0x7000_0000;
pub const BODY: u64 = 0x7100_0000;
pub const OPTIONS: u64 = 0x7200_0000;

/// Offsets in `struct nmreq_header`.
pub mod header {
    pub const BYTES: usize = 88;
    pub const VERSION: usize = 0;
    pub const REQTYPE: usize = 2;
    pub const RESERVED: usize = 4;
    pub const NAME: usize = 8;
    pub const OPTIONS: usize = 72;
    pub const BODY: usize = 80;
}

/// A structure's bytes.
#[derive(Clone)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Makes bytes of zeros.
    pub fn zeros(count: usize) -> Self {
        Self(vec![0; count])
    }

    /// Makes bytes that all differ: 1, 2, 3…
    pub fn counting(count: usize) -> Self {
        Self((1..=count as u8).collect())
    }

    pub fn text(mut self, at: usize, text: &str) -> Self {
        self.0[at..at + text.len()].copy_from_slice(text.as_bytes());
        self
    }

    pub fn u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub fn u64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    fn put(mut self, at: usize, value: &[u8]) -> Self {
        self.0[at..at + value.len()].copy_from_slice(value);
        self
    }
}

/// Returns a header of a type, with a body at [`BODY`].
pub fn header(reqtype: u16, name: &str) -> Bytes {
    Bytes::zeros(header::BYTES)
        .u16(header::VERSION, 14)
        .u16(header::REQTYPE, reqtype)
        .text(header::NAME, name)
        .u64(header::BODY, BODY)
}

/// Returns a program's memory with these structures.
pub fn memory(argument: &Bytes, body: &Bytes) -> Memory {
    let memory = Memory::default();
    memory.place(ARGUMENT, &argument.0);
    memory.place(BODY, &body.0);
    memory
}

/// Reads a number of `N` bytes.
pub fn read<const N: usize>(memory: &Memory, address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    memory.read(address, &mut bytes).expect("the test's memory");
    bytes
}

/// Reads the request of NIOCCTRL.
pub fn request(memory: &Memory) -> Result<IncomingRequest, Errno> {
    read_request(NIOCCTRL, memory, ARGUMENT)
}

/// Returns the number that [`Bytes::counting`] has in the `count` bytes from an offset on.
pub fn counted(offset: u64, count: u64) -> u64 {
    (0..count).fold(0, |number, byte| number | (offset + byte + 1) << (8 * byte))
}
