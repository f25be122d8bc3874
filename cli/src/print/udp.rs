//! UDP (RFC 768).

use super::bytes::{Bytes, Cut};
use super::line::Line;
use super::payload::{Network, UDP};

const HEADER: u32 = 8;

/// A datagram of `length` bytes.
pub fn print(
    line: &mut Line,
    network: &Network,
    data: &[u8],
    length: u32,
    fragmented: bool,
) -> Result<(), Cut> {
    let header = Bytes::new(data, "udp");
    let addresses = network.protocol == UDP;
    if !header.has(0, 4) {
        if addresses {
            network.print(line, ": ");
        }
        return Err(header.cut());
    }
    network.print_ports(line, addresses, (header.u16(0)?, header.u16(2)?));
    if length < HEADER {
        write!(line, "truncated-udp {length}");
        return Ok(());
    }
    let mut says = u32::from(header.u16(4)?);
    if says == 0 && length > 65_535 {
        // A jumbogram (RFC 2675).
        says = length;
    }
    if says < HEADER {
        write!(line, "truncated-udplength {says}");
        return Ok(());
    }
    header.slice(0, HEADER as usize)?;
    let (says, room) = (says - HEADER, length - HEADER);
    if says > room && !fragmented {
        write!(line, "UDP, bad length {says} > {room}");
    } else {
        line.text("UDP");
        line.length(says);
    }
    Ok(())
}
