//! A line under construction: the reader of possibly truncated headers, the addresses of a packet, and the
//! initial sequence numbers of TCP connections, to which printed numbers are relative.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};

use sluicegate::headers::protocol::{SCTP, TCP, UDP};

/// A line under construction, and the state kept from earlier packets.
pub struct Line<'p> {
    out: &'p mut String,
    pub flows: &'p mut Flows,
    /// Also shows the link-layer header.
    pub link_header: bool,
    /// Shows less of TCP.
    pub quiet: bool,
    /// Shows sequence numbers as they are.
    pub absolute: bool,
    /// Length of the link-layer header, once it is read.
    pub link_bytes: usize,
    /// The number of nested network headers so far.
    depth: u8,
}

/// Maximum of nested network headers, because the stack is finite.
const DEPTH: u8 = 32;

impl<'p> Line<'p> {
    pub fn new(out: &'p mut String, flows: &'p mut Flows) -> Self {
        let (link_header, quiet, absolute) = (false, false, false);
        Self { out, flows, link_header, quiet, absolute, link_bytes: 0, depth: 0 }
    }

    pub fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Writes an ASCII character.
    pub fn char(&mut self, ascii: u8) {
        self.out.push(char::from(ascii));
    }

    /// Implements `write!`; a write to memory cannot fail, so it returns nothing.
    pub fn write_fmt(&mut self, arguments: fmt::Arguments) {
        let _ = self.out.write_fmt(arguments);
    }

    /// Writes a decimal number, without the cost of `write!`.
    pub fn decimal(&mut self, number: impl Into<u32>) {
        self.out.push_str(itoa::Buffer::new().format::<u32>(number.into()));
    }

    /// Writes bytes as hexadecimal digits, separated by `between`.
    pub fn hex(&mut self, bytes: &[u8], between: &str) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for (index, byte) in bytes.iter().enumerate() {
            if index > 0 {
                self.out.push_str(between);
            }
            self.out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            self.out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }

    /// Writes bytes as printable ASCII, in tcpdump's words: `^` before a control character, `M-` before a byte
    /// above 127.
    pub fn printable(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if !byte.is_ascii() {
                self.out.push_str("M-");
            }
            let low = byte & 0x7f;
            if low.is_ascii_control() {
                self.out.push('^');
                self.out.push(char::from(low ^ 0x40));
            } else {
                self.out.push(char::from(low));
            }
        }
    }

    pub fn address(&mut self, address: IpAddress) {
        let octets = match address {
            IpAddress::V4(octets) => octets,
            IpAddress::V6(_) => return write!(self, "{address}"),
        };
        for (index, octet) in octets.into_iter().enumerate() {
            if index > 0 {
                self.out.push('.');
            }
            self.decimal(octet);
        }
    }

    pub fn length(&mut self, length: u32) {
        self.text(", length ");
        self.decimal(length);
    }

    /// Returns the current end of the line, for [`Self::back_to`].
    pub fn mark(&self) -> usize {
        self.out.len()
    }

    /// Removes the text written since.
    pub fn back_to(&mut self, mark: usize) {
        self.out.truncate(mark);
    }

    /// Counts one more network header. Returns false if it is one too many.
    pub fn deeper(&mut self) -> bool {
        self.depth += 1;
        let follow = self.depth <= DEPTH;
        if !follow {
            self.text("[nested too deep]");
        }
        follow
    }
}

/// The end of the line of an inconsistent header.
pub const BAD_HEADER: &str = "[bad header]";

/// A network address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpAddress {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl fmt::Display for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::V4(octets) => Ipv4Addr::from(octets).fmt(f),
            Self::V6(octets) => match octets {
                // IPv4-compatible, which std writes in hexadecimal.
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] if (a, b) != (0, 0) => {
                    write!(f, "::{}", Ipv4Addr::new(a, b, c, d))
                }
                _ => Ipv6Addr::from(octets).fmt(f),
            },
        }
    }
}

/// Returns the name of a number in a table.
pub fn name<K: Copy + PartialEq, V: Copy>(table: &[(K, V)], number: K) -> Option<V> {
    table.iter().find(|(key, _)| *key == number).map(|&(_, name)| name)
}

