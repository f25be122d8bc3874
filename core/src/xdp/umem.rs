//! The pool as UMEM: registration, frame addresses, and which frames are lent to the kernel.
//!
//! ```text
//!   pool               | buffer 0 | buffer 1 | buffer 2 | ... | buffer n-1 |
//!   UMEM               | frame 0  | frame 1  | frame 2  | ... | frame n-1  |
//!   address            0          c          2c         3c                  nc     c = 2048, 4096
//! ```
//!
//! A frame is a buffer as the kernel sees it. Its address counts from the start of buffer 0, so a buffer
//! number and an address determine each other. An address from the kernel is validated before use: it must
//! be in the pool, the packet must end in its first frame, and the frame must be lent. So no value from the
//! kernel can give one buffer two holders.

use std::sync::Arc;

use sluicegate_base::memory::{Pool, RESERVED_BUFFERS};

use crate::error::{Error, Result};
use crate::link::Ethtool;

/// Frame sizes that the kernel accepts: powers of two from 2048 to a page.
const FRAME_BYTES: [u32; 2] = [2048, 4096];

/// A pool whose buffers are frames.
#[derive(Clone, Debug)]
pub(super) struct Umem {
    pool: Arc<Pool>,
    frames: u32,
    /// Binary logarithm of the frame size. Addresses are split by shifts, because there are four per
    /// forwarded packet and divisions would dominate.
    frame_bits: u32,
}

/// Location of a packet or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameAddress {
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
        let frame_bits = frame_bytes.trailing_zeros();
        Ok(Self { pool: Arc::clone(pool), frames: pool.buffers(), frame_bits })
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the argument of XDP_UMEM_REG: all buffers, including the two reserved ones, which are
    /// never lent. A registration is safe by itself: the kernel pins the pages, and writes only to frames from
    /// the fill ring.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.pool.address(0).as_ptr().expose_provenance() as u64,
            len: self.bytes(),
            chunk_size: 1 << self.frame_bits,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// Returns the size of all frames.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.frames) << self.frame_bits
    }

    /// Returns the address of a byte in a buffer.
    #[inline]
    pub(super) fn address(&self, buffer: u32, offset: u16) -> u64 {
        (u64::from(buffer) << self.frame_bits) + u64::from(offset)
    }

    /// Returns the memory address of a byte in a buffer.
    #[inline]
    pub(super) fn first_byte(&self, buffer: u32, offset: u16) -> *const u8 {
        self.pool.address(buffer).as_ptr().wrapping_add(offset.into())
    }

    /// Returns the buffer that contains an address, if one does.
    #[inline]
    pub(super) fn frame_of(&self, address: u64) -> Option<u32> {
        let buffer = address >> self.frame_bits;
        (buffer < u64::from(self.frames)).then_some(buffer as u32)
    }

    /// Returns true if a buffer has these bytes and can be lent.
    #[inline]
    pub(super) fn has(&self, buffer: u32, offset: u16, bytes: u16) -> bool {
        let end = u32::from(offset) + u32::from(bytes);
        (RESERVED_BUFFERS..self.frames).contains(&buffer) && end <= 1 << self.frame_bits
    }

    /// Locates a packet by address and length. None if it is not within one buffer.
    #[inline]
    pub(super) fn locate(&self, address: u64, bytes: u32) -> Option<FrameAddress> {
        let buffer = self.frame_of(address)?;
        let frame_bytes = 1 << self.frame_bits;
        let offset = address & (frame_bytes - 1);
        // A frame has at most 4096 bytes, so both fit.
        let (offset, bytes, end) = (offset as u16, bytes as u16, offset + u64::from(bytes));
        (end <= frame_bytes).then_some(FrameAddress { buffer, offset, bytes })
    }

    /// Returns an empty set of lent frames.
    pub(super) fn no_frames(&self) -> Frames {
        Frames { lent: vec![Lent::No; self.frames as usize] }
    }
}

/// The set of frames lent to the kernel through one ring.
#[derive(Debug)]
pub(super) struct Frames {
    lent: Vec<Lent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    No,
    Yes,
    /// A packet ends in it.
    End,
}

impl Frames {
    /// Lends a frame, and records whether a packet ends in it. Returns false if it is lent already, or not
    /// from the pool.
    #[inline]
    pub(super) fn lend(&mut self, buffer: u32, ends: bool) -> bool {
        match self.lent.get_mut(buffer as usize) {
            Some(lent) if *lent == Lent::No => {
                *lent = if ends { Lent::End } else { Lent::Yes };
                true
            }
            _ => false,
        }
    }

    /// Takes a frame back. Returns whether a packet ended in it; None if it was not lent.
    #[inline]
    pub(super) fn take_back(&mut self, buffer: u32) -> Option<bool> {
        let lent = self.lent.get_mut(buffer as usize).filter(|lent| **lent != Lent::No)?;
        Some(std::mem::replace(lent, Lent::No) == Lent::End)
    }

    /// Takes all frames back.
    pub(super) fn drain(&mut self) -> Vec<u32> {
        let lent = (0..).zip(&self.lent).filter(|(_, lent)| **lent != Lent::No);
        let frames = lent.map(|(buffer, _)| buffer).collect();
        self.lent.fill(Lent::No);
        frames
    }
}

/// Bytes that the kernel leaves free in front of a packet: XDP_PACKET_HEADROOM of linux/bpf.h.
pub(crate) const HEADROOM_BYTES: u32 = 256;
/// An Ethernet header and one VLAN tag, which a packet may have in addition to the MTU.
pub(super) const HEADER_BYTES: u32 = 18;

