//! Blocks and headers in the form of the file: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

use std::fs;

use crate::Format;
use crate::codes::{IDB, ISB, PCAP_MICROSECONDS, PCAP_NANOSECONDS, SHB, option};
use sluicegate_base::ring::Interface;

const NS_PER_SECOND: u64 = 1_000_000_000;
const MAX_OPTION: usize = u16::MAX as usize;

/// Maximum length of a packet that libpcap (MAXIMUM_SNAPLEN) and Wireshark (WTAP_MAX_PACKET_SIZE_STANDARD)
/// accept in a file.
pub(super) const MAXIMUM_SNAPLEN: u32 = 262_144;

/// Bytes of a pcap record before the packet.
pub(super) const PCAP_RECORD: usize = 16;
/// Bytes of an Enhanced Packet Block before the packet.
pub(super) const EPB_HEADER: usize = 28;
/// A format and the unit of its times: all that reading a record needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockLayout {
    Pcap,
    PcapMicroseconds,
    Pcapng,
}

impl BlockLayout {
    pub(super) fn new(format: Format, microseconds: bool) -> Self {
        match (format, microseconds) {
            (Format::Pcap, false) => Self::Pcap,
            (Format::Pcap, true) => Self::PcapMicroseconds,
            (Format::Pcapng, _) => Self::Pcapng,
        }
    }

    /// Returns the record at the beginning of `bytes` and its time; `None` if it is incomplete.
    #[inline]
    pub(super) fn first_record(self, bytes: &[u8]) -> Option<(&[u8], u64)> {
        let head = bytes.first_chunk::<PCAP_RECORD>()?;
        let unit_ns = match self {
            Self::Pcapng => {
                let head = bytes.first_chunk::<EPB_HEADER>()?;
                let time = u64::from(word(head, 12)) << 32 | u64::from(word(head, 16));
                return Some((bytes.get(..word(head, 4) as usize)?, time));
            }
            Self::Pcap => 1,
            Self::PcapMicroseconds => 1000,
        };
        let time = u64::from(word(head, 0)) * NS_PER_SECOND + u64::from(word(head, 4)) * unit_ns;
        let length = PCAP_RECORD + word(head, 8) as usize;
        Some((bytes.get(..length)?, time))
    }
}

#[inline]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Converts a time to pcap's form: seconds, and nanoseconds or microseconds. The 32-bit seconds end in 2106; the
/// last one stands for all later times.
#[inline]
pub(super) fn pcap_time(timestamp_ns: u64, unit_ns: u64) -> (u32, u32) {
    let seconds = (timestamp_ns / NS_PER_SECOND).min(u64::from(u32::MAX));
    let rest = timestamp_ns % NS_PER_SECOND / unit_ns;
    (seconds as u32, rest as u32)
}

/// Returns the bytes of padding to a multiple of four.
#[inline]
pub(super) fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

/// Appends one option with its padding. A value that exceeds the 16-bit length is cut.
pub(super) fn push_option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(MAX_OPTION)];
    block.extend_from_slice(&code.to_le_bytes());
    block.extend_from_slice(&(value.len() as u16).to_le_bytes());
    block.extend_from_slice(value);
    block.resize(block.len() + padding(value.len()), 0);
}

/// Appends a text option, cut between two characters if too long; appends nothing if it is empty.
fn push_text(block: &mut Vec<u8>, code: u16, text: &str) {
    let text = &text[..text.floor_char_boundary(MAX_OPTION)];
    if !text.is_empty() {
        push_option(block, code, text.as_bytes());
    }
}

