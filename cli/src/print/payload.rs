//! What follows an IP header, by protocol number (IANA's registry).

use super::bytes::{Bytes, Cut};
use super::line::{Address, Line, name};
use super::{ether, icmp, icmp6, ip4, ip6, tcp, udp};

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const DCCP: u8 = 33;
pub const ESP: u8 = 50;
pub const AH: u8 = 51;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;

/// Protocols of which no more than the name and the length is shown.
const NAMES: &[(u8, &str)] = &[
    (2, "igmp"),
    (8, "egp"),
    (9, "igrp"),
    (46, "RSVP"),
    (47, "GRE"),
    (55, "mobile"),
    (88, "EIGRP"),
    (89, "OSPF"),
    (103, "PIM"),
    (112, "VRRP"),
    (113, "PGM"),
];

/// The network header something is in.
pub struct Network {
    pub source: Address,
    pub destination: Address,
    /// What the header itself says follows it; more headers may come before the payload.
    pub protocol: u8,
}

impl Network {
    pub fn print(&self, line: &mut Line, end: &str) {
        line.address(self.source);
        line.text(" > ");
        line.address(self.destination);
        line.text(end);
    }

    /// The ends of a protocol with ports, with the addresses or, where a header between has
    /// shown them, without.
    pub fn print_ports(&self, line: &mut Line, addresses: bool, (from, to): (u16, u16)) {
        if addresses {
            line.address(self.source);
            line.text(".");
        }
        line.decimal(from);
        line.text(" > ");
        if addresses {
            line.address(self.destination);
            line.text(".");
        }
        line.decimal(to);
        line.text(": ");
    }
}

/// Whether the protocol shows the addresses itself, with its ports.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP)
}

/// A payload of `length` bytes. `fragmented` says that more of it is in other packets.
pub fn print(
    line: &mut Line,
    network: &Network,
    protocol: u8,
    data: &[u8],
    length: u32,
    fragmented: bool,
) -> Result<(), Cut> {
    let is_v4 = matches!(network.source, Address::V4(_));
    match protocol {
        TCP => tcp::print(line, network, data, length),
        UDP => udp::print(line, network, data, length, fragmented),
        ICMP if is_v4 => icmp::print(line, data, length),
        ICMPV6 if !is_v4 => icmp6::print(line, data, length),
        4 => ip4::print(line, data, length),
        41 => ip6::print(line, data, length),
        143 if !is_v4 => {
            if line.deeper() {
                ether::print(line, data, length)?;
            }
            Ok(())
        }
        AH => authentication(line, network, data, length, fragmented),
        ESP => {
            let header = Bytes::new(data, "esp");
            let (spi, sequence) = (header.u32(0)?, header.u32(4)?);
            write!(line, "ESP(spi={spi:#010x},seq={sequence:#x})");
            line.length(length);
            Ok(())
        }
        108 => {
            let index = Bytes::new(data, "ipcomp").u16(2)?;
            write!(line, "IPComp(cpi={index:#06x})");
            Ok(())
        }
        SCTP | DCCP => {
            let (name, says) = match protocol {
                SCTP => ("sctp", "sctp"),
                _ => ("dccp", "DCCP"),
            };
            let header = Bytes::new(data, name);
            header.slice(0, 12)?;
            network.print_ports(line, true, (header.u16(0)?, header.u16(2)?));
            line.text(says);
            line.length(length);
            Ok(())
        }
        _ => {
            other(line, is_v4, protocol, length);
            Ok(())
        }
    }
}

/// A protocol that is not looked into.
fn other(line: &mut Line, is_v4: bool, protocol: u8, length: u32) {
    match (protocol, is_v4) {
        (ICMP, _) => line.text("[ICMP requires IPv4] (invalid)"),
        (2, false) => line.text("[IGMP requires IPv4] (invalid)"),
        (ICMPV6, _) => line.text("[ICMPv6 requires IPv6] (invalid)"),
        (143, _) => line.text("[Ethernet requires IPv6] (invalid)"),
        (59, _) => line.text("no next header"),
        (77, _) => write!(line, " nd {length}"),
        _ => match name(NAMES, protocol) {
            Some(name) => write!(line, "{name}, length {length}"),
            None => write!(line, " ip-proto-{protocol} {length}"),
        },
    }
}

/// The authentication header (RFC 4302) and what follows it.
fn authentication(
    line: &mut Line,
    network: &Network,
    data: &[u8],
    length: u32,
    fragmented: bool,
) -> Result<(), Cut> {
    const FIXED: usize = 12;
    let header = Bytes::new(data, "ah");
    let next = header.u8(0)?;
    line.text("AH");
    let bytes = (usize::from(header.u8(1)?) + 2) * 4;
    line.text("(");
    match header.u16(2)? {
        0 => {}
        reserved => write!(line, "reserved={reserved:#x}[MustBeZero],"),
    }
    write!(line, "spi={:#010x},", header.u32(4)?);
    write!(line, "seq={:#x},", header.u32(8)?);
    line.text("icv=0x");
    let there = header.after(FIXED);
    let check = bytes.saturating_sub(FIXED);
    line.hex(&there[..there.len().min(check)], "");
    if there.len() < check {
        return Err(header.cut());
    }
    line.text("): ");
    if !line.deeper() {
        return Ok(());
    }
    print(line, network, next, header.after(bytes), length.saturating_sub(bytes as u32), fragmented)
}
