//! ARP (RFC 826) for IPv4 over Ethernet.

use super::bytes::{Bytes, Cut};
use super::line::{IpAddress, Line};

pub const ETHERTYPE: u16 = 0x0806;

/// Writes an ARP packet; `length` counts the padding of its frame.
pub fn print(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
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
