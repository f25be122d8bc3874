//! One worker's packets of a file: read in each round, or kept in memory for the rounds after the
//! first, if the file is small enough. They are rewritten in the reader's ring, and VLAN tags behind it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::file::Format;
use sluicegate::file::read::Reader;
use sluicegate::port::{Interface, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Queue};
use sluicegate::ring::{Meta, Packet, Wait};

use super::clock::{Position, Round};
use super::flow_assignment::Share;
use super::{ReplayOptions, RingFiller};
use crate::rewrite::Rewrite;

/// The packets that a worker sends.
#[derive(Debug)]
pub(super) struct ReplayPackets {
    file: PortName,
    options: ReplayOptions,
    share: Share,
    /// The file's reader; `None` when its packets are used up.
    reader: Option<Queue>,
    /// The packets of the first round, if there are more rounds and memory for it.
    kept: Option<CachedPackets>,
    /// The length of a round, if packets are read from memory.
    kept_round: Option<Position>,
    /// Rounds after this one; `None` means endless.
    rounds: Option<u64>,
    /// The changes of this round's addresses, if there are some.
    shift: Option<Rewrite>,
    /// Rounds before this one.
    past: u64,
    /// The beginning of this round.
    base: Position,
    round: Round,
    /// A packet of the right link type was read. A file without one is an error at its end.
    any: bool,
    /// The error that ended the file early.
    pub(super) failure: Option<Error>,
}

impl ReplayPackets {
    pub(super) fn open(file: &PortName, share: Share, options: &ReplayOptions) -> Result<Self> {
        Ok(Self {
            reader: Some(open(file)?),
            kept: CachedPackets::of(file, options),
            kept_round: None,
            file: file.clone(),
            options: options.clone(),
            share,
            rounds: (options.rounds > 0).then(|| options.rounds - 1),
            shift: None,
            past: 0,
            base: Position::default(),
            round: Round::new(options.max_gap_ns()),
            any: false,
            failure: None,
        })
    }

    /// Passes packets to a filler until it accepts no more, all packets in the ring are used up, or the round
    /// ends.
    pub(super) fn fill(&mut self, filler: &mut RingFiller<'_, '_>) {
        if let (Some(length), Some(kept)) = (self.kept_round, &mut self.kept) {
            match kept.fill(filler, self.base, self.options.packets) {
                RoundProgress::NotAll => {}
                RoundProgress::All if self.begin_round(length) => {}
                RoundProgress::All | RoundProgress::Limit => self.kept_round = None,
            }
            return;
        }
        if let Err(error) = self.read() {
            self.failure = Some(error);
            self.reader = None;
        }
        let Some(reader) = &mut self.reader else { return };
        let (interfaces, link_type) = (reader.interfaces(), self.options.link_type);
        // If all interfaces have the link type, no packet needs a check.
        let all_fit = interfaces.iter().all(|interface| interface.link_type == link_type);
        let limit = self.options.packets.map(|packets| packets - self.base.packets);
        let changes = self.options.rewrite.changes_tags() || self.shift.is_some();
        let mut scratch = (Meta::default(), Vec::new());
        let mut slots = 0;
        for packet in reader.rx().packets() {
            let meta = packet.meta();
            let position = self.round.position(meta);
            if limit == Some(position.packets) {
                break;
            }
            let fits = all_fit || fits(interfaces, link_type, meta);
            self.any |= fits;
            let own = match fits {
                true => self.share.owns(packet.head()),
                false => self.share.counts_others(),
            };
            let sent = match fits && changes {
                true => changed(&self.options, self.shift.as_ref(), &packet, &mut scratch),
                false => packet,
            };
            if !fits {
                filler.skipped.other_link_type += u64::from(own);
            } else if own && !filler.push(&sent, self.base.plus(position)) {
                break;
            }
            if let Some(kept) = &mut self.kept
                && !kept.store(&sent, fits, own, position)
            {
                self.kept = None;
            }
            self.round.pass(position, meta, packet.captured_bytes());
            slots += packet.slots();
        }
        reader.rx_mut().release(slots);
        if limit == Some(self.round.passed().packets) {
            self.reader = None;
        }
    }

