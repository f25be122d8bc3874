//! VLANs (IEEE 802.1Q): the header fields that a switch reads, the VLANs of a port, and the form of the
//! frames that it sends.

use std::fmt;
use std::str::FromStr;

use sluicegate::error::Error;
use sluicegate::headers::{ETHERNET_BYTES, VLAN_TAG_BYTES, ethertype};

/// The highest VLAN; 0 and 4095 have other meanings.
pub(crate) const LAST: u16 = 4094;

/// A set of VLANs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VlanSet(Option<Box<[u64; 64]>>);

impl VlanSet {
    /// Returns true if the set contains a VLAN.
    #[inline]
    pub fn has(&self, vlan: u16) -> bool {
        let bits = self.0.as_ref().map(|words| words[usize::from(vlan & VLAN_BITS) / 64]);
        bits.is_some_and(|bits| bits >> (vlan % 64) & 1 == 1)
    }

    fn add(&mut self, vlan: u16) {
        let words = self.0.get_or_insert_with(|| Box::new([0; 64]));
        words[usize::from(vlan & VLAN_BITS) / 64] |= 1 << (vlan % 64);
    }
}

/// Parses a set such as `10,20-29`.
impl FromStr for VlanSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut set = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(Error::Usage(format!("VLANs '{part}': the first is above the last")));
            }
            (first..=last).for_each(|vlan| set.add(vlan));
        }
        Ok(set)
    }
}

/// Writes a set as it is parsed: `10,20-29`.
impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut next, mut comma) = (1, "");
        while let Some(first) = (next..=LAST).find(|&vlan| self.has(vlan)) {
            let last = (first..LAST).find(|&vlan| !self.has(vlan + 1)).unwrap_or(LAST);
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            (next, comma) = (last + 1, ",");
        }
        Ok(())
    }
}

/// Parses the number of a VLAN.
///
/// # Errors
/// The text is no number from 1 to 4094.
pub fn number(text: &str) -> Result<u16, Error> {
    let number = text.trim().parse().ok().filter(|number| (1..=LAST).contains(number));
    number.ok_or_else(|| Error::Usage(format!("VLAN '{text}': use a number from 1 to {LAST}")))
}

/// The VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    /// The VLAN of untagged frames, received and sent.
    pub untagged: Option<u16>,
    /// The VLANs of tagged frames.
    pub tagged: VlanSet,
}

/// Writes all VLANs, without their forms: `10,20-29`; "none" without any.
impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.tagged.clone();
        self.untagged.into_iter().for_each(|vlan| all.add(vlan));
        match all.0.is_some() {
            true => all.fmt(f),
            false => f.write_str("none"),
        }
    }
}

/// The form in which a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Unchanged.
    AsIs,
    /// Without its tag.
    Untagged,
    /// With this control information in a tag.
    Tagged(u16),
}

impl Vlans {
    /// Creates the VLANs of a port for hosts without VLAN tags.
    pub fn access(vlan: u16) -> Self {
        Self { untagged: Some(vlan), tagged: VlanSet::default() }
    }

    /// Returns the VLAN of a frame with this tag; `None` if the port does not admit it.
    #[inline]
    pub fn of(&self, tag: Option<u16>) -> Option<u16> {
        // A tag with VLAN 0 has a priority but no VLAN.
        match tag.map_or(0, |tag| tag & VLAN_BITS) {
            0 => self.untagged,
            vlan => (self.tagged.has(vlan) || self.untagged == Some(vlan)).then_some(vlan),
        }
    }

    /// Returns the form in which the port sends a frame of a VLAN that arrived with this tag; `None` if it
    /// does not send it.
    #[inline]
    pub fn form(&self, vlan: u16, tag: Option<u16>) -> Option<Form> {
        if self.untagged == Some(vlan) {
            return Some(if tag.is_some() { Form::Untagged } else { Form::AsIs });
        }
        self.tagged.has(vlan).then(|| match tag {
            Some(tag) if tag & VLAN_BITS == vlan => Form::AsIs,
            tag => Form::Tagged(tag.unwrap_or(0) & !VLAN_BITS | vlan),
        })
    }
}

/// The protocol of an IEEE 802.1Q tag, in network byte order.
pub(crate) const TAG: [u8; 2] = ethertype::VLAN.to_be_bytes();
/// The bits of the VLAN number in the control information.
pub(crate) const VLAN_BITS: u16 = 0x0fff;

