//! The pcap format, in every variant libpcap reads (draft-ietf-opsawg-pcap; libpcap's
//! sf-pcap.c for the variants before it).

use super::source::{ByteOrder, Fields};
use super::{Parsed, ParsedPacket, packet_limit, snapshot_limit};
use crate::codes::{PCAP_MICROSECONDS, PCAP_NANOSECONDS};
use sluicegate_base::ring::{Interface, LINKTYPE_ETHERNET, Meta, TimestampSource};

pub(super) const HEADER_BYTES: usize = 24;
/// Written by some patched libpcaps (Red Hat Linux 6.1): records have more fields.
const MODIFIED: u32 = 0xa1b2_cd34;

/// The order of a record's two lengths. Version 2.3 swapped them, but some programs wrote "2.3" with the old
/// order.
#[derive(Clone, Copy, Debug)]
enum Lengths {
    CapturedFirst,
    CapturedLast,
    /// The smaller is the captured one.
    Guess,
}

/// The layout and limits of a file's records.
#[derive(Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    fraction_ns: u64,
    record_header_bytes: usize,
    lengths: Lengths,
    /// Maximum length of a packet; the rest is cut off.
    snapshot: u32,
    /// Maximum length of a record; a longer one is damage.
    limit: u32,
}

impl Pcap {
    /// True if a file of this format can begin with `magic`.
    pub(super) fn recognises(magic: [u8; 4]) -> bool {
        variant(magic).is_some()
    }

    /// Reads a file's header.
    pub(super) fn new(header: [u8; HEADER_BYTES]) -> Result<(Self, Interface), String> {
        let [a, b, c, d, rest @ ..] = header;
        let (order, variant) = variant([a, b, c, d]).ok_or("no pcap file")?;
        let mut fields = Fields::new(&rest, order);
        let version = (fields.u16().unwrap_or_default(), fields.u16().unwrap_or_default());
        // Time zone and accuracy, which no program sets.
        fields.take(8);
        let (mut snaplen, link) = fields.u32().zip(fields.u32()).unwrap_or_default();

        let lengths = match version {
            (2, 0..=2) | (543, 0) => Lengths::CapturedLast,
            (2, 3) => Lengths::Guess,
            (2, 4) => Lengths::CapturedFirst,
            (major, minor) => {
                return Err(format!(
                    "pcap version {major}.{minor} is unknown; 2.0 to 2.4 can be read"
                ));
            }
        };
        if link & 0x03ff_0000 != 0 {
            return Err(format!("link type {link:#x} has reserved bits set"));
        }
        let link_type = link as u16;
        if variant == MODIFIED && link_type == LINKTYPE_ETHERNET && snaplen != 0 {
            // A cooked capture has an Ethernet header in addition to its snapshot length.
            snaplen = snaplen.saturating_add(14);
        }
        let pcap = Self {
            order,
            fraction_ns: if variant == PCAP_NANOSECONDS { 1 } else { 1000 },
            record_header_bytes: if variant == MODIFIED { 24 } else { 16 },
            lengths,
            snapshot: snapshot_limit(link_type, snaplen),
            limit: packet_limit(link_type),
        };
        let interface = Interface {
            name: String::new(),
            link_type,
            snaplen,
            comment: frame_check_sequence(link),
        };
        Ok((pcap, interface))
    }

    /// Returns the byte order of the host that wrote the file.
    pub(super) fn order(&self) -> ByteOrder {
        self.order
    }

    /// Parses the record at the beginning of `bytes`.
    #[inline]
    pub(super) fn step(&self, bytes: &[u8]) -> Result<Parsed, String> {
        let Some(header) = bytes.get(..self.record_header_bytes) else {
            return Ok(Parsed::Need(self.record_header_bytes));
        };
        let mut fields = Fields::new(header, self.order);
        let mut next = || fields.u32().unwrap_or_default();
        let (seconds, fraction, first, second) = (next(), next(), next(), next());
        let (captured, wire) = match self.lengths {
            Lengths::CapturedLast => (second, first),
            Lengths::Guess if first > second => (second, first),
            Lengths::Guess | Lengths::CapturedFirst => (first, second),
        };
        if captured > self.limit {
            return Err(format!(
                "a packet of {captured} captured bytes, more than the {} there can be",
                self.limit
            ));
        }
        let record_bytes = header.len() + captured as usize;
        if bytes.len() < record_bytes {
            return Ok(Parsed::Need(record_bytes));
        }
        let kept = captured.min(self.snapshot) as usize;
        let meta = Meta {
            timestamp_ns: u64::from(seconds) * 1_000_000_000
                + u64::from(fraction) * self.fraction_ns,
            timestamp_source: TimestampSource::File,
            wire_bytes: wire,
            ..Meta::default()
        };
        Ok(Parsed::Packet {
            record_bytes,
            found: ParsedPacket { meta, data: header.len()..header.len() + kept, options: 0..0 },
        })
    }
}

fn variant(magic: [u8; 4]) -> Option<(ByteOrder, u32)> {
    let known = |n: &u32| [PCAP_MICROSECONDS, PCAP_NANOSECONDS, MODIFIED].contains(n);
    let little = Some(u32::from_le_bytes(magic)).filter(known);
    let big = Some(u32::from_be_bytes(magic)).filter(known);
    little.map(|n| (ByteOrder::Little, n)).or(big.map(|n| (ByteOrder::Big, n)))
}

/// Describes the frame check sequence that packets carry according to the link type's upper bits.
fn frame_check_sequence(link: u32) -> String {
    const PRESENT: u32 = 0x0400_0000;
    match link & PRESENT {
        0 => String::new(),
        _ => format!("frame check sequence of {} bytes", (link >> 28) * 2),
    }
}
