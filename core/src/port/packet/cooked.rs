//! The header that stands in the place of a link-layer header: LINKTYPE_LINUX_SLL2
//! (tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html).

use super::vlan;
use crate::error::{Error, Result};
use crate::link;
use crate::port::LINKTYPE_ETHERNET;

/// LINKTYPE_LINUX_SLL2.
pub(super) const LINKTYPE_SLL2: u16 = 276;
/// Bytes of the header.
const HEADER_BYTES: usize = 20;

/// The header of one packet, and behind it the VLAN tag that the kernel took out.
#[derive(Debug)]
pub(super) struct CookedHeader {
    bytes: [u8; HEADER_BYTES + vlan::TAG_BYTES],
    length: usize,
}

impl CookedHeader {
    /// Makes the header of a packet that came with this address, and a tag: its protocol and
    /// control information.
    pub fn new(address: &libc::sockaddr_ll, tag: Option<(u16, u16)>) -> Self {
        let mut bytes = [0; HEADER_BYTES + vlan::TAG_BYTES];
        // In network order already, as the kernel has it.
        let protocol = address.sll_protocol.to_ne_bytes();
        bytes[0..2].copy_from_slice(&protocol);
        bytes[4..8].copy_from_slice(&address.sll_ifindex.to_be_bytes());
        bytes[8..10].copy_from_slice(&address.sll_hatype.to_be_bytes());
        bytes[10] = address.sll_pkttype;
        bytes[11] = address.sll_halen;
        bytes[12..20].copy_from_slice(&address.sll_addr);
        let Some((tpid, tci)) = tag else { return Self { bytes, length: HEADER_BYTES } };
        bytes[0..2].copy_from_slice(&tpid.to_be_bytes());
        bytes[20..22].copy_from_slice(&tci.to_be_bytes());
        bytes[22..24].copy_from_slice(&protocol);
        Self { bytes, length: HEADER_BYTES + vlan::TAG_BYTES }
    }

    /// The header, which the packet's network header follows.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// LINKTYPE_RAW: an IP header, version 4 or 6.
pub(super) const LINKTYPE_RAW: u16 = 101;

/// The LINKTYPE_ number for an interface's hardware type (ARPHRD_, linux/if_arp.h).
pub(super) fn link_type(interface: &link::Interface) -> Result<u16> {
    link_type_of(interface.hardware).ok_or_else(|| Error::Unsupported {
        feature: format!("capturing on {} (hardware type {})", interface.name, interface.hardware),
        remedy: "Ethernet, loopback and IP tunnel interfaces can be captured on; packet:any takes \
                 all kinds"
            .into(),
    })
}

/// The LINKTYPE_ number for a hardware type; none if it has no number here.
pub(super) fn link_type_of(hardware: u16) -> Option<u16> {
    match hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(LINKTYPE_ETHERNET),
        libc::ARPHRD_NONE | libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT => {
            Some(LINKTYPE_RAW)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_fields_of_the_link_type_and_a_tag_behind_them() {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0x0800u16.to_be(),
            sll_ifindex: 42,
            sll_hatype: 778,
            sll_pkttype: 4,
            sll_halen: 4,
            sll_addr: [198, 18, 0, 1, 0, 0, 0, 0],
        };
        let plain = b"\x08\x00\0\0\0\0\0\x2a\x03\x0a\x04\x04\xc6\x12\0\x01\0\0\0\0";
        assert_eq!(CookedHeader::new(&address, None).bytes(), plain);
        let tagged = [b"\x88\xa8", &plain[2..], b"\x20\x05\x08\x00"].concat();
        assert_eq!(CookedHeader::new(&address, Some((0x88a8, 0x2005))).bytes(), tagged);
    }
}