/// The packet is truncated in this protocol's header: the line ends with `[|name]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut(pub &'static str);

/// The captured bytes of one protocol's header and payload. A read past the end is a [`Cut`] that
/// names the protocol.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    data: &'a [u8],
    protocol: &'static str,
}

impl<'a> Bytes<'a> {
    pub fn new(data: &'a [u8], protocol: &'static str) -> Self {
        Self { data, protocol }
    }

    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns the error of a truncated packet.
    pub fn cut(&self) -> Cut {
        Cut(self.protocol)
    }

    /// Returns true if `count` bytes at `at` were captured.
    pub fn has(&self, at: usize, count: usize) -> bool {
        at + count <= self.data.len()
    }

    pub fn slice(&self, at: usize, count: usize) -> Result<&'a [u8], Cut> {
        self.data.get(at..at + count).ok_or(Cut(self.protocol))
    }

    pub fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Cut> {
        let found = self.data.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().ok_or(Cut(self.protocol))
    }

    pub fn u8(&self, at: usize) -> Result<u8, Cut> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    pub fn u16(&self, at: usize) -> Result<u16, Cut> {
        self.array(at).map(u16::from_be_bytes)
    }

    pub fn u32(&self, at: usize) -> Result<u32, Cut> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// Returns the bytes from `at` on; empty if the packet ends before.
    pub fn after(&self, at: usize) -> &'a [u8] {
        self.data.get(at..).unwrap_or_default()
    }
}

/// Returns the first `length` bytes, or all if there are fewer.
pub fn first(data: &[u8], length: u32) -> &[u8] {
    &data[..data.len().min(length as usize)]
}

/// The network header of a packet.
pub struct Network {
    pub source: IpAddress,
    pub destination: IpAddress,
    /// The protocol in this header; extension headers may precede the payload.
    pub protocol: u8,
    /// The rest of the payload is in other packets.
    pub fragmented: bool,
}

impl Network {
    /// Writes the addresses, unless the protocol writes them with its ports.
    pub fn begin(&self, line: &mut Line) {
        if !matches!(self.protocol, TCP | UDP | SCTP) {
            self.addresses(line, ": ");
        }
    }

    pub fn addresses(&self, line: &mut Line, end: &str) {
        line.address(self.source);
        line.text(" > ");
        line.address(self.destination);
        line.text(end);
    }

    /// Writes and returns the ports at the beginning of a header; also writes the addresses, unless they were
    /// written before an extension header.
    pub fn ports(&self, line: &mut Line, header: Bytes) -> Result<(u16, u16), Cut> {
        let addresses = matches!(self.protocol, TCP | UDP | SCTP);
        if !header.has(0, 4) {
            if addresses {
                self.addresses(line, ": ");
            }
            return Err(header.cut());
        }
        let ports = (header.u16(0)?, header.u16(2)?);
        for (address, port, after) in
            [(self.source, ports.0, " > "), (self.destination, ports.1, ": ")]
        {
            if addresses {
                line.address(address);
                line.text(".");
            }
            line.decimal(port);
            line.text(after);
        }
        Ok(ports)
    }
}

/// Maximum of connections in each of two generations. When the younger is full, the older, with the
/// connections unused for longest, is removed. A removed connection starts again with its next packet.
const GENERATION: usize = 32_768;

/// One end of a connection.
type HostPort = (u16, IpAddress);
/// The two ends, lower first: equal for both directions.
type HostPorts = [HostPort; 2];
/// The initial sequence numbers to subtract, for packets of each end.
type FirstNumbers = [u32; 2];

/// The offsets that make a segment's sequence numbers relative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The offset of the sender's numbers: `seq`.
    pub sent: u32,
    /// The offset of acknowledged numbers: `ack`, and the edges of a selective acknowledgement.
    pub acknowledged: u32,
    /// True for the first packet of a connection, whose numbers are absolute.
    pub fresh: bool,
}

