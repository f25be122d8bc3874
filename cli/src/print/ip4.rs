//! IPv4 (RFC 791).

use super::bytes::{Bytes, Cut, first};
use super::line::{Address, Line};
use super::payload::{self, Network, has_ports};

const HEADER: u32 = 20;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// A packet in `length` bytes; what it says of its own length counts.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "ip");
    match header.u8(0)? >> 4 {
        4 if line.link_header => {}
        4 => line.text("IP "),
        6 => {
            line.text("IP6, wrong link-layer encapsulation (invalid)");
            return Ok(());
        }
        version => {
            write!(line, "IP{version} (invalid)");
            return Ok(());
        }
    }
    header.slice(0, HEADER as usize)?;
    if length < HEADER {
        write!(line, "truncated-ip {length}");
        return Ok(());
    }
    let header_length = u32::from(header.u8(0)? & 15) * 4;
    if header_length < HEADER {
        write!(line, "bad-hlen {header_length}");
        return Ok(());
    }
    let total = u32::from(header.u16(2)?);
    if length < total {
        let missing = total - length;
        write!(line, "truncated-ip - {missing} bytes missing! ");
    }
    if total < header_length {
        write!(line, "bad-len {total}");
        return Ok(());
    }
    if !line.deeper() {
        return Ok(());
    }

    // What follows the packet in the frame is padding.
    let packet = Bytes::new(first(data, total), "ip");
    let network = Network {
        source: Address::V4(packet.array(12)?),
        destination: Address::V4(packet.array(16)?),
        protocol: packet.u8(9)?,
    };
    let fragment = packet.u16(6)?;
    if fragment & OFFSET != 0 {
        // The header that says more is in the first fragment.
        network.print(line, ":");
        write!(line, " ip-proto-{}", network.protocol);
        return Ok(());
    }
    if !has_ports(network.protocol) {
        network.print(line, ": ");
    }
    if packet.len() < header_length as usize {
        let left = packet.len();
        write!(line, " [remaining caplen({left}) < header length({header_length})]");
        return Err(packet.cut());
    }
    let more = fragment & MORE_FRAGMENTS != 0;
    let rest = packet.after(header_length as usize);
    payload::print(line, &network, network.protocol, rest, total - header_length, more)
}
