//! From packet to record: the hot loop of a capture.

use std::io::Write;

use super::super::Format;
use super::block::{
    EPB, EPB_HEADER, Layout, MAXIMUM_SNAPLEN, PCAP_RECORD, option, padding, pcap_time, push_option,
};
use super::chunk::{CHUNK_BYTES, Chunk};
use crate::ring::{Direction, Packet};

/// Bytes of [`EncoderConfig::loss_cause`] that are kept: an option's length has 16 bits.
const LONGEST_CAUSE: usize = 1024;

/// How packets become records.
#[derive(Clone, Debug, Default)]
pub struct EncoderConfig {
    /// The file's format.
    pub format: Format,
    /// pcap only: times in microseconds, for readers older than 2014.
    pub microseconds: bool,
    /// The most bytes of a packet that are kept. 0 means 262144, the most that libpcap and
    /// Wireshark read back.
    pub snaplen: u32,
    /// The queue the packets come from.
    pub queue: u32,
    /// How many queues there are: above one, each pcapng record names its own.
    pub queues: u32,
    /// pcapng: say which way a packet went, where it is known.
    pub direction: bool,
    /// Why packets are lost before they reach this encoder: "the socket's ring was full".
    pub loss_cause: String,
}

/// Appends packets to chunks, as records of one format. One for each receive thread.
#[derive(Debug)]
pub struct Encoder {
    layout: Layout,
    snaplen: usize,
    /// The file's number for each of the port's interfaces.
    interfaces: Vec<u32>,
    /// The options of a record without a gap before it, ready to copy: by direction.
    options: [Vec<u8>; 3],
    /// What a gap's comment says after the number.
    gap: String,
    /// Where the options of a record with a gap are put together.
    scratch: Vec<u8>,
}

impl Encoder {
    /// An encoder, for packets of a port whose interfaces have the same numbers in the file;
    /// see [`map_interface`](Self::map_interface) where they have not.
    pub fn new(config: &EncoderConfig) -> Self {
        let options = [Direction::Unknown, Direction::In, Direction::Out]
            .map(|direction| standing_options(config, direction));
        let place = match config.queues {
            0 | 1 => String::new(),
            _ => format!(" in queue {}", config.queue),
        };
        let cause = match config.loss_cause.as_str() {
            "" => String::new(),
            cause => format!(": {}", &cause[..cause.floor_char_boundary(LONGEST_CAUSE)]),
        };
        Self {
            layout: Layout::new(config.format, config.microseconds),
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

    /// Gives the port's next interface (the first call: number 0) its number in the file.
    pub fn map_interface(&mut self, in_file: u32) {
        self.interfaces.push(in_file);
    }

    /// An empty chunk of 1 MiB for records of this format.
    pub fn chunk(&self) -> Chunk {
        Chunk::new(self.layout, CHUNK_BYTES)
    }

    /// An empty chunk of a size of its own, in bytes.
    pub fn chunk_of(&self, capacity: usize) -> Chunk {
        Chunk::new(self.layout, capacity)
    }

    /// Appends a packet as one record. False if the chunk is full: nothing has happened then,
    /// and the packet belongs into the next chunk.
    ///
    /// # Panics
    /// If the chunk is of another format.
    #[inline]
    pub fn append(&mut self, chunk: &mut Chunk, packet: &Packet<'_>) -> bool {
        assert!(chunk.layout() == self.layout, "a chunk of another format");
        match self.layout {
            Layout::Pcapng => self.append_block(chunk, packet),
            Layout::Pcap => self.append_pcap(chunk, packet, 1),
            Layout::PcapMicroseconds => self.append_pcap(chunk, packet, 1000),
        }
    }

    #[inline]
    fn append_block(&mut self, chunk: &mut Chunk, packet: &Packet<'_>) -> bool {
        let meta = packet.meta();
        let options = if meta.lost_before == 0 {
            &self.options[meta.direction as usize]
        } else {
            let standing = &self.options[meta.direction as usize];
            gap_options(&mut self.scratch, meta.lost_before, &self.gap, standing);
            &self.scratch
        };
        let interface = match self.interfaces.get(meta.interface as usize) {
            Some(&number) => number,
            None => meta.interface,
        };
        let captured = packet.captured_bytes().min(self.snaplen);
        let options_at = EPB_HEADER + captured + padding(captured);
        let total = options_at + options.len() + 4;
        let Some(record) = chunk.append(total, meta.timestamp_ns) else {
            return false;
        };
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
        // The padding is part of this word; the packet overwrites what is not.
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

/// Copies as much of a packet as there is room for.
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

/// What every record of a direction carries; nothing at all on the plain path.
fn standing_options(config: &EncoderConfig, direction: Direction) -> Vec<u8> {
    let mut options = Vec::new();
    // Bits 0 and 1 of epb_flags.
    let flags: u32 = match direction {
        Direction::In => 1,
        Direction::Out => 2,
        Direction::Unknown => 0,
    };
    if config.direction && flags != 0 {
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

/// The options of a record with a gap before it: the comment that names it, the count, and
/// what stands anyway.
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
    push_option(
        scratch,
        option::EPB_DROPCOUNT,
        &u64::from(lost).to_le_bytes(),
    );
    if standing.is_empty() {
        push_option(scratch, option::END, &[]);
    } else {
        scratch.extend_from_slice(standing);
    }
}
