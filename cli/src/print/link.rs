//! The header below the network protocol, by link type (tcpdump.org/linktypes.html), and ARP.

use sluicegate::headers::{self, Headers, ethertype};

use super::ip;
use super::line::{Bytes, Cut, IpAddress, Line, name};

const NULL: u16 = 0;
const ETHERNET: u16 = 1;
const RAW: u16 = 101;
const LOOP: u16 = 108;
const LINUX_SLL: u16 = 113;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const LINUX_SLL2: u16 = 276;

/// The VLAN tag of QinQ that some switches use besides those of [`ethertype::VLAN_TAGS`].
const QINQ_9200: u16 = 0x9200;
/// Maximum of a length in the field; larger values are types.
const MAX_LENGTH: u16 = 1500;

/// Names of Ethernet types (IANA's registry), in tcpdump's words.
const TYPES: &[(u16, &str)] = &[
    (ethertype::IPV4, "IPv4"),
    (ethertype::IPV6, "IPv6"),
    (ethertype::ARP, "ARP"),
    (0x8035, "Reverse ARP"),
    (ethertype::VLAN, "802.1Q"),
    (ethertype::MPLS, "MPLS unicast"),
    (0x8848, "MPLS multicast"),
    (0x8808, "MPCP"),
    (0x8809, "Slow Protocols"),
    (0x8863, "PPPoE D"),
    (0x8864, "PPPoE S"),
    (0x888e, "EAPOL"),
    (ethertype::SERVICE_VLAN, "802.1Q-QinQ"),
    (0x88cc, "LLDP"),
    (0x88e5, "802.1AE MACsec"),
    (0x88f7, "PTP"),
    (0x9000, "Loopback"),
    (0x9100, "802.1Q-9100"),
    (QINQ_9200, "802.1Q-9200"),
];

/// Names of link types whose packets are not read (tcpdump.org/linktypes.html).
const LINK_TYPES: &[(u16, &str)] = &[
    (6, "IEEE802_5"),
    (7, "ARCNET_BSD"),
    (8, "SLIP"),
    (9, "PPP"),
    (10, "FDDI"),
    (50, "PPP_HDLC"),
    (51, "PPP_ETHER"),
    (100, "ATM_RFC1483"),
    (104, "C_HDLC"),
    (105, "IEEE802_11"),
    (107, "FRELAY"),
    (114, "LTALK"),
    (117, "PFLOG"),
    (119, "IEEE802_11_PRISM"),
    (122, "IP_OVER_FC"),
    (123, "SUNATM"),
    (127, "IEEE802_11_RADIOTAP"),
    (129, "ARCNET_LINUX"),
    (140, "MTP2"),
    (143, "DOCSIS"),
    (144, "LINUX_IRDA"),
    (163, "IEEE802_11_AVS"),
    (187, "BLUETOOTH_HCI_H4"),
    (189, "USB_LINUX"),
    (192, "PPI"),
    (195, "IEEE802_15_4_WITHFCS"),
    (201, "BLUETOOTH_HCI_H4_WITH_PHDR"),
    (220, "USB_LINUX_MMAPPED"),
    (227, "CAN_SOCKETCAN"),
    (230, "IEEE802_15_4_NOFCS"),
    (239, "NFLOG"),
    (242, "IP_OVER_IB"),
    (249, "USBPCAP"),
    (253, "NETLINK"),
];

/// Returns the name of an Ethernet type that is known.
pub fn ethertype_name(ethertype: u16) -> Option<&'static str> {
    name(TYPES, ethertype)
}

/// Writes a packet of `length` bytes; `data` is its captured part.
pub fn print(line: &mut Line, link_type: u16, data: &[u8], length: u32) -> Result<(), Cut> {
    match link_type {
        ETHERNET => ethernet(line, data, length),
        RAW | IPV4 | IPV6 => raw(line, data, length),
        NULL | LOOP => null(line, data, length),
        LINUX_SLL => sll(line, data, length),
        LINUX_SLL2 => sll2(line, data, length),
        _ => {
            match name(LINK_TYPES, link_type) {
                Some(name) => write!(line, "link type {name} ({link_type})"),
                None => write!(line, "link type {link_type}"),
            }
            line.length(length);
            if data.len() < length as usize {
                write!(line, " ({} captured)", data.len());
            }
            Ok(())
        }
    }
}