    /// Reads packets into the reader's ring once all earlier ones are released. An error is reported after
    /// the packets before it.
    fn read(&mut self) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        if reader.rx().available() > 0 {
            return Ok(());
        }
        if reader.sync_rx()? > 0 {
            rewrite(reader, &self.options);
            return Ok(());
        }
        if !reader.is_finished() {
            return Ok(());
        }
        let passed = self.round.passed();
        if passed.packets > 0 && !self.any {
            return Err(refusal(&self.file, reader.interfaces(), self.options.link_type));
        }
        self.reader = None;
        // A round without packets would repeat forever.
        if !self.any || !self.begin_round(passed) {
            return Ok(());
        }
        match &self.kept {
            Some(kept) => self.kept_round = (!kept.chunks.is_empty()).then_some(passed),
            None => {
                self.round = Round::new(self.options.max_gap_ns());
                self.share.begin_round();
                self.reader = Some(open(&self.file)?);
            }
        }
        Ok(())
    }

    /// Begins the next round, after one of this length. Returns false if there is none.
    fn begin_round(&mut self, length: Position) -> bool {
        if self.rounds == Some(0) {
            return false;
        }
        self.rounds = self.rounds.map(|rounds| rounds - 1);
        self.past += 1;
        self.shift = self.options.unique.then(|| Rewrite::shifting(self.past));
        self.base = self.base.after_round(length, self.options.max_gap_ns());
        true
    }

    /// Waits until a pipe may have more packets. Returns false if it has some at once.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<bool> {
        match &mut self.reader {
            Some(reader) if reader.rx().available() == 0 => {
                let policy = Wait::Adaptive(Duration::from_micros(20));
                reader.wait_rx(policy, timeout).map(|_| true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.reader.is_none() && self.kept_round.is_none()
    }
}

fn open(file: &PortName) -> Result<Queue> {
    Ok(Port::open(file, &OpenOptions::default())?.queues.remove(0))
}

/// Reports whether a packet has the link type to send.
#[inline]
fn fits(interfaces: &[Interface], link_type: u16, meta: &Meta) -> bool {
    let interface = interfaces.get(meta.interface as usize);
    interface.is_some_and(|interface| interface.link_type == link_type)
}

/// Returns a packet with its VLAN tag and this round's addresses, in `scratch`.
fn changed<'a>(
    options: &ReplayOptions,
    shift: Option<&Rewrite>,
    packet: &Packet<'_>,
    scratch: &'a mut (Meta, Vec<u8>),
) -> Packet<'a> {
    let (meta, bytes) = scratch;
    *meta = *packet.meta();
    bytes.clear();
    packet.segments().for_each(|segment| bytes.extend_from_slice(segment));
    options.rewrite.change_tag(bytes, &mut meta.wire_bytes);
    if let Some(shift) = shift {
        shift.apply(options.link_type, bytes);
    }
    Packet::new(meta, bytes)
}

/// Changes the packets in the reader's ring, all but their VLAN tags.
fn rewrite(reader: &mut Queue, options: &ReplayOptions) {
    if options.rewrite.is_empty() {
        return;
    }
    let mut at = reader.rx().head();
    let mut begins = true;
    for _ in 0..reader.rx().available() {
        if begins && fits(reader.interfaces(), options.link_type, reader.rx().meta(at)) {
            options.rewrite.apply(options.link_type, reader.rx_mut().bytes_mut(at));
        }
        begins = !reader.rx().slot(at).continues();
        at = reader.rx().next(at);
    }
}

/// Bytes and packets allocated at once: a full chunk never moves.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_PACKETS: usize = 1 << 13;

/// One worker's packets of a file, in memory. The worker stores them during the first round.
#[derive(Debug)]
struct CachedPackets {
    chunks: Vec<Chunk>,
    /// The memory that all workers' packets take; each worker counts it on its own.
    taken: usize,
    most: usize,
    /// The changes of addresses from one round to the next, and the link type. The packets in memory have the
    /// addresses of the next round in which they are sent.
    step: Option<(Rewrite, u16)>,
    /// The next packet to pass on: chunk, and index in it.
    next: (usize, usize),
}

/// A chunk of consecutive packets.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    packets: Vec<CachedPacket>,
}

/// A packet's offset in its chunk, and its metadata.
#[derive(Debug)]
struct CachedPacket {
    at: usize,
    bytes: u32,
    /// The packet cannot be sent and is only counted.
    other_link_type: bool,
    position: Position,
    meta: Meta,
}

/// The packets of a round that a filler has accepted.
enum RoundProgress {
    NotAll,
    All,
    /// All packets up to the limit.
    Limit,
}

impl CachedPackets {
    /// Returns `None` if the file is sent once or is too large.
    fn of(file: &PortName, options: &ReplayOptions) -> Option<Self> {
        let on_disk = Path::new(file.name()).metadata().map_or(0, |metadata| metadata.len());
        let keeps = options.rounds != 1 && on_disk <= options.keep_bytes as u64;
        let most = options.keep_bytes;
        let step = options.unique.then(|| (Rewrite::shifting(1), options.link_type));
        keeps.then(|| Self { chunks: Vec::new(), taken: 0, most, step, next: (0, 0) })
    }

