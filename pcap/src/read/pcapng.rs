//! The pcapng format (draft-ietf-opsawg-pcapng): sections of blocks.

use super::options::{BlockOptions, Resolution, describe};
use super::source::{ByteOrder, Fields};
use super::{Parsed, ParsedPacket, packet_limit, snapshot_limit};
use crate::codes::{EPB, IDB, OBSOLETE_PACKET, SHB, SPB};
use sluicegate_base::ring::{Interface, Meta, TimestampSource};

/// Type, length, and the length again at the end.
const FRAMING_BYTES: usize = 12;
const SECTION_HEADER_MIN_BYTES: usize = 28;
/// libpcap's limits: of the file's first block, and of every other block.
const FIRST_BLOCK_LIMIT: u32 = 1 << 20;
const BLOCK_LIMIT: u32 = 16 << 20;
/// libpcap's limit for a block without its packet: the fixed fields and 128 KiB of options.
const BESIDES_PACKET_LIMIT: u32 = 32 + (128 << 10);
/// Maximum of interfaces in a file; libpcap is limited only by memory.
const MAX_INTERFACES: usize = 1 << 16;

/// The sections and interfaces of a file, as far as it has been read.
#[derive(Debug)]
pub(super) struct PcapNg {
    order: ByteOrder,
    at_first_block: bool,
    /// The number of the section's first interface in the whole file.
    section_base: usize,
    /// The attributes needed to read packets, one entry per interface of the file.
    sources: Vec<InterfaceFormat>,
    block_limit: u32,
}

/// The attributes of an interface needed to read its packets.
#[derive(Clone, Copy, Debug)]
struct InterfaceFormat {
    clock: Resolution,
    snapshot: u32,
}

impl PcapNg {
    /// True if a file of this format can begin with `magic`.
    pub(super) fn recognises(magic: [u8; 4]) -> bool {
        u32::from_le_bytes(magic) == SHB
    }

    pub(super) fn new() -> Self {
        Self {
            order: ByteOrder::Little,
            at_first_block: true,
            section_base: 0,
            sources: Vec::new(),
            block_limit: BLOCK_LIMIT,
        }
    }

    /// Returns the byte order of the section being read.
    pub(super) fn order(&self) -> ByteOrder {
        self.order
    }

    /// Parses the block at the beginning of `bytes`; adds a new interface to `interfaces`.
    #[inline]
    pub(super) fn step(
        &mut self,
        bytes: &[u8],
        interfaces: &mut Vec<Interface>,
    ) -> Result<Parsed, String> {
        let Some(head) = bytes.get(..8) else { return Ok(Parsed::Need(8)) };
        if head.first_chunk().is_some_and(|magic| Self::recognises(*magic)) {
            match bytes.get(8..12) {
                None => return Ok(Parsed::Need(12)),
                Some(magic) => self.order = section_order(magic)?,
            }
        }
        let mut fields = Fields::new(head, self.order);
        let (kind, length) = fields.u32().zip(fields.u32()).unwrap_or_default();
        self.check_length(kind, length)?;
        let length = length as usize;
        let Some(block) = bytes.get(..length) else { return Ok(Parsed::Need(length)) };
        self.check_trailer(block)?;
        self.at_first_block = false;
        let body = Fields::new(&block[8..length - 4], self.order);
        let found = match kind {
            SHB => self.section(body)?,
            IDB => self.interface(body, interfaces)?,
            EPB => Some(self.enhanced_packet(body)?),
            SPB => Some(self.simple_packet(body)?),
            OBSOLETE_PACKET => Some(self.obsolete_packet(body)?),
            _ => None,
        };
        Ok(match found {
            None => Parsed::Skip(length),
            Some(found) => Parsed::Packet { record_bytes: length, found },
        })
    }

    fn check_length(&self, kind: u32, length: u32) -> Result<(), String> {
        let (least, most) = match self.at_first_block {
            true => (SECTION_HEADER_MIN_BYTES, FIRST_BLOCK_LIMIT),
            false => (FRAMING_BYTES, self.block_limit),
        };
        if (length as usize) < least || length > most {
            return Err(format!(
                "a block of type {kind:#x} and {length} bytes; there can be {least} to {most}"
            ));
        }
        // libpcap does not check this of the first block; neither does this reader.
        if !length.is_multiple_of(4) && !self.at_first_block {
            return Err(format!(
                "a block of type {kind:#x} and {length} bytes, which is no multiple of 4"
            ));
        }
        Ok(())
    }

    fn check_trailer(&self, block: &[u8]) -> Result<(), String> {
        let trailer = Fields::new(&block[block.len() - 4..], self.order).u32();
        if trailer != Some(block.len() as u32) && !self.at_first_block {
            return Err(format!(
                "a block that is {} bytes long by its head and {} by its end",
                block.len(),
                trailer.unwrap_or_default()
            ));
        }
        Ok(())
    }

