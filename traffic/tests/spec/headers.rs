//! A reader of headers, written from the RFCs and not from the crate: positions of fields, lengths of
//! headers, checksums.

use std::collections::BTreeMap;

/// Protocol, field, the offset of its first bit in the header, and its number of bits.
pub const FIELDS: &[(&str, &str, usize, usize)] = &[
    ("ether", "dst", 0, 48),
    ("ether", "src", 48, 48),
    ("vlan", "pcp", 0, 3),
    ("vlan", "dei", 3, 1),
    ("vlan", "id", 4, 12),
    ("mpls", "label", 0, 20),
    ("mpls", "tc", 20, 3),
    ("mpls", "ttl", 24, 8),
    ("arp", "op", 48, 16),
    ("arp", "sha", 64, 48),
    ("arp", "spa", 112, 32),
    ("arp", "tha", 144, 48),
    ("arp", "tpa", 192, 32),
    ("ipv4", "tos", 8, 8),
    ("ipv4", "dscp", 8, 6),
    ("ipv4", "ecn", 14, 2),
    ("ipv4", "id", 32, 16),
    ("ipv4", "frag", 51, 13),
    ("ipv4", "ttl", 64, 8),
    ("ipv4", "src", 96, 32),
    ("ipv4", "dst", 128, 32),
    ("ipv6", "traffic-class", 4, 8),
    ("ipv6", "dscp", 4, 6),
    ("ipv6", "ecn", 10, 2),
    ("ipv6", "flow-label", 12, 20),
    ("ipv6", "hop-limit", 56, 8),
    ("ipv6", "src", 64, 128),
    ("ipv6", "dst", 192, 128),
    ("fragment", "frag", 16, 13),
    ("fragment", "mf", 31, 1),
    ("fragment", "id", 32, 32),
    ("udp", "sport", 0, 16),
    ("udp", "dport", 16, 16),
    ("tcp", "sport", 0, 16),
    ("tcp", "dport", 16, 16),
    ("tcp", "seq", 32, 32),
    ("tcp", "ack", 64, 32),
    ("tcp", "flags", 103, 9),
    ("tcp", "window", 112, 16),
    ("tcp", "urgent", 144, 16),
    ("icmp", "code", 8, 8),
    ("icmp", "id", 32, 16),
    ("icmp", "seq", 48, 16),
    ("icmp", "rest", 32, 32),
    ("icmpv6", "code", 8, 8),
    ("icmpv6", "id", 32, 16),
    ("icmpv6", "seq", 48, 16),
    ("icmpv6", "rest", 32, 32),
    ("vxlan", "vni", 32, 24),
];

/// A header: its protocol and the numbers of its fields.
#[derive(Debug)]
pub struct Read {
    pub protocol: String,
    pub fields: BTreeMap<&'static str, u128>,
    /// Its offset in the frame.
    pub at: usize,
}

/// Reads a frame with these layers; `Err` describes a fault in it.
pub fn read(frame: &[u8], layers: &[&str]) -> Result<Vec<Read>, String> {
    let mut reader = HeaderReader { frame, at: 0, end: frame.len(), ip: None, read: Vec::new() };
    for (count, layer) in layers.iter().enumerate() {
        reader.layer(layer, layers.get(count + 1).copied())?;
    }
    Ok(reader.read)
}

/// Returns the EtherType of a layer.
fn ethertype(name: &str) -> Option<u16> {
    let rows =
        [("ipv4", 0x0800), ("arp", 0x0806), ("ipv6", 0x86dd), ("mpls", 0x8847), ("ether", 0x6558)];
    rows.into_iter().find(|row| row.0 == name).map(|row| row.1)
}

fn protocol(name: &str) -> Option<u8> {
    let rows = [
        ("hop-by-hop", 0),
        ("icmp", 1),
        ("tcp", 6),
        ("udp", 17),
        ("routing", 43),
        ("fragment", 44),
        ("gre", 47),
        ("icmpv6", 58),
        ("destination", 60),
    ];
    rows.into_iter().find(|row| row.0 == name).map(|row| row.1)
}

struct HeaderReader<'a> {
    frame: &'a [u8],
    at: usize,
    /// The end of the content of the headers read so far.
    end: usize,
    /// The IP header below: the sum of its addresses, true for IPv6, true for a fragment.
    ip: Option<(u64, bool, bool)>,
    read: Vec<Read>,
}

