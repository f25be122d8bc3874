//! Access to packet bytes, in the buffers of slots.

use crate::program::{Memory, Ring, field};

/// Offsets of fields in netmap's ring header: the distance to the buffers, and their size.
pub const BUF_OFS: usize = 0;
pub const NR_BUF_SIZE: usize = 12;

/// The buffers of a ring's region.
pub struct Buffers<'a> {
    memory: &'a Memory,
    first: i64,
    bytes: u32,
}

impl<'a> Buffers<'a> {
    /// Reads the position of the buffers from a ring's header; later changes of the header have no effect.
    pub fn of(memory: &'a Memory, ring: Ring<'_>) -> Self {
        let first = memory.read::<i64>(ring.at + BUF_OFS) + ring.at as i64;
        Self { memory, first, bytes: memory.read(ring.at + NR_BUF_SIZE) }
    }

    fn at(&self, buffer: u32) -> usize {
        (self.first + i64::from(buffer) * i64::from(self.bytes)) as usize
    }

    /// Writes a byte of a buffer.
    pub fn set_byte(&self, buffer: u32, at: u32, value: u8) {
        self.memory.write(self.at(buffer) + at as usize, value);
    }

    /// Reads a byte of a slot's buffer.
    pub fn byte(&self, ring: Ring<'_>, index: u32, at: u32) -> u8 {
        let (buffer, ptr): (u32, u64) =
            (ring.slot(index, field::BUF), ring.slot(index, field::PTR));
        self.memory.read(self.at(buffer) + ptr as usize + at as usize)
    }
}