    /// Counts a packet, and stores it if it is this worker's `own`; stores only the metadata of one that does
    /// not fit. Returns false when memory runs out, at the same packet in all workers.
    #[inline]
    fn store(&mut self, packet: &Packet<'_>, fits: bool, own: bool, position: Position) -> bool {
        let bytes = if fits { packet.captured_bytes() } else { 0 };
        self.taken += bytes + size_of::<CachedPacket>();
        if self.taken > self.most {
            return false;
        }
        if !own {
            return true;
        }
        let chunk = match self.chunks.last_mut() {
            Some(chunk) if chunk.has_room(bytes) => chunk,
            _ => self.chunks.push_mut(Chunk {
                bytes: Vec::with_capacity(bytes.max(CHUNK_BYTES)),
                packets: Vec::with_capacity(CHUNK_PACKETS),
            }),
        };
        let at = chunk.bytes.len();
        if fits {
            packet.segments().for_each(|segment| chunk.bytes.extend_from_slice(segment));
            if let Some((step, link_type)) = &self.step {
                step.apply(*link_type, &mut chunk.bytes[at..]);
            }
        }
        let meta = Meta { interface: 0, ..*packet.meta() };
        let (bytes, other_link_type) = (bytes as u32, !fits);
        chunk.packets.push(CachedPacket { at, bytes, other_link_type, position, meta });
        true
    }

    /// Passes on packets of a round that began at `base`, up to a limit counted from the first round.
    fn fill(
        &mut self,
        filler: &mut RingFiller<'_, '_>,
        base: Position,
        limit: Option<u64>,
    ) -> RoundProgress {
        let (mut at, mut next) = self.next;
        while let Some(Chunk { bytes: all, packets }) = self.chunks.get_mut(at) {
            for kept in &packets[next..] {
                let position = base.plus(kept.position);
                if limit.is_some_and(|limit| position.packets >= limit) {
                    return RoundProgress::Limit;
                }
                if kept.other_link_type {
                    filler.skipped.other_link_type += 1;
                } else {
                    let bytes = &mut all[kept.at..kept.at + kept.bytes as usize];
                    if !filler.push(&Packet::new(&kept.meta, bytes), position) {
                        self.next = (at, next);
                        return RoundProgress::NotAll;
                    }
                    if let Some((step, link_type)) = &self.step {
                        step.apply(*link_type, bytes);
                    }
                }
                next += 1;
            }
            (at, next) = (at + 1, 0);
        }
        self.next = (0, 0);
        RoundProgress::All
    }
}

impl Chunk {
    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        self.packets.len() < CHUNK_PACKETS && self.bytes.capacity() - self.bytes.len() >= bytes
    }
}

/// Searches a file for an interface of a link type, reading as far as needed; without a link type,
/// checks that the file is a capture.
pub(super) fn check(file: &PortName, link_type: Option<u16>) -> Result<()> {
    let mut reader = Reader::open(Path::new(file.name()))?;
    let Some(link_type) = link_type else { return Ok(()) };
    loop {
        if reader.interfaces().iter().any(|interface| interface.link_type == link_type) {
            return Ok(());
        }
        // No packet before a fault in the file has such an interface. Sending reports the fault.
        if reader.format() == Format::Pcap || !matches!(reader.next_packet(), Ok(Some(_))) {
            return Err(refusal(file, reader.interfaces(), link_type));
        }
    }
}

/// Returns the error for a file without a packet that can be sent.
fn refusal(file: &PortName, interfaces: &[Interface], link_type: u16) -> Error {
    let others: BTreeSet<u16> = interfaces.iter().map(|interface| interface.link_type).collect();
    let others: Vec<String> = others.into_iter().map(named).collect();
    file.error(format!(
        "no packet can be sent: the file has link type {}, and the target {}",
        others.join(", "),
        named(link_type)
    ))
}

/// Formats a link type: its number in tcpdump.org's list, and a common one's name.
fn named(link_type: u16) -> String {
    let name = match link_type {
        LINKTYPE_ETHERNET => "Ethernet",
        0 => "BSD loopback",
        101 | 12 | 228 | 229 => "raw IP",
        105 => "802.11",
        113 => "Linux cooked",
        127 => "802.11 with radiotap",
        276 => "Linux cooked v2",
        _ => return link_type.to_string(),
    };
    format!("{link_type} ({name})")
}
