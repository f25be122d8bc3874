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

/// An Ethernet frame without its check sequence.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "ether");
    header.slice(0, 14)?;
    let mut ethertype = header.u16(12)?;
    let mut at = 14;
    while TAGS.contains(&ethertype) {
        ethertype = Bytes::new(data, "vlan").u16(at + 2)?;
        at += 4;
    }
    let payload = header.from(at);
    let left = length.saturating_sub(at as u32);
    let known = match ethertype {
        ..=MAX_LENGTH => {
            let left = left.min(ethertype.into());
            snap(line, first(payload, left), left)?
        }
        _ => protocol(line, ethertype, payload, left)?,
    };
    if !known {
        line.hex(header.slice(6, 6)?, ":");
        line.text(" > ");
        line.hex(header.slice(0, 6)?, ":");
        match ethertype {
            ..=MAX_LENGTH => write!(line, ", 802.3, length {ethertype}"),
            _ => {
                let name = type_name(ethertype);
                write!(line, ", ethertype {name} ({ethertype:#06x}), length {length}");
            }
        }
    }
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
    match *data {
        [0xaa, 0xaa, 3, 0, 0, 0 | 0xf8, high, low, ref payload @ ..] => {
            let ethertype = u16::from_be_bytes([high, low]);
            protocol(line, ethertype, payload, length.saturating_sub(HEADER))
        }
        _ => Ok(false),
    }
}
