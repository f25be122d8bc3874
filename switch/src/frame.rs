//! The parts of a frame that a switch reads: two addresses and a VLAN tag.

use sluicegate::headers::{ETHERNET_BYTES, ethertype};

/// The protocol of IEEE 802.1Q's tag, as in a frame.
pub const TAG: [u8; 2] = ethertype::VLAN.to_be_bytes();
/// The VLAN's number in the control information.
pub const VLAN_BITS: u16 = 0x0fff;

/// A frame's header. Addresses stand in the lower 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it is to go.
    pub to: u64,
    /// Where it comes from.
    pub from: u64,
    /// The control information of its 802.1Q tag.
    pub tag: Option<u16>,
    /// Behind that tag is another.
    pub is_tagged_again: bool,
}

impl Header {
    /// Reads it; none if the frame is too short.
    #[inline]
    pub fn read(frame: &[u8]) -> Option<Self> {
        let header = frame.first_chunk::<ETHERNET_BYTES>()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, tag @ ..] = *header;
        let (mut control, mut is_tagged_again) = (None, false);
        if tag == TAG {
            let (&[high, low], behind) = frame.get(ETHERNET_BYTES..)?.split_first_chunk()?;
            control = Some(u16::from_be_bytes([high, low]));
            is_tagged_again = behind.first_chunk().is_some_and(|&protocol| {
                ethertype::VLAN_TAGS.contains(&u16::from_be_bytes(protocol))
            });
        }
        Some(Self {
            to: u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
            from: u64::from_be_bytes([0, 0, g, h, i, j, k, l]),
            tag: control,
            is_tagged_again,
        })
    }
}

/// Returns true for a group address: multicast or broadcast.
#[inline]
pub fn is_group(mac: u64) -> bool {
    mac >> 40 & 1 == 1
}

/// Returns true for 01:80:c2:00:00:00 to 0f, which no bridge forwards (IEEE 802.1Q, table 8-1):
/// spanning tree, pause, LACP, LLDP.
#[inline]
pub fn is_link_local(mac: u64) -> bool {
    mac >> 4 == 0x0180_c200_0000 >> 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_nothing_beyond() {
        let mut frame = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0];
        let header = Header {
            to: 0x0102_0304_0506,
            from: 0x0708_090a_0b0c,
            tag: None,
            is_tagged_again: false,
        };
        assert_eq!(Header::read(&frame), Some(header));
        assert_eq!(Header::read(&frame[..13]), None);
        frame[12] = 0x81;
        assert_eq!(Header::read(&frame), None, "a tag that is cut");
        frame.extend([0xa0, 0x05]);
        let tagged = Header { tag: Some(0xa005), ..header };
        assert_eq!(Header::read(&frame), Some(tagged));
        for (protocol, is_tagged_again) in
            [([8, 0], false), ([0x81, 0], true), ([0x88, 0xa8], true)]
        {
            let frame = [&frame[..], &protocol].concat();
            assert_eq!(Header::read(&frame), Some(Header { is_tagged_again, ..tagged }));
        }
    }

    #[test]
    fn kinds_of_addresses() {
        for (mac, group, link_local) in [
            (0xffff_ffff_ffff, true, false),
            (0x0180_c200_0000, true, true),
            (0x0180_c200_000f, true, true),
            (0x0180_c200_0010, true, false),
            (0x0100_5e00_0001, true, false),
            (0x0200_0000_0001, false, false),
        ] {
            assert_eq!((is_group(mac), is_link_local(mac)), (group, link_local), "{mac:012x}");
        }
    }
}
