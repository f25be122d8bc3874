//! Converts packets to records: the hot loop of a capture.

use std::io::Write;

use super::super::Format;
use super::block::{
    BlockLayout, EPB_HEADER, MAXIMUM_SNAPLEN, PCAP_RECORD, padding, pcap_time, push_option,
};
use super::chunk::{CHUNK_BYTES, Chunk};
use crate::codes::{EPB, option};
use crate::read::Record;
use sluicegate_base::ring::{Direction, Packet};

/// Maximum length of [`EncoderConfig::loss_cause`]; the rest is cut, because an option's length has 16 bits.
const MAX_CAUSE: usize = 1024;

/// The configuration of an [`Encoder`].
#[derive(Clone, Debug, Default)]
pub struct EncoderConfig {
    /// The file's format.
    pub format: Format,
    /// pcap only: times in microseconds, for readers older than 2014.
    pub microseconds: bool,
    /// Maximum length of a packet; the rest is cut. 0 means 262144, the maximum that libpcap and Wireshark
    /// read.
    pub snaplen: u32,
    /// The queue the packets come from.
    pub queue: u32,
    /// The number of queues: above one, each pcapng record names its queue.
    pub queues: u32,
    /// The reason why packets are lost before they reach this encoder: "the socket's ring was full".
    pub loss_cause: String,
}

/// Appends packets to chunks, as records of one format. Each receive thread has one.
#[derive(Debug)]
pub struct Encoder {
    layout: BlockLayout,
    snaplen: usize,
    /// The number in the file of each of the port's interfaces.
    interfaces: Vec<u32>,
    /// Prepared options of a record without a gap before it, by direction.
    options: [Vec<u8>; 3],
    /// The text after the number in a gap's comment.
    gap: String,
    /// A buffer for the options of a record with a gap.
    scratch: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder for a port whose interfaces have the same numbers in the file; otherwise call
    /// [`map_interface`](Self::map_interface).
    pub fn new(config: &EncoderConfig) -> Self {
        let options = [Direction::Unknown, Direction::In, Direction::Out]
            .map(|direction| standing_options(config, direction));
        let place = match config.queues {
            0 | 1 => String::new(),
            _ => format!(" in queue {}", config.queue),
        };
        let cause = match config.loss_cause.as_str() {
            "" => String::new(),
            cause => format!(": {}", &cause[..cause.floor_char_boundary(MAX_CAUSE)]),
        };
        Self {
            layout: BlockLayout::new(config.format, config.microseconds),
            snaplen: match config.snaplen {
                0 => MAXIMUM_SNAPLEN as usize,
                bytes => bytes as usize,
            },
            interfaces: Vec::new(),
            options,
            gap: format!(" lost before this packet{place}{cause}"),
            scratch: Vec::new(),
        }
    }

    /// Sets the number in the file of the port's next interface; the first call is for interface 0.
    pub fn map_interface(&mut self, in_file: u32) {
        self.interfaces.push(in_file);
    }

    /// Creates an empty chunk of 128 KiB for records of this format.
    pub fn chunk(&self) -> Chunk {
        Chunk::new(self.layout, CHUNK_BYTES)
    }

    /// Creates an empty chunk of `capacity` bytes; `None` if there is too little memory.
    pub fn try_chunk_of(&self, capacity: usize) -> Option<Chunk> {
        Chunk::try_new(self.layout, capacity)
    }

    /// Creates an empty chunk of `capacity` bytes.
    pub fn chunk_of(&self, capacity: usize) -> Chunk {
        Chunk::new(self.layout, capacity)
    }