/// Appends a whole block: `body` writes the part between the two lengths, options last.
fn push_block(to: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&kind.to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    body(to);
    to.extend_from_slice(&u32::from(option::END).to_le_bytes());
    let length = (to.len() + 4 - start) as u32;
    to.extend_from_slice(&length.to_le_bytes());
    to[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
}

/// Returns the header of a pcap file. libpcap cuts packets to the limit in it; 0 is the maximum.
pub(super) fn pcap_header(layout: BlockLayout, link_type: u16, snaplen: u32) -> Vec<u8> {
    let magic: u32 = match layout {
        BlockLayout::PcapMicroseconds => PCAP_MICROSECONDS,
        _ => PCAP_NANOSECONDS,
    };
    let snaplen = if snaplen == 0 { MAXIMUM_SNAPLEN } else { snaplen };
    let mut to = Vec::with_capacity(24);
    to.extend_from_slice(&magic.to_le_bytes());
    to.extend_from_slice(&2u16.to_le_bytes());
    to.extend_from_slice(&4u16.to_le_bytes());
    to.extend_from_slice(&[0; 8]);
    to.extend_from_slice(&snaplen.to_le_bytes());
    to.extend_from_slice(&u32::from(link_type).to_le_bytes());
    to
}

/// Appends a Section Header Block: host, program and remarks.
pub(super) fn section_header(to: &mut Vec<u8>, comments: &[String]) {
    push_block(to, SHB, |block| {
        block.extend_from_slice(&0x1a2b_3c4du32.to_le_bytes());
        block.extend_from_slice(&1u16.to_le_bytes());
        block.extend_from_slice(&0u16.to_le_bytes());
        block.extend_from_slice(&u64::MAX.to_le_bytes());
        for comment in comments {
            push_text(block, option::COMMENT, comment);
        }
        push_text(block, option::SHB_HARDWARE, &hardware());
        push_text(block, option::SHB_OS, &operating_system());
        let program = concat!("sluice ", env!("CARGO_PKG_VERSION"));
        push_text(block, option::SHB_USERAPPL, program);
    });
}

fn hardware() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()).to_owned()
}

fn operating_system() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim()).trim_end().to_owned()
}

/// Appends an Interface Description Block. Times are in nanoseconds.
pub(super) fn interface_description(to: &mut Vec<u8>, interface: &Interface, filter: Option<&str>) {
    push_block(to, IDB, |block| {
        block.extend_from_slice(&interface.link_type.to_le_bytes());
        block.extend_from_slice(&[0; 2]);
        block.extend_from_slice(&interface.snaplen.to_le_bytes());
        push_text(block, option::COMMENT, &interface.comment);
        push_text(block, option::IF_NAME, &interface.name);
        push_option(block, option::IF_TSRESOL, &[9]);
        if let Some(expression) = filter {
            // 0: a string in libpcap's language follows.
            push_text(block, option::IF_FILTER, &format!("\0{expression}"));
        }
    });
}

/// Counts of an interface's packets at the end of a file, from the start of the capture. A count that
/// is `None` is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    /// The time of these counts, in ns since 1970.
    pub taken_ns: u64,
    /// The start of the capture, in ns since 1970.
    pub start_ns: Option<u64>,
    /// The end of the capture, in ns since 1970.
    pub end_ns: Option<u64>,
    /// Packets the interface received.
    pub received: Option<u64>,
    /// Packets the interface dropped because it lacked resources.
    pub dropped: Option<u64>,
    /// Packets that passed the filter.
    pub filter_accepted: Option<u64>,
    /// Packets the operating system dropped.
    pub os_dropped: Option<u64>,
    /// Packets delivered to the program.
    pub delivered: Option<u64>,
    /// Packets lost, by cause; each entry becomes a comment: ("socket ring full", 12).
    pub losses: Vec<(String, u64)>,
}

