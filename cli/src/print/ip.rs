//! IPv4 (RFC 791), IPv6 and its extension headers (RFC 8200), and the protocols above.

use sluicegate::headers::protocol::{
    DESTINATION, FRAGMENT, HOP_BY_HOP, ICMP, ICMPV6, ROUTING, SCTP, TCP, UDP,
};

use super::line::{BAD_HEADER, Bytes, Cut, IpAddress, Line, Network, first};
use super::protocols::name_in_lines;
use super::{dns, icmp, icmp6, tcp};

const ESP: u8 = 50;

/// Writes an IPv4 packet in `length` bytes; bytes beyond its own length are padding.
pub fn v4(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: u32 = 20;
    const MORE_FRAGMENTS: u16 = 0x2000;
    const OFFSET: u16 = 0x1fff;
    let header = Bytes::new(data, "ip");
    let first_byte = u32::from(header.u8(0)?);
    if !line.link_header {
        line.text("IP ");
    }
    header.slice(0, HEADER as usize)?;
    let (version, header_length) = (first_byte >> 4, (first_byte & 15) * 4);
    let total = or_whole(header.u16(2)?.into(), length);
    if version != 4 || header_length < HEADER || total < header_length || length < HEADER {
        line.text(BAD_HEADER);
        return Ok(());
    }
    if length < total {
        write!(line, "truncated-ip - {} bytes missing! ", total - length);
    }
    if !line.deeper() {
        return Ok(());
    }
    let packet = Bytes::new(first(data, total), "ip");
    let fragment = packet.u16(6)?;
    let network = Network {
        source: IpAddress::V4(packet.array(12)?),
        destination: IpAddress::V4(packet.array(16)?),
        protocol: packet.u8(9)?,
        fragmented: fragment & MORE_FRAGMENTS != 0,
    };
    if fragment & OFFSET != 0 {
        // The payload's header is in the first fragment.
        network.addresses(line, ":");
        write!(line, " ip-proto-{}", network.protocol);
        return Ok(());
    }
    network.begin(line);
    packet.slice(0, header_length as usize)?;
    let rest = packet.after(header_length as usize);
    payload(line, &network, network.protocol, rest, total - header_length)
}

/// Writes an IPv6 packet in `length` bytes; bytes beyond its own length are padding.
pub fn v6(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: u32 = 40;
    let header = Bytes::new(data, "ip6");
    header.slice(0, HEADER as usize)?;
    if !line.link_header {
        line.text("IP6 ");
    }
    if header.u8(0)? >> 4 != 6 || length < HEADER {
        line.text(BAD_HEADER);
        return Ok(());
    }
    let total = HEADER + or_whole(header.u16(4)?.into(), length - HEADER);
    if length < total {
        write!(line, "truncated-ip6 - {} bytes missing!", total - length);
    }
    if !line.deeper() {
        return Ok(());
    }
    let data = first(data, total);
    let mut network = Network {
        source: IpAddress::V6(header.array(8)?),
        destination: IpAddress::V6(header.array(24)?),
        protocol: header.u8(6)?,
        fragmented: false,
    };
    network.begin(line);
    let (mut next, mut at) = (network.protocol, HEADER);
    loop {
        let rest = Bytes::new(data, "ip6").after(at as usize);
        let bytes = match next {
            HOP_BY_HOP if at == HEADER => options(line, Bytes::new(rest, "hbhopt"), "HBH ")?,
            DESTINATION => options(line, Bytes::new(rest, "dstopt"), "DSTOPT ")?,
            ROUTING => routing(line, Bytes::new(rest, "rt6"))?,
            FRAGMENT => {
                const BYTES: u32 = 8;
                let header = Bytes::new(rest, "frag6");
                let offset = header.u16(2)? & 0xfff8;
                write!(line, "frag ({offset}|{})", total.saturating_sub(at + BYTES));
                if offset != 0 {
                    return Ok(());
                }
                line.text(" ");
                network.fragmented = true;
                BYTES
            }
            _ => break payload(line, &network, next, rest, total - at),
        };
        next = Bytes::new(rest, "ip6").u8(0)?;
        at += bytes;
        if at > total {
            return Err(Cut("ip6"));
        }
    }
}

/// Returns the length in a header. The header has 0 if the length does not fit 16 bits: in jumbograms (RFC
/// 2675), and in TCP segments that the kernel has not split yet. Then it returns the length of the whole
/// packet.
fn or_whole(says: u32, whole: u32) -> u32 {
    if says == 0 && whole > u16::MAX.into() { whole } else { says }
}