    /// Appends a packet as one record. False, without a change, if the chunk is full: the packet belongs in
    /// the next chunk.
    ///
    /// # Panics
    /// The chunk has another format.
    #[inline]
    pub fn append(&mut self, chunk: &mut Chunk, packet: &Packet<'_>) -> bool {
        assert!(chunk.layout() == self.layout, "a chunk of another format");
        match self.layout {
            BlockLayout::Pcapng => self.append_block(chunk, packet, None),
            BlockLayout::Pcap => self.append_pcap(chunk, packet, 1),
            BlockLayout::PcapMicroseconds => self.append_pcap(chunk, packet, 1000),
        }
    }

    /// Appends a packet of another file with its record's comments and queue. `packet` is the record's, or
    /// a changed one. pcap holds neither.
    ///
    /// # Panics
    /// The chunk has another format.
    #[inline]
    pub fn append_record(
        &mut self,
        chunk: &mut Chunk,
        record: &Record<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        if self.layout != BlockLayout::Pcapng || !record.has_options() {
            return self.append(chunk, packet);
        }
        assert!(chunk.layout() == self.layout, "a chunk of another format");
        let mut options = std::mem::take(&mut self.scratch);
        let standing = &self.options[packet.meta().direction as usize];
        copy_options(&mut options, record, packet.meta().drops_before, standing);
        let appended = self.append_block(chunk, packet, Some(&options));
        self.scratch = options;
        appended
    }

    /// Appends a packet with a comment. pcap holds none.
    ///
    /// # Panics
    /// The chunk has another format.
    pub fn append_with_comment(
        &mut self,
        chunk: &mut Chunk,
        packet: &Packet<'_>,
        comment: &str,
    ) -> bool {
        if self.layout != BlockLayout::Pcapng {
            return self.append(chunk, packet);
        }
        assert!(chunk.layout() == self.layout, "a chunk of another format");
        let mut options = Vec::new();
        let comment = &comment[..comment.floor_char_boundary(MAX_CAUSE)];
        push_option(&mut options, option::COMMENT, comment.as_bytes());
        match &*self.options[packet.meta().direction as usize] {
            [] => push_option(&mut options, option::END, &[]),
            standing => options.extend_from_slice(standing),
        }
        self.append_block(chunk, packet, Some(&options))
    }

    /// Appends a block with the given options, or those that follow from the packet's metadata.
    #[inline]
    fn append_block(
        &mut self,
        chunk: &mut Chunk,
        packet: &Packet<'_>,
        options: Option<&[u8]>,
    ) -> bool {
        let meta = packet.meta();
        let options = if let Some(options) = options {
            options
        } else if meta.drops_before == 0 {
            &self.options[meta.direction as usize]
        } else {
            let standing = &self.options[meta.direction as usize];
            gap_options(&mut self.scratch, meta.drops_before, &self.gap, standing);
            &self.scratch
        };
        let interface = match self.interfaces.get(meta.interface as usize) {
            Some(&number) => number,
            None => meta.interface,
        };
        let captured = packet.captured_bytes().min(self.snaplen);
        let options_at = EPB_HEADER + captured + padding(captured);
        let total = options_at + options.len() + 4;
        let Some(record) = chunk.append(total, meta.timestamp_ns) else { return false };
        let total = (total as u32).to_le_bytes();
        let words = [
            EPB.to_le_bytes(),
            total,
            interface.to_le_bytes(),
            ((meta.timestamp_ns >> 32) as u32).to_le_bytes(),
            (meta.timestamp_ns as u32).to_le_bytes(),
            (captured as u32).to_le_bytes(),
            meta.wire_bytes.max(captured as u32).to_le_bytes(),
        ];
        // Clears the padding, which is in this word; the packet overwrites the rest of it.
        record[options_at - 4..options_at].fill(0);
        record[..EPB_HEADER].copy_from_slice(words.as_flattened());
        copy_packet(&mut record[EPB_HEADER..][..captured], packet);
        if !options.is_empty() {
            record[options_at..][..options.len()].copy_from_slice(options);
        }
        if let Some(end) = record.last_chunk_mut::<4>() {
            *end = total;
        }
        true
    }