impl HeaderReader<'_> {
    fn layer(&mut self, layer: &str, next: Option<&str>) -> Result<(), String> {
        let header = &self.frame[self.at..self.end];
        let fields = FIELDS.iter().filter(|row| row.0 == layer);
        let fields = fields.map(|row| (row.1, bits(header, row.2, row.3))).collect();
        self.read.push(Read { protocol: layer.to_owned(), fields, at: self.at });
        let length = match layer {
            "ether" => self.typed(12, 14, next)?,
            "vlan" => self.typed(2, 4, next)?,
            "mpls" => {
                let bottom = bits(header, 23, 1);
                same("bottom of stack", bottom, u128::from(next != Some("mpls")))?;
                4
            }
            "arp" => {
                same("ARP's head", bits(header, 0, 48), 0x0001_0800_0604)?;
                28
            }
            "ipv4" => self.ipv4(next)?,
            "ipv6" => self.ipv6(next)?,
            "hop-by-hop" | "routing" | "destination" => {
                follows(header[0], next)?;
                (usize::from(header[1]) + 1) * 8
            }
            "fragment" => {
                follows(header[0], next)?;
                8
            }
            "udp" => self.udp(next)?,
            "tcp" => {
                self.whole("tcp", 6)?;
                usize::from(header[12] >> 4) * 4
            }
            "icmp" => {
                same("sum of icmp", sum(header), 0xffff)?;
                8
            }
            "icmpv6" => {
                self.whole("icmpv6", 58)?;
                8
            }
            "gre" => self.gre(next)?,
            "vxlan" => {
                same("flags of vxlan", bits(header, 0, 32), 0x0800_0000)?;
                same("what is reserved", header[7], 0)?;
                8
            }
            "stamp" => 16,
            other => panic!("nobody reads {other} here"),
        };
        let is_below = matches!(
            layer,
            "ipv4" | "ipv6" | "hop-by-hop" | "routing" | "destination" | "fragment"
        );
        self.ip = self.ip.filter(|_| is_below);
        self.at += length;
        Ok(())
    }

    /// Checks the EtherType in a header.
    fn typed(&self, at: usize, length: usize, next: Option<&str>) -> Result<usize, String> {
        let header = &self.frame[self.at..];
        let number = u16::from_be_bytes([header[at], header[at + 1]]);
        match next {
            Some("vlan") if matches!(number, 0x8100 | 0x88a8) => {}
            Some("vlan") => return Err(format!("{number:#x} is no tag")),
            Some(next) => {
                let expected = ethertype(next).ok_or(format!("{next} on Ethernet"))?;
                same("EtherType", number, expected)?;
            }
            None => {}
        }
        Ok(length)
    }

    fn ipv4(&mut self, next: Option<&str>) -> Result<usize, String> {
        let header = &self.frame[self.at..self.end];
        let length = usize::from(header[0] & 15) * 4;
        same("version", header[0] >> 4, 4)?;
        same("sum of ipv4", sum(&header[..length]), 0xffff)?;
        follows(header[9], next)?;
        self.ends(usize::from(u16::from_be_bytes([header[2], header[3]])))?;
        let fragment = bits(header, 50, 14) != 0;
        self.ip = Some((total(&header[12..20]), false, fragment));
        Ok(length)
    }

    fn ipv6(&mut self, next: Option<&str>) -> Result<usize, String> {
        let header = &self.frame[self.at..self.end];
        same("version", header[0] >> 4, 6)?;
        follows(header[6], next)?;
        self.ends(usize::from(u16::from_be_bytes([header[4], header[5]])) + 40)?;
        self.ip = Some((total(&header[8..40]), true, false));
        Ok(40)
    }

    /// Checks the length in an IP header: less than the rest only if a short frame was padded.
    fn ends(&mut self, length: usize) -> Result<(), String> {
        let rest = self.end - self.at;
        if length != rest && (self.frame.len() != 60 || length > rest) {
            return Err(format!("length {length} of {rest} bytes"));
        }
        if self.frame[self.at + length..self.end].iter().any(|byte| *byte != 0) {
            return Err("the padding is not zero".into());
        }
        self.end = self.at + length;
        Ok(())
    }

    fn udp(&self, next: Option<&str>) -> Result<usize, String> {
        let header = &self.frame[self.at..self.end];
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        same("length of udp", length, header.len())?;
        let (_, v6, fragment) = self.ip.ok_or("udp without ip")?;
        let none = !v6 && (fragment || next == Some("vxlan"));
        match (none, [header[6], header[7]]) {
            (true, checksum) => same("checksum", checksum, [0, 0])?,
            (false, [0, 0]) => return Err("there is no checksum".into()),
            (false, _) => self.whole("udp", 17)?,
        }
        Ok(8)
    }

    /// Checks a checksum with a pseudo header.
    fn whole(&self, name: &str, protocol: u8) -> Result<(), String> {
        let (addresses, ..) = self.ip.ok_or(format!("{name} without ip"))?;
        let bytes = &self.frame[self.at..self.end];
        let all = total(bytes) + addresses + bytes.len() as u64 + u64::from(protocol);
        same(&format!("sum of {name}"), folded(all), 0xffff)
    }

    fn gre(&mut self, next: Option<&str>) -> Result<usize, String> {
        let header = &self.frame[self.at..self.end];
        self.typed(2, 4, next)?;
        let mut at = 4;
        let mut fields = Vec::new();
        if header[0] & 0x80 != 0 {
            same("sum of gre", sum(header), 0xffff)?;
            at += 4;
        }
        for (flag, name) in [(0x20, "key"), (0x10, "seq")] {
            if header[0] & flag != 0 {
                fields.push((name, bits(header, at * 8, 32)));
                at += 4;
            }
        }
        if let Some(read) = self.read.last_mut() {
            read.fields.extend(fields);
        }
        Ok(at)
    }
}

fn follows(number: u8, next: Option<&str>) -> Result<(), String> {
    match next.and_then(protocol) {
        Some(expected) => same("protocol", number, expected),
        None if matches!(next, None | Some("stamp")) => Ok(()),
        None => Err(format!("{next:?} in IP")),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, is: T, should: T) -> Result<(), String> {
    if is == should { Ok(()) } else { Err(format!("{what}: {is:x?} and not {should:x?}")) }
}

/// Returns bits of a header as a number.
pub fn bits(header: &[u8], from: usize, count: usize) -> u128 {
    let bit = |place: usize| header[place / 8] >> (7 - place % 8) & 1;
    (from..from + count).fold(0, |number, place| number << 1 | u128::from(bit(place)))
}

/// Returns the sum of RFC 1071: 0xffff if the bytes include their right checksum.
pub fn sum(bytes: &[u8]) -> u64 {
    folded(total(bytes))
}

fn total(bytes: &[u8]) -> u64 {
    let mut total = 0;
    for (place, byte) in bytes.iter().enumerate() {
        total += u64::from(*byte) * if place % 2 == 0 { 256 } else { 1 };
    }
    total
}

fn folded(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = sum % 0x1_0000 + sum / 0x1_0000;
    }
    sum
}
