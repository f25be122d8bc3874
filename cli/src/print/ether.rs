//! Ethernet: VLAN tags, IEEE 802.3 with SNAP, and the types above.

use super::bytes::{Bytes, Cut, first};
use super::line::{Line, name};
use super::{arp, ip4, ip6};

pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const REVERSE_ARP: u16 = 0x8035;
pub const IPV6: u16 = 0x86dd;
/// Up to here the field is a length, not a type.
pub const MAX_LENGTH: u16 = 1500;

/// Bytes of a header without a VLAN tag.
const UNTAGGED: usize = 14;

const TAGS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

/// Names of Ethernet types (IANA's registry), with the words tcpdump has for them.
const TYPES: &[(u16, &str)] = &[
    (IPV4, "IPv4"),
    (IPV6, "IPv6"),
    (ARP, "ARP"),
    (REVERSE_ARP, "Reverse ARP"),
    (0x8100, "802.1Q"),
    (0x88a8, "802.1Q-QinQ"),
    (0x9100, "802.1Q-9100"),
    (0x9200, "802.1Q-9200"),
    (0x88e5, "802.1AE MACsec"),
    (0x8847, "MPLS unicast"),
    (0x8848, "MPLS multicast"),
    (0x0600, "NS"),
    (0x0707, "GeoNet (old)"),
    (0x1000, "Trail"),
    (0x1111, "CALM FAST"),
    (0x6001, "MOP DL"),
    (0x6002, "MOP RC"),
    (0x6003, "DN"),
    (0x6004, "LAT"),
    (0x6007, "SCA"),
    (0x6558, "TEB"),
    (0x8038, "Lanbridge"),
    (0x803c, "DEC DNS"),
    (0x803e, "DEC DTS"),
    (0x805b, "VEXP"),
    (0x805c, "VPROD"),
    (0x809b, "Appletalk"),
    (0x80f3, "Appletalk ARP"),
    (0x8137, "IPX"),
    (0x880b, "PPP"),
    (0x8808, "MPCP"),
    (0x8809, "Slow Protocols"),
    (0x8863, "PPPoE D"),
    (0x8864, "PPPoE S"),
    (0x886f, "MS NLB heartbeat"),
    (0x8870, "Jumbo"),
    (0x888e, "EAPOL"),
    (0x8899, "Realtek protocols"),
    (0x88a2, "AoE"),
    (0x88ca, "TIPC"),
    (0x88cc, "LLDP"),
    (0x88f7, "PTP"),
    (0x8902, "CFM"),
    (0x893a, "IEEE1905.1"),
    (0x8947, "GeoNet"),
    (0x894f, "NSH"),
    (0x9000, "Loopback"),
    (0xabcd, "CFM (old)"),
    (0xd28b, "Arista Vendor Specific Protocol"),
    (0xfefe, "OSI"),
];

/// The name of an Ethernet type.
pub fn type_name(ethertype: u16) -> &'static str {
    name(TYPES, ethertype).unwrap_or("Unknown")
}

/// `ethertype IPv4 (0x0800)`.
pub fn print_type(line: &mut Line, ethertype: u16) {
    let name = type_name(ethertype);
    write!(line, "ethertype {name} ({ethertype:#06x})");
}

/// `vlan 5, p 0, `: what a VLAN tag says (IEEE 802.1Q).
pub fn print_tag(line: &mut Line, control: u16) {
    let (vlan, priority) = (control & 0xfff, control >> 13);
    let eligible = if control & 0x1000 == 0 { "" } else { ", DEI" };
    write!(line, "vlan {vlan}, p {priority}{eligible}, ");
}

/// An Ethernet frame without its check sequence.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "ether");
    header.slice(0, UNTAGGED)?;
    if line.link_header {
        print_addresses(line, header)?;
    }
    let mut ethertype = header.u16(12)?;
    let mut at = UNTAGGED;
    while TAGS.contains(&ethertype) {
        let tag = Bytes::new(data, "vlan");
        let inner = tag.u16(at + 2)?;
        if line.link_header {
            print_type(line, ethertype);
            match at {
                UNTAGGED => write!(line, ", length {length}: "),
                _ => line.text(", "),
            }
            print_tag(line, tag.u16(at)?);
        }
        ethertype = inner;
        at += 4;
    }

    let has_length = ethertype <= MAX_LENGTH;
    let mut left = length.saturating_sub(at as u32);
    if has_length {
        left = left.min(ethertype.into());
    }
    // A tag that is shown has said the length.
    let first_length = at == UNTAGGED || !line.link_header;
    let end_of_header = |line: &mut Line| {
        match has_length {
            true => line.text("802.3"),
            false => print_type(line, ethertype),
        }
        if first_length {
            line.length(if has_length { left } else { length });
        }
    };

    let start = line.mark();
    if line.link_header {
        end_of_header(line);
        line.text(match (first_length, has_length) {
            (true, _) => ": ",
            (false, true) => "",
            (false, false) => ", ",
        });
    }
    let payload = header.after(at);
    let known = match has_length {
        true => snap(line, first(payload, left), left)?,
        false => protocol(line, ethertype, payload, left)?,
    };
    if !known {
        line.back_to(start);
        if !line.link_header {
            print_addresses(line, header)?;
        }
        end_of_header(line);
    }
    Ok(())
}

fn print_addresses(line: &mut Line, header: Bytes) -> Result<(), Cut> {
    line.hex(header.slice(6, 6)?, ":");
    line.text(" > ");
    line.hex(header.slice(0, 6)?, ":");
    line.text(", ");
    Ok(())
}

/// What an Ethernet type says follows. False, and nothing written, for a type of which no more
/// than the name is known.
pub fn protocol(line: &mut Line, ethertype: u16, data: &[u8], length: u32) -> Result<bool, Cut> {
    match ethertype {
        IPV4 => ip4::print(line, data, length)?,
        IPV6 => ip6::print(line, data, length)?,
        ARP | REVERSE_ARP => arp::print(line, data, length)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// An Ethernet type behind an LLC and SNAP header (IEEE 802, RFC 1042).
pub fn snap(line: &mut Line, data: &[u8], length: u32) -> Result<bool, Cut> {
    const HEADER: u32 = 8;
    let (vendor, high, low, payload) = match *data {
        [0xaa, 0xaa, 3, 0, 0, vendor @ (0 | 0xf8), high, low, ref payload @ ..] => {
            (vendor, high, low, payload)
        }
        _ => return Ok(false),
    };
    let ethertype = u16::from_be_bytes([high, low]);
    let length = length.saturating_sub(HEADER);
    if line.link_header {
        line.text("LLC, dsap SNAP (0xaa) Individual, ssap SNAP (0xaa) Command, ctrl 0x03: oui ");
        line.text(match vendor {
            0 => "Ethernet (0x000000), ",
            _ => "Cisco bridged (0x0000f8), ",
        });
        print_type(line, ethertype);
        write!(line, ", length {length}: ");
    }
    protocol(line, ethertype, payload, length)
}