/// Writes the name of a header of options. Returns its bytes.
fn options(line: &mut Line, header: Bytes, name: &str) -> Result<u32, Cut> {
    let bytes = (u32::from(header.u8(1)?) + 1) * 8;
    header.slice(0, bytes as usize)?;
    line.text(name);
    Ok(bytes)
}

/// Writes a routing header: types 0 and 2 (RFC 6275), and 4, segment routing (RFC 8754). Returns its
/// bytes.
fn routing(line: &mut Line, header: Bytes) -> Result<u32, Cut> {
    let (words, kind, left) = (header.u8(1)?, header.u8(2)?, header.u8(3)?);
    write!(line, "RT6 (len={words}, type={kind}");
    if kind == 0 {
        line.text(" [Deprecated]");
    }
    write!(line, ", segleft={left}");
    let mut addresses = usize::from(words / 2);
    if kind == 4 {
        let (last, flags, tag) = (header.u8(4)?, header.u8(5)?, header.u16(6)?);
        write!(line, ", last-entry={last}");
        if flags != 0 {
            write!(line, ", flags={flags:#x}");
        }
        write!(line, ", tag={tag:x}");
        addresses = addresses.min(usize::from(last) + 1);
    }
    for index in 0..addresses {
        let address = IpAddress::V6(header.array(8 + index * 16)?);
        write!(line, ", [{index}]{address}");
    }
    line.text(") ");
    Ok((u32::from(words) + 1) * 8)
}

/// Writes a payload of `length` bytes.
fn payload(
    line: &mut Line,
    network: &Network,
    protocol: u8,
    data: &[u8],
    length: u32,
) -> Result<(), Cut> {
    let is_v4 = matches!(network.source, IpAddress::V4(_));
    match protocol {
        TCP => return tcp::print(line, network, data, length),
        UDP => return udp(line, network, data, length),
        ICMP if is_v4 => return icmp::print(line, data, length),
        ICMPV6 if !is_v4 => return icmp6::print(line, data, length),
        4 => return v4(line, data, length),
        41 => return v6(line, data, length),
        ESP => esp(line, data, length)?,
        SCTP => sctp(line, network, data, length)?,
        59 => line.text("no next header"),
        _ => match name_in_lines(protocol) {
            Some(name) => write!(line, "{name}, length {length}"),
            None => write!(line, " ip-proto-{protocol} {length}"),
        },
    }
    Ok(())
}

/// Writes an encrypted packet (RFC 4303).
fn esp(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "esp");
    let (spi, number) = (header.u32(0)?, header.u32(4)?);
    write!(line, "ESP(spi={spi:#010x},seq={number:#x})");
    line.length(length);
    Ok(())
}

/// Writes an SCTP packet (RFC 9260) of `length` bytes, without its chunks.
fn sctp(line: &mut Line, network: &Network, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: u32 = 12;
    if length < HEADER {
        write!(line, "truncated-sctp - {} bytes missing!", HEADER - length);
        return Ok(());
    }
    // The addresses are also repeated behind an extension header.
    Network { protocol: SCTP, ..*network }.ports(line, Bytes::new(data, "sctp"))?;
    line.text("sctp");
    line.length(length);
    Ok(())
}

/// Writes a UDP datagram (RFC 768) of `length` bytes.
fn udp(line: &mut Line, network: &Network, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: u32 = 8;
    let header = Bytes::new(data, "udp");
    let ports = network.ports(line, header)?;
    let says = or_whole(header.u16(4)?.into(), length);
    if length < HEADER || says < HEADER {
        line.text(BAD_HEADER);
        return Ok(());
    }
    header.slice(0, HEADER as usize)?;
    let (says, room) = (says - HEADER, length - HEADER);
    let has_port = |port| ports.0 == port || ports.1 == port;
    if !line.quiet && (has_port(dns::PORT) || has_port(dns::MULTICAST_PORT)) {
        let multicast = !has_port(dns::PORT);
        return dns::print(line, header.after(HEADER as usize), says.min(room), multicast);
    }
    if says > room && !network.fragmented {
        write!(line, "UDP, bad length {says} > {room}");
    } else {
        line.text("UDP");
        line.length(says);
    }
    Ok(())
}
