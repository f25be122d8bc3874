//! Link-layer headers: the cooked header LINKTYPE_LINUX_SLL2
//! (tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html), and VLAN tags. The kernel removes the outer tag of
//! every frame; this module restores it to its place on the wire, after the two addresses.

use crate::error::{Error, Result};
use crate::headers::{MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES};
use crate::link;
use sluicegate_base::ring::LINKTYPE_ETHERNET;

/// LINKTYPE_LINUX_SLL2.
pub(super) const LINKTYPE_SLL2: u16 = 276;
/// Length of the header.
const HEADER_BYTES: usize = 20;

/// The header of one packet, followed by the VLAN tag that the kernel removed.
#[derive(Debug)]
pub(super) struct CookedHeader {
    bytes: [u8; HEADER_BYTES + VLAN_TAG_BYTES],
    length: usize,
}

impl CookedHeader {
    /// Makes the header of a packet with this address, and a tag: its protocol and control information.
    pub(super) fn new(address: &libc::sockaddr_ll, tag: Option<(u16, u16)>) -> Self {
        let mut bytes = [0; HEADER_BYTES + VLAN_TAG_BYTES];
        // The kernel already provides it in network order.
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
        Self { bytes, length: HEADER_BYTES + VLAN_TAG_BYTES }
    }

    /// Returns the header; the packet's network header follows it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// LINKTYPE_RAW: an IP header, version 4 or 6.
pub(super) const LINKTYPE_RAW: u16 = 101;

/// Returns the LINKTYPE_ number for an interface's hardware type (ARPHRD_, linux/if_arp.h).
pub(super) fn link_type(interface: &link::Interface) -> Result<u16> {
    link_type_of(interface.hardware).ok_or_else(|| Error::Unsupported {
        feature: format!("capturing on {} (hardware type {})", interface.name, interface.hardware),
        remedy: "Ethernet, loopback and IP tunnel interfaces can be captured on; packet:any takes \
                 all kinds"
            .into(),
    })
}

/// Returns the LINKTYPE_ number for a hardware type. None if this module has none for it.
pub(super) fn link_type_of(hardware: u16) -> Option<u16> {
    match hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(LINKTYPE_ETHERNET),
        libc::ARPHRD_NONE | libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT => {
            Some(LINKTYPE_RAW)
        }
        _ => None,
    }
}

/// Returns the tag's protocol: the kernel's value (Linux 3.14), or 802.1Q.
#[inline]
pub(super) fn tpid(status: u32, tpid: u16) -> u16 {
    if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { libc::ETH_P_8021Q as u16 }
}

/// Restores a tag in a frame with four bytes of room in front: `frame` begins with the room. The addresses
/// move, the payload stays.
pub(super) fn reinsert_tag_front(frame: &mut [u8], tpid: u16, tci: u16) {
    frame.copy_within(VLAN_TAG_BYTES..VLAN_TAG_BYTES + MAC_ADDRESSES_BYTES, 0);
    write_tag(frame, tpid, tci);
}

/// Restores a tag in a frame with four bytes of room at its end: `frame` ends with the room. The payload
/// moves.
pub(super) fn reinsert_tag_end(frame: &mut [u8], tpid: u16, tci: u16) {
    let end = frame.len() - VLAN_TAG_BYTES;
    frame.copy_within(MAC_ADDRESSES_BYTES..end, MAC_ADDRESSES_BYTES + VLAN_TAG_BYTES);
    write_tag(frame, tpid, tci);
}

fn write_tag(frame: &mut [u8], tpid: u16, tci: u16) {
    frame[MAC_ADDRESSES_BYTES..MAC_ADDRESSES_BYTES + 2].copy_from_slice(&tpid.to_be_bytes());
    frame[MAC_ADDRESSES_BYTES + 2..MAC_ADDRESSES_BYTES + 4].copy_from_slice(&tci.to_be_bytes());
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

    const TAGGED: &[u8] = b"ddddddssssss\x88\xa8\x20\x05\x08\x00payload";

    #[test]
    fn the_tag_is_back_where_it_was_whichever_side_has_room() {
        let mut front = b"....ddddddssssss\x08\x00payload".to_vec();
        reinsert_tag_front(&mut front, 0x88a8, 0x2005);
        assert_eq!(front, TAGGED);

        let mut end = b"ddddddssssss\x08\x00payload....".to_vec();
        reinsert_tag_end(&mut end, 0x88a8, 0x2005);
        assert_eq!(end, TAGGED);
    }
}
