//! Which packets an interface takes, told before the kernel is asked.

use crate::link;
use crate::port::LINKTYPE_ETHERNET;
use crate::port::packet::link_header;
use sluicegate_base::ring::Packet;

/// An Ethernet header: two addresses and a protocol.
const ETHERNET_BYTES: usize = link_header::ADDRESS_BYTES + 2;
/// The longest MTU that a frame is made for: what is longer would lie on more pages than the
/// kernel lets a packet have (MAX_SKB_FRAGS, 17).
const MAX_MTU: usize = 1 << 16;

/// The limits for a packet's length.
#[derive(Clone, Copy, Debug)]
pub(super) struct LengthLimits {
    /// Bytes of the header before what the MTU counts; no packet is shorter.
    header_bytes: usize,
    /// The interface's MTU when it was last looked up.
    mtu: usize,
    /// The most bytes whatever the MTU is: those of a frame.
    most_bytes: usize,
}

impl LengthLimits {
    pub(super) fn of(interface: &link::Interface, link_type: u16) -> Self {
        let header_bytes = if link_type == LINKTYPE_ETHERNET { ETHERNET_BYTES } else { 0 };
        Self::new(header_bytes, interface.mtu as usize)
    }

    pub(super) fn new(header_bytes: usize, mtu: usize) -> Self {
        let most_bytes = mtu.min(MAX_MTU) + header_bytes + link_header::TAG_BYTES;
        Self { header_bytes, mtu, most_bytes }
    }

    /// The most bytes a packet may have, whatever becomes of the MTU.
    pub(super) fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Sets the bytes that a frame has room for.
    pub(super) fn set_room(&mut self, bytes: usize) {
        self.most_bytes = bytes.min(MAX_MTU + self.header_bytes + link_header::TAG_BYTES);
    }

    /// The interface has got this MTU.
    pub(super) fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Returns true if the kernel accepts a packet: it has a whole header and is no longer than the
    /// MTU. An 802.1Q tag does not count toward the MTU, other tags do (net/packet/af_packet.c,
    /// dev_validate_header and packet_extra_vlan_len_allowed).
    #[inline]
    pub(super) fn allow(&self, packet: &Packet<'_>) -> bool {
        let bytes = packet.captured_bytes();
        let plain = self.mtu + self.header_bytes;
        let longest = if bytes > plain && self.is_tagged(packet) {
            plain + link_header::TAG_BYTES
        } else {
            plain
        };
        (self.header_bytes.max(1)..=longest.min(self.most_bytes)).contains(&bytes)
    }

    /// Returns true if the packet is refused because it is too long.
    #[cold]
    pub(super) fn is_too_long(&self, packet: &Packet<'_>) -> bool {
        !self.allow(packet) && packet.captured_bytes() >= self.header_bytes.max(1)
    }

    #[cold]
    fn is_tagged(&self, packet: &Packet<'_>) -> bool {
        let mut protocol = packet.segments().flatten().skip(link_header::ADDRESS_BYTES);
        self.header_bytes == ETHERNET_BYTES
            && [protocol.next(), protocol.next()] == [Some(&0x81), Some(&0x00)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::ring::Meta;

    #[test]
    fn what_the_kernel_takes_is_allowed_and_nothing_else() {
        let (ethernet, tunnel) =
            (LengthLimits::new(ETHERNET_BYTES, 1500), LengthLimits::new(0, 1480));
        let mut grown = LengthLimits::new(ETHERNET_BYTES, 1500);
        grown.set_room(2016);
        grown.set_mtu(9000);
        let huge = LengthLimits::new(ETHERNET_BYTES, 1 << 20);
        let meta = Meta::default();
        for (sentence, limits, protocol, bytes, expected) in [
            ("nothing is no packet", ethernet, 0x0800, 0, false),
            ("a header that is cut", ethernet, 0x0800, 13, false),
            ("a header alone", ethernet, 0x0800, 14, true),
            ("all of the MTU", ethernet, 0x0800, 1514, true),
            ("one byte more", ethernet, 0x0800, 1515, false),
            ("all of the MTU, and a tag", ethernet, 0x8100, 1518, true),
            ("a tag, and one byte more", ethernet, 0x8100, 1519, false),
            ("a provider's tag counts as payload", ethernet, 0x88a8, 1515, false),
            ("nothing, to a tunnel", tunnel, 0x0800, 0, false),
            ("one byte, to a tunnel", tunnel, 0x0800, 1, true),
            ("all of a tunnel's MTU", tunnel, 0x0800, 1480, true),
            ("no tag in a tunnel", tunnel, 0x8100, 1481, false),
            ("the MTU has grown, and there is room", grown, 0x0800, 2016, true),
            ("the MTU has grown beyond the room", grown, 0x0800, 2017, false),
            ("as many pages as a packet may have", huge, 0x0800, 65_550, true),
            ("more pages than a packet may have", huge, 0x0800, 65_555, false),
        ] {
            let mut frame = vec![0u8; bytes.max(14)];
            frame[12..14].copy_from_slice(&u16::to_be_bytes(protocol));
            let packet = Packet::new(&meta, &frame[..bytes]);
            assert_eq!(limits.allow(&packet), expected, "{sentence}");
        }
    }
}
