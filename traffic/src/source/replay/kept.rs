//! A file's packets in memory: of one that is sent several times, and is not too large.
//!
//! It is read once, whole, before anything is sent, and dealt out to the workers.

use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::port::PortName;
use sluicegate::ring::{Meta, Packet};

use super::position::{Position, Round};
use super::reading::{More, Reading};
use super::{Hand, LONGEST_SLEEP, ReplayOptions, link_type, share};

/// One worker's packets of a file.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    next: usize,
    /// All packets of the file, the other workers' too.
    round: Position,
    /// Where this round began.
    base: Position,
    /// Rounds still to come after this one; none is for ever.
    rounds: Option<u64>,
    /// Packets of all rounds and workers; none is all there are.
    most: Option<u64>,
    finished: bool,
    failure: Option<Error>,
}

/// A packet: where its bytes are, and what is known of it.
#[derive(Debug)]
struct Entry {
    at: usize,
    bytes: u32,
    /// It cannot be sent, and is only counted.
    other_link_type: bool,
    position: Position,
    meta: Meta,
}

impl Kept {
    /// Reads a file for so many workers. None if that takes too much memory.
    ///
    /// # Errors
    /// The file cannot be opened. What is wrong further on, the first worker's
    /// [`take_failure`](Self::take_failure) has.
    pub(super) fn load(
        file: &PortName,
        options: &ReplayOptions,
        workers: u32,
    ) -> Result<Option<Vec<Self>>> {
        let on_disk = Path::new(file.name()).metadata().map_or(0, |metadata| metadata.len());
        if on_disk > options.keep_bytes as u64 {
            return Ok(None);
        }
        let mut loading = Loading::new(workers, options.keep_bytes);
        let mut reading = Reading::open(file, options)?;
        let failure = loop {
            match reading.go_on() {
                Ok(More::Here) if !loading.take(&mut reading) => return Ok(None),
                Ok(More::Here) => {}
                Ok(More::Later) => reading.wait(LONGEST_SLEEP)?,
                Ok(More::Never) if loading.round.passed().packets > 0 && !loading.any => {
                    let met = reading.interfaces();
                    break Some(link_type::refusal(file, met, options.link_type));
                }
                Ok(More::Never) => break None,
                Err(error) => break Some(error),
            }
        };
        Ok(Some(loading.dealt(options, failure)))
    }

    /// Gives packets to a hand, until that takes no more or a round is over.
    pub(super) fn give(&mut self, hand: &mut Hand<'_, '_>) {
        while let Some(entry) = self.entries.get(self.next) {
            let position = self.base.plus(entry.position);
            if self.most.is_some_and(|most| position.packets >= most) {
                self.finished = true;
                return;
            }
            if entry.other_link_type {
                hand.left_out.other_link_type += 1;
            } else {
                let bytes = &self.bytes[entry.at..entry.at + entry.bytes as usize];
                if !hand.take(&Packet::new(&entry.meta, bytes), position) {
                    return;
                }
            }
            self.next += 1;
        }
        self.finished = self.rounds == Some(0) || self.entries.is_empty();
        if !self.finished {
            self.rounds = self.rounds.map(|rounds| rounds - 1);
            self.base = self.base.after_round(self.round);
            self.next = 0;
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// What ended the reading before its time.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

/// What has been read so far.
struct Loading {
    /// Each worker's bytes and packets.
    piles: Vec<(Vec<u8>, Vec<Entry>)>,
    round: Round,
    /// What they take of memory.
    kept: usize,
    most: usize,
    /// Whether a packet has been met that can be sent.
    any: bool,
}

impl Loading {
    fn new(workers: u32, most: usize) -> Self {
        let piles = (0..workers).map(|_| (Vec::new(), Vec::new())).collect();
        Self { piles, round: Round::default(), kept: 0, most, any: false }
    }

    /// Takes the packets that have been read; false if there is no more room.
    fn take(&mut self, reading: &mut Reading) -> bool {
        let workers = self.piles.len() as u32;
        for packet in reading.ring().packets() {
            let (fits, bytes) = (reading.fits(packet.meta()), packet.captured_bytes());
            self.any |= fits;
            // What is nobody's the first worker counts.
            let worker = if fits && workers > 1 { share::of(packet.head(), workers) } else { 0 };
            let (pile, entries) = &mut self.piles[worker as usize];
            let mut meta = *packet.meta();
            let position = self.round.position(&meta);
            self.round.pass(position, &meta, bytes);
            meta.interface = 0;
            let at = pile.len();
            if fits {
                packet.segments().for_each(|segment| pile.extend_from_slice(segment));
            }
            let bytes = bytes as u32;
            entries.push(Entry { at, bytes, other_link_type: !fits, position, meta });
            self.kept += bytes as usize + size_of::<Entry>();
        }
        let slots = reading.ring().available();
        reading.release(slots);
        self.kept <= self.most
    }

    fn dealt(self, options: &ReplayOptions, mut failure: Option<Error>) -> Vec<Kept> {
        // A file that is broken is sent as far as it goes, once.
        let rounds = if failure.is_some() { Some(0) } else { options.further_rounds() };
        let round = self.round.passed();
        let kept = |(bytes, entries)| Kept {
            bytes,
            entries,
            next: 0,
            round,
            base: Position::default(),
            rounds,
            most: options.packets,
            finished: false,
            failure: failure.take(),
        };
        self.piles.into_iter().map(kept).collect()
    }
}