    #[inline]
    fn append_pcap(&mut self, chunk: &mut Chunk, packet: &Packet<'_>, unit_ns: u64) -> bool {
        let meta = packet.meta();
        let captured = packet.captured_bytes().min(self.snaplen);
        let Some(record) = chunk.append(PCAP_RECORD + captured, meta.timestamp_ns) else {
            return false;
        };
        let (seconds, fraction) = pcap_time(meta.timestamp_ns, unit_ns);
        let words = [
            seconds.to_le_bytes(),
            fraction.to_le_bytes(),
            (captured as u32).to_le_bytes(),
            meta.wire_bytes.max(captured as u32).to_le_bytes(),
        ];
        record[..PCAP_RECORD].copy_from_slice(words.as_flattened());
        copy_packet(&mut record[PCAP_RECORD..], packet);
        true
    }
}

/// Copies as much of a packet as fits.
#[inline]
fn copy_packet(room: &mut [u8], packet: &Packet<'_>) {
    if packet.slots() == 1 {
        room.copy_from_slice(&packet.head()[..room.len()]);
    } else {
        copy_segments(room, packet);
    }
}

#[cold]
fn copy_segments(mut room: &mut [u8], packet: &Packet<'_>) {
    for segment in packet.segments() {
        let (now, later) = room.split_at_mut(segment.len().min(room.len()));
        now.copy_from_slice(&segment[..now.len()]);
        room = later;
    }
}

/// Returns the options that every record of a direction carries; empty in the plain case.
fn standing_options(config: &EncoderConfig, direction: Direction) -> Vec<u8> {
    let mut options = Vec::new();
    // Bits 0 and 1 of epb_flags.
    let flags: u32 = match direction {
        Direction::In => 1,
        Direction::Out => 2,
        Direction::Unknown => 0,
    };
    if flags != 0 {
        push_option(&mut options, option::EPB_FLAGS, &flags.to_le_bytes());
    }
    if config.queues > 1 {
        push_option(&mut options, option::EPB_QUEUE, &config.queue.to_le_bytes());
    }
    if !options.is_empty() {
        push_option(&mut options, option::END, &[]);
    }
    options
}

/// Builds the options of a record with a gap before it: a comment, the count, and the standing options.
#[cold]
fn gap_options(scratch: &mut Vec<u8>, lost: u32, gap: &str, standing: &[u8]) {
    scratch.clear();
    // The option's length is not known before the number is written.
    scratch.extend_from_slice(&option::COMMENT.to_le_bytes());
    scratch.extend_from_slice(&[0; 2]);
    let noun = if lost == 1 { "packet" } else { "packets" };
    let _ = write!(scratch, "{lost} {noun}{gap}");
    let length = scratch.len() - 4;
    scratch[2..4].copy_from_slice(&(length as u16).to_le_bytes());
    scratch.resize(scratch.len() + padding(length), 0);
    push_option(scratch, option::EPB_DROPCOUNT, &u64::from(lost).to_le_bytes());
    if standing.is_empty() {
        push_option(scratch, option::END, &[]);
    } else {
        scratch.extend_from_slice(standing);
    }
}

/// Builds the options of another file's packet: its comments, the count of lost packets, its queue, and the
/// standing options.
fn copy_options(scratch: &mut Vec<u8>, record: &Record<'_>, lost: u32, standing: &[u8]) {
    scratch.clear();
    for comment in record.raw_comments() {
        push_option(scratch, option::COMMENT, comment);
    }
    if lost > 0 {
        push_option(scratch, option::EPB_DROPCOUNT, &u64::from(lost).to_le_bytes());
    }
    if let Some(queue) = record.queue() {
        push_option(scratch, option::EPB_QUEUE, &queue.to_le_bytes());
    }
    if !standing.is_empty() {
        scratch.extend_from_slice(standing);
    } else if !scratch.is_empty() {
        push_option(scratch, option::END, &[]);
    }
}