/// A frame's header. Addresses are in the lower 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// The destination.
    pub(crate) to: u64,
    /// The source.
    pub(crate) from: u64,
    /// The control information of its 802.1Q tag.
    pub(crate) tag: Option<u16>,
    /// Another tag follows.
    pub(crate) is_tagged_again: bool,
}

impl FrameHeader {
    /// Bytes of a header with a tag.
    pub(crate) const BYTES: usize = ETHERNET_BYTES + VLAN_TAG_BYTES;

    /// Reads a header; `None` if the frame is too short.
    #[inline]
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
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
pub(crate) fn is_group(mac: u64) -> bool {
    mac >> 40 & 1 == 1
}

/// Returns true for 01:80:c2:00:00:00 to 0f, which no bridge forwards (IEEE 802.1Q, table 8-1):
/// spanning tree, pause, LACP, LLDP.
#[inline]
pub(crate) fn is_link_local(mac: u64) -> bool {
    mac >> 4 == 0x0180_c200_0000 >> 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_as_people_write_it() {
        let set: VlanSet = "10,20-29,4094".parse().unwrap();
        for text in ["10,20-29,4094", "1-4094", "2-3,5"] {
            let set: VlanSet = text.parse().unwrap();
            assert_eq!(Vlans { untagged: None, tagged: set }.to_string(), text);
        }
        assert_eq!(Vlans::access(10).to_string(), "10");
        assert_eq!(Vlans::default().to_string(), "none");
        let there: Vec<u16> = (0..4096).filter(|&vlan| set.has(vlan)).collect();
        assert_eq!(there.len(), 12);
        assert!([10, 20, 29, 4094].iter().all(|vlan| there.contains(vlan)));
        for text in ["", "0", "4095", "5-3", "a", "1-", "1,,2"] {
            assert!(text.parse::<VlanSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn frames_come_and_go_as_the_port_has_it() {
        let access = Vlans::access(10);
        let trunk = Vlans { untagged: Some(1), tagged: "10,20".parse().unwrap() };
        for (sentence, port, tag, vlan) in [
            ("no tag, on an access port", &access, None, Some(10)),
            ("its own tag is taken, too", &access, Some(10), Some(10)),
            ("a priority alone", &access, Some(0xe000), Some(10)),
            ("another's tag", &access, Some(20), None),
            ("no tag, on a trunk", &trunk, None, Some(1)),
            ("a tag, on a trunk", &trunk, Some(0x6014), Some(20)),
            ("one that the trunk has not", &trunk, Some(30), None),
        ] {
            assert_eq!(port.of(tag), vlan, "{sentence}");
        }
        for (sentence, port, vlan, tag, form) in [
            ("access to access", &access, 10, None, Some(Form::AsIs)),
            ("trunk to access", &access, 10, Some(10), Some(Form::Untagged)),
            ("another VLAN", &access, 20, None, None),
            ("access to trunk", &trunk, 10, None, Some(Form::Tagged(10))),
            ("trunk to trunk", &trunk, 10, Some(0xa00a), Some(Form::AsIs)),
            ("the priority stays", &trunk, 10, Some(0xe000), Some(Form::Tagged(0xe00a))),
            ("the trunk's own VLAN", &trunk, 1, None, Some(Form::AsIs)),
        ] {
            assert_eq!(port.form(vlan, tag), form, "{sentence}");
        }
        let closed = Vlans { untagged: None, tagged: "10".parse().unwrap() };
        assert_eq!(closed.of(None), None);
    }

    #[test]
    fn a_header_is_read_up_to_its_end() {
        let mut frame = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0];
        let header = FrameHeader {
            to: 0x0102_0304_0506,
            from: 0x0708_090a_0b0c,
            tag: None,
            is_tagged_again: false,
        };
        assert_eq!(FrameHeader::read(&frame), Some(header));
        assert_eq!(FrameHeader::read(&frame[..13]), None);
        frame[12] = 0x81;
        assert_eq!(FrameHeader::read(&frame), None, "a tag that is cut");
        frame.extend([0xa0, 0x05]);
        let tagged = FrameHeader { tag: Some(0xa005), ..header };
        assert_eq!(FrameHeader::read(&frame), Some(tagged));
        for (protocol, is_tagged_again) in
            [([8, 0], false), ([0x81, 0], true), ([0x88, 0xa8], true)]
        {
            let frame = [&frame[..], &protocol].concat();
            assert_eq!(FrameHeader::read(&frame), Some(FrameHeader { is_tagged_again, ..tagged }));
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
