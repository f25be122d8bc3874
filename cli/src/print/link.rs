//! What lies below the network protocol, by link type (tcpdump.org/linktypes.html).

use super::bytes::{Bytes, Cut};
use super::line::{Line, name};
use super::{ether, ip4, ip6};

const NULL: u16 = 0;
const ETHERNET: u16 = 1;
const RAW: u16 = 101;
const LOOP: u16 = 108;
const LINUX_SLL: u16 = 113;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const LINUX_SLL2: u16 = 276;

/// A packet of `length` bytes, of which `data` are there.
pub fn print(line: &mut Line, link_type: u16, data: &[u8], length: u32) -> Result<(), Cut> {
    match link_type {
        ETHERNET => ether::print(line, data, length),
        RAW | IPV4 | IPV6 => raw(line, data, length),
        NULL | LOOP => null(line, data, length),
        LINUX_SLL => sll(line, data, length),
        LINUX_SLL2 => sll2(line, data, length),
        _ => {
            write!(line, "link type {link_type}, length {length}");
            if data.len() < length as usize {
                write!(line, " ({} captured)", data.len());
            }
            Ok(())
        }
    }
}

/// An IP packet with nothing below it.
fn raw(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    if line.link_header {
        line.text("ip: ");
    }
    match Bytes::new(data, "ipn").u8(0)? >> 4 {
        4 => ip4::print(line, data, length),
        6 => ip6::print(line, data, length),
        version => {
            write!(line, "unknown ip {version}");
            Ok(())
        }
    }
}

/// BSD loopback: the address family, in the byte order of who captured.
fn null(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 4;
    let header = Bytes::new(data, "null");
    let family = u32::from_le_bytes(header.array(0)?);
    let family = if family >> 16 == 0 { family } else { family.swap_bytes() };
    let left = length.saturating_sub(HEADER as u32);
    // IPv6 is 24 in NetBSD and OpenBSD, 28 in FreeBSD, 30 in Darwin.
    let name = match family {
        2 => "IPv4",
        6 => "NS",
        7 => "ISO",
        16 => "Appletalk",
        23 => "IPX",
        24 | 28 | 30 => "IPv6",
        _ => "Unknown",
    };
    let is_ip = matches!(name, "IPv4" | "IPv6");
    if line.link_header || !is_ip {
        write!(line, "AF {name} ({family}), length {length}");
    }
    if line.link_header && is_ip {
        line.text(": ");
    }
    match name {
        "IPv4" => ip4::print(line, header.after(HEADER), left),
        "IPv6" => ip6::print(line, header.after(HEADER), left),
        _ => Ok(()),
    }
}

/// The header Linux puts in the place of one that "any" interface would have, or one it does
/// not know: version 1.
fn sll(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 16;
    let header = Bytes::new(data, "sll");
    header.slice(0, HEADER)?;
    let cooked = Cooked {
        interface: None,
        packet_type: header.u16(0)?,
        hardware: header.u16(2)?,
        address: header.slice(6, usize::from(header.u16(4)?).min(8))?,
        protocol: header.u16(14)?,
        length,
    };
    cooked.print(line, header.after(HEADER))
}

/// Version 2, which has the interface's number.
fn sll2(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    const HEADER: usize = 20;
    let header = Bytes::new(data, "sll2");
    header.slice(0, HEADER)?;
    let cooked = Cooked {
        interface: Some(header.u32(4)?),
        packet_type: header.u8(10)?.into(),
        hardware: header.u16(8)?,
        address: header.slice(12, usize::from(header.u8(11)?).min(8))?,
        protocol: header.u16(0)?,
        length,
    };
    cooked.print(line, header.after(HEADER))
}

/// What the versions of the Linux header say, and the packet's length.
struct Cooked<'a> {
    interface: Option<u32>,
    packet_type: u16,
    hardware: u16,
    address: &'a [u8],
    protocol: u16,
    length: u32,
}

impl Cooked<'_> {
    /// ARPHRD_IEEE80211_RADIOTAP: the payload begins with radio measurements.
    const RADIOTAP: u16 = 803;
    const LLC: u16 = 4;

    fn print(&self, line: &mut Line, payload: &[u8]) -> Result<(), Cut> {
        if let Some(interface) = self.interface {
            // By its number: the machine that reads need not be the one that knew the name.
            write!(line, "if{interface:<3} {:<3} ", self.packet_type());
        }
        if !line.link_header {
            if !self.payload(line, payload)? {
                self.header(line);
            }
            return Ok(());
        }
        self.header(line);
        let end = line.mark();
        line.text(": ");
        if !self.payload(line, payload)? {
            line.back_to(end);
        }
        Ok(())
    }

    fn packet_type(&self) -> &'static str {
        let types = [(0, "In"), (1, "B"), (2, "M"), (3, "P"), (4, "Out")];
        name(&types, self.packet_type).unwrap_or("?")
    }

    fn header(&self, line: &mut Line) {
        match self.interface {
            Some(interface) => write!(line, "ifindex {interface} "),
            None => write!(line, "{:>3} ", self.packet_type()),
        }
        if self.address.len() == 6 {
            line.hex(self.address, ":");
            line.text(" ");
        }
        match self.protocol {
            1 => line.text("802.3"),
            Self::LLC => line.text("802.2"),
            other @ ..=ether::MAX_LENGTH => write!(line, "ethertype Unknown ({other:#06x})"),
            ethertype => ether::print_type(line, ethertype),
        }
        line.length(self.length);
    }

    fn payload(&self, line: &mut Line, data: &[u8]) -> Result<bool, Cut> {
        if self.hardware == Self::RADIOTAP {
            return Ok(false);
        }
        let header = if self.interface.is_some() { 20 } else { 16 };
        let mut length = self.length.saturating_sub(header);
        let (mut protocol, mut data) = (self.protocol, data);
        while protocol == 0x8100 {
            let tag = Bytes::new(data, "vlan");
            protocol = tag.u16(2)?;
            if protocol <= ether::MAX_LENGTH {
                protocol = Self::LLC;
            }
            if line.link_header {
                ether::print_tag(line, tag.u16(0)?);
            }
            write!(line, "ethertype {}, ", ether::type_name(protocol));
            (data, length) = (tag.after(4), length.saturating_sub(4));
        }
        match protocol {
            Self::LLC => ether::snap(line, data, length),
            ..=ether::MAX_LENGTH => Ok(false),
            _ => ether::protocol(line, protocol, data, length),
        }
    }
}