/// Appends the Interface Statistics Block of interface number `id`.
pub(super) fn interface_statistics(to: &mut Vec<u8>, id: u32, stats: &InterfaceStats) {
    push_block(to, ISB, |block| {
        block.extend_from_slice(&id.to_le_bytes());
        block.extend_from_slice(&time(stats.taken_ns));
        for (cause, packets) in &stats.losses {
            let word = if *packets == 1 { "packet" } else { "packets" };
            push_text(block, option::COMMENT, &format!("{packets} {word} lost: {cause}"));
        }
        let count = |packets: Option<u64>| packets.map(u64::to_le_bytes);
        let options = [
            (option::ISB_STARTTIME, stats.start_ns.map(time)),
            (option::ISB_ENDTIME, stats.end_ns.map(time)),
            (option::ISB_IFRECV, count(stats.received)),
            (option::ISB_IFDROP, count(stats.dropped)),
            (option::ISB_FILTERACCEPT, count(stats.filter_accepted)),
            (option::ISB_OSDROP, count(stats.os_dropped)),
            (option::ISB_USRDELIV, count(stats.delivered)),
        ];
        for (code, value) in options {
            if let Some(value) = value {
                push_option(block, code, &value);
            }
        }
    });
}

/// Converts a time to the form of pcapng blocks: the upper word first.
fn time(at_ns: u64) -> [u8; 8] {
    at_ns.rotate_left(32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_padded_to_four_and_cut_to_sixteen_bits() {
        let rows: &[(String, usize, usize, &str)] = &[
            ("a".into(), 1, 8, "one byte takes three of padding"),
            ("abc".into(), 3, 8, "three bytes take one"),
            ("abcd".into(), 4, 8, "four take none"),
            ("x".repeat(65535), 65535, 65540, "the longest there is"),
            ("x".repeat(70000), 65535, 65540, "longer is cut"),
            ("é".repeat(40000), 65534, 65540, "between two characters"),
        ];
        for (text, length, bytes, why) in rows {
            let mut block = Vec::new();
            push_text(&mut block, 1, text);
            let stated = u16::from_le_bytes([block[2], block[3]]);
            assert_eq!(usize::from(stated), *length, "{why}");
            assert_eq!(block.len(), *bytes, "{why}");
        }
    }

    #[test]
    fn a_block_states_its_length_at_both_ends() {
        let mut block = vec![0xee; 3];
        section_header(&mut block, &["one".into(), String::new()]);
        let block = &block[3..];
        assert_eq!(block.len() % 4, 0);
        let length = (block.len() as u32).to_le_bytes();
        assert_eq!(block[4..8], length);
        assert_eq!(block[block.len() - 4..], length);
    }

    #[test]
    fn statistics_hold_what_was_counted_and_nothing_else() {
        let stats = InterfaceStats {
            taken_ns: 7 << 32 | 8,
            start_ns: Some(1 << 32 | 2),
            os_dropped: Some(104),
            losses: vec![("ring full".into(), 104)],
            ..InterfaceStats::default()
        };
        let mut bytes = Vec::new();
        interface_statistics(&mut bytes, 3, &stats);
        let (rest, block) = pcap_parser::parse_block_le(&bytes).unwrap();
        assert!(rest.is_empty());
        let pcap_parser::Block::InterfaceStatistics(block) = block else {
            panic!("{block:?}");
        };
        assert_eq!((block.if_id, block.ts_high, block.ts_low), (3, 7, 8));
        let options: Vec<(u16, &[u8])> = block
            .options
            .iter()
            .map(|option| (option.code.0, &option.value[..usize::from(option.len)]))
            .collect();
        let expected: [(u16, &[u8]); 4] = [
            (option::COMMENT, b"104 packets lost: ring full"),
            (option::ISB_STARTTIME, &[1, 0, 0, 0, 2, 0, 0, 0]),
            (option::ISB_OSDROP, &[104, 0, 0, 0, 0, 0, 0, 0]),
            (option::END, &[]),
        ];
        assert_eq!(options, expected);
    }

    #[test]
    fn times_survive_in_every_layout() {
        assert_eq!(pcap_time(1_700_000_000_123_456_789, 1), (1_700_000_000, 123_456_789));
        assert_eq!(pcap_time(1_700_000_000_123_456_789, 1000), (1_700_000_000, 123_456));
        assert_eq!(pcap_time(u64::MAX, 1).0, u32::MAX, "a time after 2106");
    }
}
