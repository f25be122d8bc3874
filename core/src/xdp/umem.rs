//! The pool as UMEM: registration, frame addresses, and which frames are lent to the kernel.
//!
//! ```text
//!   pool     ring area | buffer 0 | buffer 1 | buffer 2 | ... | buffer n-1 |
//!   UMEM               | frame 0  | frame 1  | frame 2  | ... | frame n-1  |
//!   address            0          c          2c         3c                  nc     c = 2048, 4096
//! ```
//!
//! A frame is a buffer as the kernel sees it, and its address counts from the start of buffer 0,
//! so that number and address tell each other. What the kernel says in an address is believed
//! after it was checked only: it lies in the pool, the packet ends in the frame it begins in, and
//! the frame is one that was lent and has not come back. So no word of the kernel's can give one
//! buffer two holders.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::Pool;

/// The frames that the kernel takes: 2048 bytes at least, a page at most, a power of two.
const FRAME_BYTES: [u32; 2] = [2048, 4096];

/// A pool whose buffers are frames.
#[derive(Clone, Debug)]
pub(super) struct Umem {
    pool: Arc<Pool>,
    frames: u32,
    frame_bytes: u32,
}

/// Where a packet lies, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) buffer: u32,
    pub(super) offset: u16,
    pub(super) bytes: u16,
}

impl Umem {
    pub(super) fn new(pool: &Arc<Pool>) -> Result<Self> {
        let frame_bytes = pool.buffer_bytes();
        if !FRAME_BYTES.contains(&frame_bytes) {
            return Err(Error::Usage(format!(
                "AF_XDP takes buffers of 2048 or 4096 bytes, and the pool's have {frame_bytes}: \
                 make it with one of these"
            )));
        }
        Ok(Self { pool: Arc::clone(pool), frames: pool.buffers(), frame_bytes })
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What XDP_UMEM_REG wants to know: all buffers, the two reserved ones too, which are never
    /// lent.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.pool.address(0).as_ptr().expose_provenance() as u64,
            len: self.bytes(),
            chunk_size: self.frame_bytes,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// Bytes of all frames.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.frames) * u64::from(self.frame_bytes)
    }

    /// The address of a byte in a buffer.
    #[inline]
    pub(super) fn address(&self, buffer: u32, offset: u16) -> u64 {
        u64::from(buffer) * u64::from(self.frame_bytes) + u64::from(offset)
    }

    /// Where a packet lies in memory.
    #[inline]
    pub(super) fn first_byte(&self, buffer: u32, offset: u16) -> *const u8 {
        self.pool.address(buffer).as_ptr().wrapping_add(offset.into())
    }

    /// Which bytes of which buffer an address and a length mean; None if they are not in one.
    #[inline]
    pub(super) fn locate(&self, address: u64, bytes: u32) -> Option<Place> {
        let frame_bytes = u64::from(self.frame_bytes);
        let (buffer, offset) = (address / frame_bytes, address % frame_bytes);
        let fits = buffer < u64::from(self.frames) && offset + u64::from(bytes) <= frame_bytes;
        // A frame has 4096 bytes at most, so both fit.
        fits.then_some(Place { buffer: buffer as u32, offset: offset as u16, bytes: bytes as u16 })
    }

    /// An empty set of its frames.
    pub(super) fn no_frames(&self) -> Frames {
        Frames { words: vec![0; (self.frames as usize).div_ceil(64)], count: 0 }
    }
}

/// A set of frames, one bit each: those lent to the kernel through one ring.
#[derive(Debug)]
pub(super) struct Frames {
    words: Vec<u64>,
    count: u32,
}

impl Frames {
    /// Adds a frame. False if it is there already, or is none of the pool's.
    #[inline]
    pub(super) fn insert(&mut self, buffer: u32) -> bool {
        let bit = 1 << (buffer % 64);
        match self.words.get_mut(buffer as usize / 64) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Takes a frame out. False if it is not in it.
    #[inline]
    pub(super) fn remove(&mut self, buffer: u32) -> bool {
        let bit = 1 << (buffer % 64);
        match self.words.get_mut(buffer as usize / 64) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                self.count -= 1;
                true
            }
            _ => false,
        }
    }

    /// How many there are.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Takes all out.
    pub(super) fn drain(&mut self) -> Vec<u32> {
        let words = self.words.iter().zip((0u32..).step_by(64));
        let frames = words.flat_map(|(word, first)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| first + bit)
        });
        let frames = frames.collect();
        self.words.fill(0);
        self.count = 0;
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PoolConfig;

    fn umem(buffer_bytes: u32) -> Result<Umem> {
        let config =
            PoolConfig { buffers: 98, buffer_bytes, ring_area_bytes: 4096, huge_pages: false };
        Umem::new(&Pool::new(config).unwrap())
    }

    #[test]
    fn what_an_address_means_is_checked() {
        let umem = umem(2048).unwrap();
        let place = |buffer, offset, bytes| Some(Place { buffer, offset, bytes });
        let rows = [
            (2 * 2048 + 256, 60, place(2, 256, 60), "a packet behind the headroom"),
            (2 * 2048 + 256, 1792, place(2, 256, 1792), "up to its frame's end"),
            (2 * 2048 + 256, 1793, None, "one byte beyond it"),
            (2 * 2048 + 2047, 0, place(2, 2047, 0), "nothing, at a frame's last byte"),
            (99 * 2048, 2048, place(99, 0, 2048), "the last frame"),
            (100 * 2048, 0, None, "the frame after it"),
            (2 * 2048, u32::MAX, None, "a length that cannot be"),
            (u64::MAX, 1, None, "an address that cannot be"),
            (u64::MAX - 2047, u32::MAX, None, "both"),
            (1 << 48 | 4096, 60, None, "an offset in the upper bits, as unaligned frames have"),
        ];
        for (address, bytes, expected, why) in rows {
            assert_eq!(umem.locate(address, bytes), expected, "{why}");
        }
        assert_eq!(umem.locate(umem.address(7, 300), 5), place(7, 300, 5));
    }

    #[test]
    fn only_frames_that_the_kernel_takes_can_be() {
        for (bytes, fits) in [(1024, false), (2048, true), (4096, true), (8192, false)] {
            let umem = umem(bytes);
            assert_eq!(umem.is_ok(), fits, "{bytes} bytes");
            if let Ok(umem) = umem {
                let told = umem.registration();
                assert_eq!(told.len, 100 * u64::from(bytes));
                assert_eq!(told.addr % 4096, 0, "the kernel wants whole pages");
            }
        }
    }

    #[test]
    fn a_frame_is_lent_once_and_comes_back_once() {
        let mut lent = umem(2048).unwrap().no_frames();
        assert!(lent.insert(2) && lent.insert(63) && lent.insert(64) && lent.insert(99));
        assert!(!lent.insert(64), "it is lent already");
        assert!(lent.remove(2) && !lent.remove(2), "it has come back already");
        assert!(!lent.remove(3), "it was never lent");
        assert!(!lent.insert(100_000) && !lent.remove(u32::MAX), "there is no such frame");
        assert_eq!(lent.count(), 3);
        assert_eq!(lent.drain(), [63, 64, 99]);
        assert_eq!((lent.count(), lent.remove(63)), (0, false));
    }
}