/// Finds the headers of a packet. None if its link type is unknown, or its link-layer header cut.
pub fn find(link_type: u16, data: &[u8]) -> Option<Headers> {
    let of_ip = |at: usize| {
        let ethertype = match data.get(at)? >> 4 {
            4 => ethertype::IPV4,
            6 => ethertype::IPV6,
            _ => return None,
        };
        Some((ethertype, at))
    };
    let (ethertype, network) = match link_type {
        ETHERNET => return headers::find(data),
        RAW | IPV4 | IPV6 => of_ip(0)?,
        NULL | LOOP => of_ip(4)?,
        LINUX_SLL => (headers::be16(data, 14)?, 16),
        LINUX_SLL2 => (headers::be16(data, 0)?, 20),
        _ => return None,
    };
    Some(headers::find_behind(data, ethertype, network))
}

/// Writes an Ethernet frame without its check sequence.
fn ethernet(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const ADDRESSES: usize = 12;
    let header = Bytes::new(data, "ether");
    header.slice(0, ADDRESSES + 2)?;
    if line.link_header {
        addresses(line, header)?;
    }
    let mut at = ADDRESSES;
    let mut end = line.mark();
    let ethertype = loop {
        let header = Bytes::new(data, if at == ADDRESSES { "ether" } else { "vlan" });
        let ethertype = header.u16(at)?;
        let is_tag = ethertype::VLAN_TAGS.contains(&ethertype) || ethertype == QINQ_9200;
        let control = if is_tag { header.slice(at + 2, 4)? } else { &[] };
        if line.link_header {
            print_type(line, ethertype);
            if at == ADDRESSES {
                line.length(length);
            }
            end = line.mark();
            line.text(if at == ADDRESSES { ": " } else { ", " });
            if let [high, low, ..] = *control {
                print_tag(line, u16::from_be_bytes([high, low]));
            }
        }
        at += 2;
        if !is_tag {
            break ethertype;
        }
        at += 2;
    };
    line.link_bytes = at;
    if protocol(line, ethertype, header.after(at), length.saturating_sub(at as u32))? {
        return Ok(());
    }
    if line.link_header {
        // Nothing follows.
        line.back_to(end);
    } else {
        addresses(line, header)?;
        print_type(line, ethertype);
        line.length(length);
    }
    Ok(())
}

fn addresses(line: &mut Line, header: Bytes) -> Result<(), Cut> {
    line.hex(header.slice(6, 6)?, ":");
    line.text(" > ");
    line.hex(header.slice(0, 6)?, ":");
    line.text(", ");
    Ok(())
}

/// Writes an EtherType: `ethertype IPv4 (0x0800)`; `IPv4` if the line is to be short.
fn print_type(line: &mut Line, ethertype: u16) {
    match name(TYPES, ethertype) {
        Some(name) if line.quiet => line.text(name),
        Some(name) => write!(line, "ethertype {name} ({ethertype:#06x})"),
        None if ethertype <= MAX_LENGTH => line.text("802.3"),
        None if line.quiet => write!(line, "Unknown Ethertype ({ethertype:#06x})"),
        None => write!(line, "ethertype Unknown ({ethertype:#06x})"),
    }
}

/// Writes a VLAN tag (IEEE 802.1Q): `vlan 5, p 0, `.
fn print_tag(line: &mut Line, control: u16) {
    let (vlan, priority) = (control & 0xfff, control >> 13);
    let eligible = if control & 0x1000 == 0 { "" } else { ", DEI" };
    write!(line, "vlan {vlan}, p {priority}{eligible}, ");
}