#[cfg(test)]
mod tests {
    use pcap_parser::{Block, parse_block_le, parse_pcap_frame};

    use super::*;
    use crate::read::Reader;
    use crate::write::{Output, OutputConfig};
    use sluicegate_base::memory::{Pool, PoolConfig};
    use sluicegate_base::ring::{Interface, Meta, Ring, RingMut};

    const TIME_NS: u64 = 1_700_000_000_123_456_789;

    fn meta(wire_bytes: u32) -> Meta {
        Meta { timestamp_ns: TIME_NS, wire_bytes, interface: 1, ..Meta::default() }
    }

    fn encode(config: &EncoderConfig, packets: &[(Meta, Vec<u8>)]) -> Chunk {
        let mut encoder = Encoder::new(config);
        let mut chunk = encoder.chunk_of(1 << 20);
        // Bytes of an earlier record must not show through.
        assert!(encoder.append(&mut chunk, &Packet::new(&meta(900), &[0xff; 900])));
        chunk.clear();
        for (meta, bytes) in packets {
            assert!(encoder.append(&mut chunk, &Packet::new(meta, bytes)));
        }
        chunk
    }

    #[test]
    fn a_packet_of_any_length_is_read_back_by_another_parser() {
        for length in (0..70).chain([255, 1514, 65536, 262_144, 300_000]) {
            let bytes: Vec<u8> = (0..length).map(|i| i as u8 | 1).collect();
            let kept = bytes.len().min(262_144);
            let packet = (meta(length as u32), bytes.clone());

            let chunk = encode(&EncoderConfig::default(), &[packet.clone(), packet.clone()]);
            let (rest, _) = parse_block_le(chunk.bytes()).unwrap();
            let (rest, block) = parse_block_le(rest).unwrap();
            assert!(rest.is_empty());
            let Block::EnhancedPacket(block) = block else {
                panic!("{block:?}");
            };
            assert_eq!(block.if_id, 1);
            assert_eq!(u64::from(block.ts_high) << 32 | u64::from(block.ts_low), TIME_NS);
            assert_eq!((block.caplen, block.origlen), (kept as u32, length as u32));
            assert!(block.options.is_empty());
            assert_eq!(block.data[..kept], bytes[..kept]);
            assert!(block.data[kept..].iter().all(|byte| *byte == 0), "padding");

            for (microseconds, fraction) in [(false, 123_456_789), (true, 123_456)] {
                let config = EncoderConfig {
                    format: Format::Pcap,
                    microseconds,
                    ..EncoderConfig::default()
                };
                let chunk = encode(&config, &[packet.clone(), packet.clone()]);
                let (rest, _) = parse_pcap_frame(chunk.bytes()).unwrap();
                let (rest, record) = parse_pcap_frame(rest).unwrap();
                assert!(rest.is_empty());
                assert_eq!((record.ts_sec, record.ts_usec), (1_700_000_000, fraction));
                assert_eq!((record.caplen, record.origlen), (kept as u32, length as u32));
                assert_eq!(record.data, &bytes[..kept]);
            }
        }
    }