    fn section(&mut self, mut body: Fields<'_>) -> Result<Option<ParsedPacket>, String> {
        let version = body.take(4).and_then(|_| body.u16().zip(body.u16()));
        match version {
            // The specification says to read 1.2 as 1.0; other minor versions are equally harmless.
            Some((1, _)) => {
                self.section_base = self.sources.len();
                Ok(None)
            }
            Some((major, minor)) => {
                Err(format!("pcapng version {major}.{minor} is unknown; 1.x can be read"))
            }
            None => Err("a section header that is too short".into()),
        }
    }

    fn interface(
        &mut self,
        mut body: Fields<'_>,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Option<ParsedPacket>, String> {
        if interfaces.len() >= MAX_INTERFACES {
            return Err(format!("more than {MAX_INTERFACES} interfaces"));
        }
        let fixed = body.u16().zip(body.u16()).zip(body.u32());
        let ((link_type, _), snaplen) = fixed.ok_or("an interface description is too short")?;
        let mut interface =
            Interface { name: String::new(), link_type, snaplen, comment: String::new() };
        let clock = describe(BlockOptions::new(body.rest(), self.order), &mut interface)?;
        self.sources.push(InterfaceFormat { clock, snapshot: snapshot_limit(link_type, snaplen) });
        interfaces.push(interface);
        let room_for_packet = packet_limit(link_type) + BESIDES_PACKET_LIMIT;
        self.block_limit = self.block_limit.max(room_for_packet);
        Ok(None)
    }

    #[inline]
    fn enhanced_packet(&self, mut body: Fields<'_>) -> Result<ParsedPacket, String> {
        let fixed = body.u32().zip(body.ticks());
        let (interface, ticks) = fixed.ok_or("a packet block is too short")?;
        self.packet(interface, ticks, body)
    }

    /// Parses the obsolete Packet Block of early pcapng files.
    fn obsolete_packet(&self, mut body: Fields<'_>) -> Result<ParsedPacket, String> {
        let fixed = body.u16().zip(body.u16()).zip(body.ticks());
        let ((interface, dropped), ticks) = fixed.ok_or("a packet block is too short")?;
        let mut found = self.packet(interface.into(), ticks, body)?;
        // 0xffff means "not known".
        if dropped != u16::MAX && found.meta.drops_before == 0 {
            found.meta.drops_before = dropped.into();
        }
        Ok(found)
    }

    /// Parses the rest of a packet block, from its lengths on.
    #[inline]
    fn packet(
        &self,
        interface: u32,
        ticks: u64,
        mut body: Fields<'_>,
    ) -> Result<ParsedPacket, String> {
        const DATA_AT: usize = 28;
        let lengths = body.u32().zip(body.u32());
        let (captured, wire) = lengths.ok_or("a packet block is too short")?;
        let (number, source) = self.source(interface)?;
        if captured > source.snapshot {
            return Err(format!(
                "a packet of {captured} captured bytes on an interface that captures {}",
                source.snapshot
            ));
        }
        let data_bytes = captured as usize;
        body.take(data_bytes).ok_or("a packet block is shorter than its packet")?;
        body.take(data_bytes.next_multiple_of(4) - data_bytes);
        let mut meta = Meta {
            timestamp_ns: source.clock.nanoseconds(ticks),
            timestamp_source: TimestampSource::File,
            wire_bytes: wire,
            interface: number,
            ..Meta::default()
        };
        let data = DATA_AT..DATA_AT + data_bytes;
        let options_at = DATA_AT + data_bytes.next_multiple_of(4);
        let options = options_at..options_at + body.rest().len();
        if !body.rest().is_empty() {
            BlockOptions::new(body.rest(), self.order).annotate(&mut meta);
        }
        Ok(ParsedPacket { meta, data, options })
    }

    /// Parses a Simple Packet Block: a packet of the section's first interface, without a timestamp.
    fn simple_packet(&self, mut body: Fields<'_>) -> Result<ParsedPacket, String> {
        let wire = body.u32().ok_or("a packet block is too short")?;
        let (number, source) = self.source(0)?;
        let data_bytes = wire.min(source.snapshot) as usize;
        body.take(data_bytes).ok_or("a packet block is shorter than its packet")?;
        Ok(ParsedPacket {
            meta: Meta { wire_bytes: wire, interface: number, ..Meta::default() },
            data: 12..12 + data_bytes,
            options: 0..0,
        })
    }

    /// Returns an interface of this section and its number in the whole file.
    #[inline]
    fn source(&self, in_section: u32) -> Result<(u32, &InterfaceFormat), String> {
        let number = self.section_base.saturating_add(in_section as usize);
        match self.sources.get(number) {
            Some(source) => Ok((number as u32, source)),
            None => {
                Err(format!("a packet of interface {in_section}, which the file has not described"))
            }
        }
    }
}

/// Returns the byte order of the section whose header has this byte-order magic.
fn section_order(magic: &[u8]) -> Result<ByteOrder, String> {
    match magic {
        [0x4d, 0x3c, 0x2b, 0x1a] => Ok(ByteOrder::Little),
        [0x1a, 0x2b, 0x3c, 0x4d] => Ok(ByteOrder::Big),
        _ => Err("a section header without pcapng's byte-order magic".into()),
    }
}
