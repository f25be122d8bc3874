//! TCP (RFC 9293), sequence numbers counted from where the connection began.

use super::bytes::{Bytes, Cut};
use super::flows::Base;
use super::line::Line;
use super::payload::{Network, TCP};
use super::tcp_options;

const HEADER: u32 = 20;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;

/// The letter of each flag, from the lowest bit.
const FLAGS: [(u8, &str); 8] = [
    (FIN, "F"),
    (SYN, "S"),
    (RST, "R"),
    (8, "P"),
    (ACK, "."),
    (URG, "U"),
    (0x40, "E"),
    (0x80, "W"),
];

/// A segment of `length` bytes.
pub fn print(line: &mut Line, network: &Network, data: &[u8], length: u32) -> Result<(), Cut> {
    let header = Bytes::new(data, "tcp");
    if !header.has(0, 4) {
        network.print(line, ":");
        return Err(header.cut());
    }
    let ports = (header.u16(0)?, header.u16(2)?);
    network.print_ports(line, network.protocol == TCP, ports);
    header.slice(0, HEADER as usize)?;
    let header_length = u32::from(header.u8(12)? >> 4) * 4;
    if header_length < HEADER {
        let rest = length.wrapping_sub(header_length);
        write!(line, " tcp {rest} [bad hdr length {header_length} - too short, < {HEADER}]");
        return Ok(());
    }

    let flags = header.u8(13)?;
    print_flags(line, flags);
    let (mut seq, mut ack) = (header.u32(4)?, header.u32(8)?);
    let mut base = Base::default();
    if flags & ACK != 0 {
        let source = (ports.0, network.source);
        let destination = (ports.1, network.destination);
        base = line.flows.base(source, destination, (seq, ack), flags & SYN != 0);
        if !base.fresh {
            seq = seq.wrapping_sub(base.sent);
            ack = ack.wrapping_sub(base.acknowledged);
        }
    }
    if header_length > length {
        write!(line, " [bad hdr length {header_length} - too long, > {length}]");
        return Ok(());
    }

    let length = length - header_length;
    if length > 0 || flags & (SYN | FIN | RST) != 0 {
        line.text(", seq ");
        line.decimal(seq);
        if length > 0 {
            line.text(":");
            line.decimal(seq.wrapping_add(length));
        }
    }
    if flags & ACK != 0 {
        line.text(", ack ");
        line.decimal(ack);
    }
    line.text(", win ");
    line.decimal(header.u16(14)?);
    if flags & URG != 0 {
        line.text(", urg ");
        line.decimal(header.u16(18)?);
    }
    if header_length > HEADER {
        let options = Bytes::new(header.after(HEADER as usize), "tcp");
        let room = (header_length - HEADER) as usize;
        if !tcp_options::print(line, options, room, base.acknowledged)? {
            return Ok(());
        }
    }
    line.length(length);
    if length > 0 && !header.has(0, header_length as usize) {
        let left = header.len();
        write!(line, " [remaining caplen({left}) < header length({header_length})]");
        return Err(header.cut());
    }
    Ok(())
}

fn print_flags(line: &mut Line, flags: u8) {
    line.text("Flags [");
    if flags == 0 {
        line.text("none");
    }
    for (flag, letter) in FLAGS {
        if flags & flag != 0 {
            line.text(letter);
        }
    }
    line.text("]");
}