    #[test]
    fn options_stand_only_where_there_is_something_to_say() {
        let plain = meta(60);
        let received = Meta { direction: Direction::In, ..plain };
        let sent = Meta { direction: Direction::Out, ..plain };
        let gap = Meta { drops_before: 3, ..sent };
        let (alone, of_four) = (1, 4);
        type Row = (&'static str, Meta, u32, Vec<(u16, Vec<u8>)>);
        let [received_flags, flags] = [1, 2].map(|bits| (2, vec![bits, 0, 0, 0]));
        let queue = (6, vec![2, 0, 0, 0]);
        let end = (0, vec![]);
        let count = (4, vec![3, 0, 0, 0, 0, 0, 0, 0]);
        let text = |text: &str| (1, text.as_bytes().to_vec());
        let rows: [Row; 6] = [
            ("a plain packet has none", plain, alone, vec![]),
            ("a received one", received, alone, vec![received_flags, end.clone()]),
            ("a sent one", sent, alone, vec![flags.clone(), end.clone()]),
            ("one of several queues", plain, of_four, vec![queue.clone(), end.clone()]),
            (
                "a gap in the only queue",
                Meta { direction: Direction::Unknown, ..gap },
                alone,
                vec![text("3 packets lost before this packet: full"), count.clone(), end.clone()],
            ),
            (
                "everything",
                gap,
                of_four,
                vec![
                    text("3 packets lost before this packet in queue 2: full"),
                    count,
                    flags,
                    queue,
                    end,
                ],
            ),
        ];
        for (why, meta, queues, expected) in rows {
            let config = EncoderConfig {
                queue: 2,
                queues,
                loss_cause: "full".into(),
                ..EncoderConfig::default()
            };
            let chunk = encode(&config, &[(meta, vec![7; 61])]);
            let (rest, block) = parse_block_le(chunk.bytes()).unwrap();
            assert!(rest.is_empty(), "{why}");
            let Block::EnhancedPacket(block) = block else {
                panic!("{why}: {block:?}");
            };
            let options: Vec<(u16, Vec<u8>)> = block
                .options
                .iter()
                .map(|option| (option.code.0, option.value[..usize::from(option.len)].to_vec()))
                .collect();
            assert_eq!(options, expected, "{why}");
        }
    }

    #[test]
    fn a_record_of_another_file_keeps_what_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, chunk: &Chunk| {
            let path = folder.path().join(name);
            let mut output = Output::create(OutputConfig::new(&path)).unwrap();
            let described = Interface {
                name: String::new(),
                link_type: 1,
                snaplen: 0,
                comment: "one; clock ticks of 10^-9 s".into(),
            };
            output.add_interface(&described, None).unwrap();
            output.write(chunk).unwrap();
            assert!(output.finish().failure.is_none());
            Reader::open(&path).unwrap()
        };
        let config = EncoderConfig { queue: 2, queues: 4, ..EncoderConfig::default() };
        let gap = Meta { direction: Direction::Out, drops_before: 3, interface: 0, ..meta(61) };
        let mut first = write("first.pcapng", &encode(&config, &[(gap, vec![7; 61])]));
        let mut encoder = Encoder::new(&EncoderConfig::default());
        let mut chunk = encoder.chunk();
        let record = first.next_packet().unwrap().unwrap();
        let other = Packet::new(record.packet().meta(), &[8; 60]);
        assert!(encoder.append_record(&mut chunk, &record, &other));
        let mut second = write("second.pcapng", &chunk);
        let copy = second.next_packet().unwrap().unwrap();
        assert_eq!(copy.packet().head(), [8; 60]);
        assert_eq!(copy.packet().meta(), record.packet().meta());
        assert_eq!(copy.queue(), Some(2));
        let comments: Vec<_> = copy.comments().collect();
        assert_eq!(comments, ["3 packets lost before this packet in queue 2"]);
        let comment = "one; clock ticks of 10^-9 s";
        assert_eq!(second.interfaces()[0].comment, comment, "a remark is not repeated");
    }