/// The recent connections.
#[derive(Default)]
pub struct Flows {
    young: HashMap<HostPorts, FirstNumbers>,
    old: HashMap<HostPorts, FirstNumbers>,
}

impl Flows {
    /// Finds the segment's connection, or creates one; `begins` means that it has the SYN flag.
    pub fn base(
        &mut self,
        source: HostPort,
        destination: HostPort,
        (seq, ack): (u32, u32),
        begins: bool,
    ) -> Base {
        let (ends, sender) = match source <= destination {
            true => ([source, destination], 0),
            false => ([destination, source], 1),
        };
        let known = if begins { None } else { self.find(&ends) };
        let start = known.unwrap_or_else(|| {
            let mut start = [ack.wrapping_sub(1); 2];
            start[sender] = seq;
            self.remember(ends, start);
            start
        });
        Base { sent: start[sender], acknowledged: start[1 - sender], fresh: known.is_none() }
    }

    fn find(&mut self, ends: &HostPorts) -> Option<FirstNumbers> {
        if let Some(start) = self.young.get(ends) {
            return Some(*start);
        }
        let start = self.old.remove(ends)?;
        self.remember(*ends, start);
        Some(start)
    }

    fn remember(&mut self, ends: HostPorts, start: FirstNumbers) {
        if self.young.len() >= GENERATION {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(ends, start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_tcpdump_does() {
        let cases: &[(&str, [u16; 8])] = &[
            ("::", [0; 8]),
            ("::1", [0, 0, 0, 0, 0, 0, 0, 1]),
            ("::1.2.3.4", [0, 0, 0, 0, 0, 0, 0x102, 0x304]),
            ("::ffff:1.2.3.4", [0, 0, 0, 0, 0, 0xffff, 0x102, 0x304]),
            ("2001:db8:0:1::5", [0x2001, 0xdb8, 0, 1, 0, 0, 0, 5]),
            ("2001:db8::1:0:0:5", [0x2001, 0xdb8, 0, 0, 1, 0, 0, 5]),
            ("1:0:2:3:4:5:6:7", [1, 0, 2, 3, 4, 5, 6, 7]),
        ];
        for (text, segments) in cases {
            let octets = Ipv6Addr::from(*segments).octets();
            assert_eq!(IpAddress::V6(octets).to_string(), *text);
        }
    }

    #[test]
    fn a_number_is_written_in_full() {
        for number in [0, 9, 10, 255, 65_535, u32::MAX] {
            let (mut text, mut flows) = (String::new(), Flows::default());
            Line::new(&mut text, &mut flows).decimal(number);
            assert_eq!(text, number.to_string());
        }
    }

    const HERE: (u16, IpAddress) = (40_000, IpAddress::V4([198, 18, 0, 1]));
    const THERE: (u16, IpAddress) = (80, IpAddress::V4([198, 18, 0, 2]));

    #[test]
    fn both_directions_share_a_start() {
        let mut flows = Flows::default();
        let base = flows.base(THERE, HERE, (900, 101), true);
        assert!(base.fresh, "a SYN begins a connection");
        let base = flows.base(HERE, THERE, (101, 901), false);
        assert_eq!((base.sent, base.acknowledged), (100, 900));
        let base = flows.base(THERE, HERE, (901, 201), false);
        assert_eq!((base.sent, base.acknowledged), (900, 100));
        assert!(!base.fresh);
    }

    #[test]
    fn memory_is_bounded_and_busy_connections_are_kept() {
        let mut flows = Flows::default();
        flows.base(HERE, THERE, (7, 9), true);
        for number in 0..GENERATION as u32 * 5 {
            let other = (1, IpAddress::V4(number.to_be_bytes()));
            flows.base(other, THERE, (1, 1), false);
            if number % 1000 == 0 {
                assert!(!flows.base(HERE, THERE, (8, 9), false).fresh);
            }
        }
        assert!(flows.young.len() + flows.old.len() <= 2 * GENERATION);
        let first = (1, IpAddress::V4([0; 4]));
        assert!(flows.base(first, THERE, (1, 1), false).fresh, "forgotten");
    }
}
