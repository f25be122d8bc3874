//! ARP and its relatives (RFC 826, 903, 2390).

use super::bytes::{Bytes, Cut};
use super::ether;
use super::line::{Address, Line, name};

const TRAILERS: u16 = 0x1000;
const ATM: u16 = 19;

/// Names of hardware types (IANA's ARP parameters).
const HARDWARE: &[(u16, &str)] = &[
    (1, "Ethernet"),
    (6, "TokenRing"),
    (7, "ArcNet"),
    (15, "FrameRelay"),
    (23, "Strip"),
    (24, "IEEE 1394"),
    (32, "InfiniBand"),
];

const OPERATIONS: &[(u16, &str)] = &[
    (1, "Request"),
    (2, "Reply"),
    (3, "Reverse Request"),
    (4, "Reverse Reply"),
    (8, "Inverse Request"),
    (9, "Inverse Reply"),
    (10, "NACK Reply"),
];

/// An ARP packet, with the padding of the frame counted in `length` as it came.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 8;
    let packet = Bytes::new(data, "arp");
    let (hardware, protocol) = (packet.u16(0)?, packet.u16(2)?);
    let (hardware_bytes, protocol_bytes) = (packet.u8(4)?, packet.u8(5)?);
    let operation = packet.u16(6)?;
    let kind = if line.link_header { "" } else { "ARP, " };
    if hardware == ATM {
        // RFC 2225: other fields, in other places.
        write!(line, "{kind}ATM");
        line.length(length);
        return Ok(());
    }
    let (h, p) = (usize::from(hardware_bytes), usize::from(protocol_bytes));
    let addresses = Bytes::new(packet.slice(HEADER, 2 * (h + p))?, "arp");
    let (sender, target) = (addresses.slice(0, h)?, addresses.slice(h + p, h)?);

    line.text(kind);
    let is_ip = protocol == ether::IPV4 || protocol == TRAILERS;
    if !is_ip || p != 4 || h == 0 {
        match name(HARDWARE, hardware) {
            Some(name) => line.text(name),
            None => write!(line, "Unknown Hardware ({hardware})"),
        }
        write!(line, " (len {h}), ");
        match ether::type_name(protocol) {
            "Unknown" => write!(line, "Unknown Protocol ({protocol:#06x})"),
            name => line.text(name),
        }
        write!(line, " (len {p})");
        line.length(length);
        return Ok(());
    }

    let sender_ip = Address::V4(addresses.array(h)?);
    let target_ip = Address::V4(addresses.array(2 * h + p)?);
    match name(OPERATIONS, operation) {
        Some(name) => line.text(name),
        None => write!(line, "Unknown ({operation})"),
    }
    match operation {
        1 => {
            line.text(" who-has ");
            line.address(target_ip);
            if target.iter().any(|&byte| byte != 0) {
                line.text(" (");
                line.hex(target, ":");
                line.text(")");
            }
            line.text(" tell ");
            line.address(sender_ip);
        }
        2 => {
            line.text(" ");
            line.address(sender_ip);
            line.text(" is-at ");
            line.hex(sender, ":");
        }
        3 | 8 => {
            line.text(" who-is ");
            line.hex(target, ":");
            line.text(" tell ");
            line.hex(sender, ":");
        }
        4 => {
            line.text(" ");
            line.hex(target, ":");
            line.text(" at ");
            line.address(target_ip);
        }
        9 => {
            line.text(" ");
            line.hex(sender, ":");
            line.text(" at ");
            line.address(sender_ip);
        }
        // Nobody says what the addresses mean.
        _ => return Ok(()),
    }
    line.length(length);
    Ok(())
}
