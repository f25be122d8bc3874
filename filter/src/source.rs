//! What a program runs on: a packet in our hands, and a frame in a packet socket's filter. They
//! differ in what a load finds, and in which bits of a shift count.

use super::cbpf::Width;

/// Bytes at an offset, as a number in network byte order; none outside of them.
#[inline]
pub(super) fn load(bytes: &[u8], width: Width, at: u32) -> Option<u32> {
    let rest = bytes.get(at as usize..)?;
    match width {
        Width::Byte => rest.first().map(|byte| u32::from(*byte)),
        Width::Half => rest.first_chunk().map(|b| u32::from(u16::from_be_bytes(*b))),
        Width::Word => rest.first_chunk().map(|b| u32::from_be_bytes(*b)),
    }
}

/// What a program runs on.
pub(super) trait Source {
    fn bytes(&self) -> &[u8];
    fn wire_bytes(&self) -> u32;
    /// Which bits of a shift's operand count.
    fn shift_mask(&self) -> u32;
    fn load(&self, width: Width, k: u32) -> Option<u32>;
    fn load_indirect(&self, width: Width, x: u32, k: u32) -> Option<u32>;
}

/// A packet in this program's hands. Programs run on it as in libpcap.
pub(super) struct Captured<'a> {
    pub bytes: &'a [u8],
    pub wire_bytes: u32,
}

impl Source for Captured<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    #[inline]
    fn wire_bytes(&self) -> u32 {
        self.wire_bytes
    }

    #[inline]
    fn shift_mask(&self) -> u32 {
        u32::MAX
    }

    #[inline]
    fn load(&self, width: Width, k: u32) -> Option<u32> {
        load(self.bytes, width, k)
    }

    #[inline]
    fn load_indirect(&self, width: Width, x: u32, k: u32) -> Option<u32> {
        load(self.bytes, width, x.checked_add(k)?)
    }
}

/// A VLAN tag that was taken out of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Its protocol: 0x8100, 0x88a8.
    pub tpid: u16,
    /// Its control information.
    pub tci: u16,
}

/// An Ethernet frame as a packet socket's filter sees it in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Skb<'a> {
    /// The frame from its destination address on, without the tag that was taken out.
    pub bytes: &'a [u8],
    /// Its length: `skb->len`, without that tag.
    pub len: u32,
    /// The tag that was taken out.
    pub tag: Option<VlanTag>,
}

impl Skb<'_> {
    /// Offsets below zero are the kernel's own: extensions, and ways to count from a header.
    fn load_signed(&self, width: Width, offset: i32) -> Option<u32> {
        let from = match offset {
            0.. => 0,
            libc::SKF_NET_OFF..0 => 14 - libc::SKF_NET_OFF,
            libc::SKF_LL_OFF..libc::SKF_NET_OFF => -libc::SKF_LL_OFF,
            _ => return None,
        };
        load(self.bytes, width, offset.checked_add(from)?.cast_unsigned())
    }
}

impl Source for Skb<'_> {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    fn wire_bytes(&self) -> u32 {
        self.len
    }

    fn shift_mask(&self) -> u32 {
        31
    }

    fn load(&self, width: Width, k: u32) -> Option<u32> {
        if !is_extension(k) {
            return self.load_signed(width, k.cast_signed());
        }
        let tag = self.tag.unwrap_or(VlanTag { tpid: 0, tci: 0 });
        match extension_number(k) {
            libc::SKF_AD_VLAN_TAG_PRESENT => Some(self.tag.is_some().into()),
            libc::SKF_AD_VLAN_TAG => Some(tag.tci.into()),
            libc::SKF_AD_VLAN_TPID => Some(tag.tpid.into()),
            _ => None,
        }
    }

    fn load_indirect(&self, width: Width, x: u32, k: u32) -> Option<u32> {
        self.load_signed(width, x.wrapping_add(k).cast_signed())
    }
}

/// Whether an absolute load asks the kernel for something besides the packet's bytes.
pub fn is_extension(k: u32) -> bool {
    let number = extension_number(k);
    (0..libc::SKF_AD_MAX).contains(&number) && number % 4 == 0
}

/// Which extension: an `SKF_AD_` number, if it is one.
pub(super) fn extension_number(k: u32) -> i32 {
    k.cast_signed().wrapping_sub(libc::SKF_AD_OFF)
}