    #[test]
    fn a_packet_may_have_a_comment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("commented.pcapng");
        let mut encoder = Encoder::new(&EncoderConfig::default());
        let mut chunk = encoder.chunk();
        let comments = ["drop rule a".to_owned(), "ü".repeat(MAX_CAUSE)];
        for (comment, direction) in comments.iter().zip([Direction::In, Direction::Unknown]) {
            let meta = Meta { interface: 0, direction, ..meta(60) };
            let packet = Packet::new(&meta, &[7; 60]);
            assert!(encoder.append_with_comment(&mut chunk, &packet, comment));
        }
        let mut output = Output::create(OutputConfig::new(&path)).unwrap();
        let (name, comment) = (String::new(), String::new());
        let described = Interface { name, link_type: 1, snaplen: 0, comment };
        output.add_interface(&described, None).unwrap();
        output.write(&chunk).unwrap();
        assert!(output.finish().failure.is_none());
        let mut reader = Reader::open(&path).unwrap();
        let first = reader.next_packet().unwrap().unwrap();
        assert_eq!(first.comments().collect::<Vec<_>>(), ["drop rule a"]);
        assert_eq!(first.packet().meta().direction, Direction::In);
        let second = reader.next_packet().unwrap().unwrap();
        assert_eq!(second.comments().collect::<Vec<_>>(), ["ü".repeat(MAX_CAUSE / 2)], "cut");
    }

    #[test]
    fn a_full_chunk_takes_nothing_and_an_empty_one_anything() {
        let mut encoder = Encoder::new(&EncoderConfig::default());
        let mut chunk = encoder.chunk_of(100);
        let meta = meta(1000);
        assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[1; 1000])), "larger than it");
        assert!(!encoder.append(&mut chunk, &Packet::new(&meta, &[])));
        assert_eq!((chunk.packets(), chunk.bytes().len()), (1, 1032));
        chunk.clear();
        assert_eq!(chunk.first_ns(), None);
        assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[1; 36])));
        assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[])), "100 bytes exactly");
        assert!(!encoder.append(&mut chunk, &Packet::new(&meta, &[])), "it does not stay large");
        assert_eq!(chunk.records().count(), 2);
        assert_eq!(chunk.last_ns(), Some(TIME_NS));
    }

    #[test]
    fn a_packet_in_several_slots_is_written_whole() {
        let pool = Pool::new(PoolConfig { buffers: 8, ..PoolConfig::default() }).unwrap();
        let mut ring = Ring::receive(&pool, 4).unwrap();
        let lengths = [2048u16, 2048, 100];
        for (index, length) in (0..).zip(lengths) {
            ring.fill(index, length, index < 2, meta(4196));
        }
        ring.publish(3);
        for index in 0..3 {
            RingMut::new(&mut ring).bytes_mut(index).fill(index as u8 + 1);
        }
        let expected = [vec![1; 2048], vec![2; 2048], vec![3; 100]].concat();
        for (snaplen, kept) in [(0, 4196), (3000, 3000), (2048, 2048), (10, 10)] {
            let mut encoder = Encoder::new(&EncoderConfig { snaplen, ..EncoderConfig::default() });
            let mut chunk = encoder.chunk();
            assert!(ring.packets().all(|packet| encoder.append(&mut chunk, &packet)));
            assert_eq!(chunk.packets(), 1);
            assert_eq!(chunk.bytes()[28..28 + kept], expected[..kept], "snaplen {snaplen}");
        }
    }

    #[test]
    fn an_interface_gets_its_number_in_the_file() {
        let mut encoder = Encoder::new(&EncoderConfig::default());
        [5, 9].into_iter().for_each(|number| encoder.map_interface(number));
        let mut chunk = encoder.chunk();
        assert!(encoder.append(&mut chunk, &Packet::new(&meta(1), &[1])));
        assert_eq!(chunk.bytes()[8..12], 9u32.to_le_bytes());
    }

    #[test]
    fn a_cut_packet_keeps_its_wire_length() {
        let config = EncoderConfig { snaplen: 64, ..EncoderConfig::default() };
        let chunk = encode(&config, &[(meta(1514), vec![3; 1514]), (meta(60), vec![4; 60])]);
        let lengths: Vec<usize> = chunk.records().map(|record| record.bytes.len()).collect();
        assert_eq!(lengths, [32 + 64, 32 + 60]);
        assert_eq!(chunk.bytes()[20..28], [64, 0, 0, 0, 0xea, 5, 0, 0]);
    }
}