/// Writes the packet after an EtherType. Returns false, and writes nothing, for an unknown one.
fn protocol(line: &mut Line, ethertype: u16, data: &[u8], length: u32) -> Result<bool, Cut> {
    match ethertype {
        ethertype::IPV4 => ip::v4(line, data, length)?,
        ethertype::IPV6 => ip::v6(line, data, length)?,
        ethertype::ARP => arp(line, data, length)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Writes an IP packet without a link-layer header.
fn raw(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    if line.link_header {
        line.text("ip: ");
    }
    match Bytes::new(data, "ipn").u8(0)? >> 4 {
        4 => ip::v4(line, data, length),
        6 => ip::v6(line, data, length),
        version => {
            write!(line, "unknown ip {version}");
            Ok(())
        }
    }
}

/// Writes a BSD loopback packet: the address family is in the byte order of the capturing machine.
fn null(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 4;
    let header = Bytes::new(data, "null");
    let family = u32::from_le_bytes(header.array(0)?);
    let family = if family >> 16 == 0 { family } else { family.swap_bytes() };
    let (ethertype, name) = match family {
        2 => (ethertype::IPV4, "IPv4"),
        // NetBSD and OpenBSD, FreeBSD, Darwin.
        24 | 28 | 30 => (ethertype::IPV6, "IPv6"),
        _ => (0, "Unknown"),
    };
    line.link_bytes = HEADER;
    if line.link_header || ethertype == 0 {
        match ethertype {
            0 if line.quiet => write!(line, "Unknown AF {family}"),
            _ if line.quiet => line.text(name),
            _ => write!(line, "AF {name} ({family})"),
        }
        line.length(length);
        line.text(if ethertype == 0 { "" } else { ": " });
    }
    protocol(line, ethertype, header.after(HEADER), length.saturating_sub(HEADER as u32))?;
    Ok(())
}

/// Writes a Linux cooked packet, version 1.
fn sll(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 16;
    let header = Bytes::new(data, "sll");
    let ethertype = header.u16(HEADER - 2)?;
    if line.link_header {
        write!(line, "{:>3} ", packet_type(header.u16(0)?));
        sender(line, header, header.u16(4)?, 6)?;
    }
    cooked(line, ethertype, header.after(HEADER), length, HEADER)
}

/// Writes a Linux cooked packet, version 2, which has the interface's number.
fn sll2(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 20;
    let header = Bytes::new(data, "sll2");
    header.slice(0, HEADER)?;
    let (ethertype, interface) = (header.u16(0)?, header.u32(4)?);
    // Names the interface by its number, because the capturing machine may be another one.
    write!(line, "if{interface:<3} {:<3} ", packet_type(header.u8(10)?.into()));
    if line.link_header {
        write!(line, "ifindex {interface} ");
        sender(line, header, header.u8(11)?.into(), 12)?;
    }
    cooked(line, ethertype, header.after(HEADER), length, HEADER)
}

fn packet_type(number: u16) -> &'static str {
    let types = [(0, "In"), (1, "B"), (2, "M"), (3, "P"), (4, "Out")];
    name(&types, number).unwrap_or("?")
}

fn sender(line: &mut Line, header: Bytes, bytes: u16, at: usize) -> Result<(), Cut> {
    if bytes == 6 {
        line.hex(header.slice(at, 6)?, ":");
        line.text(" ");
    }
    Ok(())
}

/// Writes the packet after a cooked header of `header` bytes.
fn cooked(
    line: &mut Line,
    ethertype: u16,
    data: &[u8],
    length: u32,
    header: usize,
) -> Result<(), Cut> {
    line.link_bytes = header;
    let begin = line.mark();
    if line.link_header && !line.quiet {
        print_type(line, ethertype);
        line.length(length);
        line.text(": ");
    }
    if !protocol(line, ethertype, data, length.saturating_sub(header as u32))? {
        line.back_to(begin);
        print_type(line, ethertype);
        line.length(length);
    }
    Ok(())
}

/// Writes an ARP packet (RFC 826) for IPv4 over Ethernet; `length` counts the padding of its frame.
fn arp(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
    const REQUEST: u16 = 1;
    const REPLY: u16 = 2;
    let packet = Bytes::new(data, "arp");
    let prefix = if line.link_header { "" } else { "ARP, " };
    let (format, operation): ([u8; 6], u16) = (packet.array(0)?, packet.u16(6)?);
    if format != ETHERNET_IPV4 || !matches!(operation, REQUEST | REPLY) {
        let (hardware, protocol) = (packet.u16(0)?, packet.u16(2)?);
        line.text(prefix);
        write!(line, "hardware {hardware}, protocol {protocol:#06x}, operation {operation}");
        line.length(length);
        return Ok(());
    }
    let (sender, sender_ip) = (packet.slice(8, 6)?, IpAddress::V4(packet.array(14)?));
    let (target, target_ip) = (packet.slice(18, 6)?, IpAddress::V4(packet.array(24)?));
    line.text(prefix);
    if operation == REQUEST {
        line.text("Request who-has ");
        line.address(target_ip);
        if target.iter().any(|&byte| byte != 0) {
            line.text(" (");
            line.hex(target, ":");
            line.text(")");
        }
        line.text(" tell ");
        line.address(sender_ip);
    } else {
        line.text("Reply ");
        line.address(sender_ip);
        line.text(" is-at ");
        line.hex(sender, ":");
    }
    line.length(length);
    Ok(())
}