/// Drivers that round a frame's space for zero-copy down to whole KiB (SRRCTL.BSIZEPKT): 1024 of 2048
/// bytes. They deliver longer packets in pieces, each as a separate packet. Seen with igb on Linux 7.2;
/// igc_configure_rx_ring does the same.
const WHOLE_KIB: &[&str] = &["igb", "igc"];

/// Returns the buffer size for packets of an interface: 2048, or 4096 if its driver needs it.
pub(crate) fn buffer_bytes(netns: Option<&str>, interface: &str, mtu: u32) -> u32 {
    if holds(2048, &driver(netns, interface), mtu) { 2048 } else { 4096 }
}

/// Describes why frames of a size cannot hold the interface's packets. None if they can.
pub(super) fn too_small(
    frame_bytes: u32,
    netns: Option<&str>,
    interface: &str,
    mtu: u32,
) -> Option<String> {
    let driver = driver(netns, interface);
    (!holds(frame_bytes, &driver, mtu)).then(|| {
        format!(
            "{driver} uses {} of a buffer's {frame_bytes} bytes and would cut longer packets into \
             pieces: use buffers of 4096 bytes, an MTU below {}, or copy mode",
            room(frame_bytes),
            (room(frame_bytes) - HEADER_BYTES + 1)
        )
    })
}

fn holds(frame_bytes: u32, driver: &str, mtu: u32) -> bool {
    !WHOLE_KIB.contains(&driver) || mtu.saturating_add(HEADER_BYTES) <= room(frame_bytes)
}

fn room(frame_bytes: u32) -> u32 {
    (frame_bytes - HEADROOM_BYTES) / 1024 * 1024
}

/// Returns the name of an interface's driver; empty if unknown.
fn driver(netns: Option<&str>, interface: &str) -> String {
    let driver = Ethtool::open(netns).and_then(|mut it| it.driver(interface));
    driver.unwrap_or_default()
}

#[cfg(test)]
impl Frames {
    pub(super) fn count(&self) -> usize {
        self.lent.iter().filter(|lent| **lent != Lent::No).count()
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_base::memory::PoolConfig;

    use super::*;

    fn umem(buffer_bytes: u32) -> Result<Umem> {
        let config = PoolConfig { buffers: 98, buffer_bytes, huge_pages: false };
        Umem::new(&Pool::new(config).unwrap())
    }

    #[test]
    fn what_an_address_means_is_checked() {
        let umem = umem(2048).unwrap();
        let place = |buffer, offset, bytes| Some(FrameAddress { buffer, offset, bytes });
        let rows = [
            (2 * 2048 + 256, 60, place(2, 256, 60), "a packet behind the headroom"),
            (2 * 2048 + 256, 1792, place(2, 256, 1792), "up to its frame's end"),
            (2 * 2048 + 256, 1793, None, "one byte beyond it"),
            (2 * 2048 + 2047, 0, place(2, 2047, 0), "nothing, at a frame's last byte"),
            (99 * 2048, 2048, place(99, 0, 2048), "the last frame"),
            (100 * 2048, 0, None, "the frame after it"),
            (2 * 2048, u32::MAX, None, "an invalid length"),
            (u64::MAX, 1, None, "an invalid address"),
            (u64::MAX - 2047, u32::MAX, None, "both"),
            (1 << 48 | 4096, 60, None, "an offset in the upper bits, as unaligned frames have"),
        ];
        for (address, bytes, expected, why) in rows {
            assert_eq!(umem.locate(address, bytes), expected, "{why}");
        }
        assert_eq!(umem.locate(umem.address(7, 300), 5), place(7, 300, 5));
    }

    #[test]
    fn what_a_slot_names_is_checked() {
        let umem = umem(2048).unwrap();
        let rows = [
            (2, 0, 2048, true, "a whole buffer"),
            (2, 1, 2048, false, "one byte beyond it"),
            (2, 2048, 0, true, "nothing, at its end"),
            (99, 256, 60, true, "in the last one"),
            (100, 0, 60, false, "in the one after it"),
            (0, 0, 60, false, "in the one that stands for none"),
            (1, u16::MAX, u16::MAX, false, "more than fits the field"),
        ];
        for (buffer, offset, bytes, expected, why) in rows {
            assert_eq!(umem.has(buffer, offset, bytes), expected, "{why}");
        }
    }

    #[test]
    fn only_frame_sizes_that_the_kernel_accepts_are_accepted() {
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
        assert!([2, 63, 64, 99].into_iter().all(|buffer| lent.lend(buffer, buffer == 2)));
        assert!(!lent.lend(64, true), "it is lent already");
        assert_eq!((lent.take_back(2), lent.take_back(63)), (Some(true), Some(false)));
        assert_eq!(lent.take_back(2), None, "it has come back already");
        assert_eq!(lent.take_back(3), None, "it was never lent");
        assert!(!lent.lend(100, false) && lent.take_back(u32::MAX).is_none(), "no such frame");
        assert_eq!(lent.count(), 2);
        assert_eq!(lent.drain(), [64, 99]);
        assert_eq!((lent.count(), lent.take_back(64)), (0, None));
    }

    #[test]
    fn what_a_frame_holds_depends_on_the_driver() {
        for (frame_bytes, driver, mtu, expected, why) in [
            (2048, "igb", 1500, false, "1024 bytes of it are used"),
            (2048, "igb", 1006, true, "a header and a tag besides"),
            (2048, "igb", 1007, false, "one byte more"),
            (4096, "igb", 1500, true, "3072 bytes of it are used"),
            (4096, "igc", 3055, false, "one byte too many"),
            (2048, "ice", 1500, true, "knows its room to the byte"),
            (2048, "", 9000, true, "for the kernel to refuse"),
        ] {
            assert_eq!(holds(frame_bytes, driver, mtu), expected, "{driver} {mtu}: {why}");
        }
    }
}
