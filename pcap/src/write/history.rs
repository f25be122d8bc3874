//! The newest records in memory, until a trigger asks for them: a flight recorder.
//!
//! Ages are measured by the packets' clock, which also fits a file that is read. If the clock is set back, the
//! records from before age by the new time. Live records age no faster than they arrive: one with a time far
//! ahead does not make all others too old.

use std::collections::{TryReserveError, VecDeque};
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::chunk::{Chunk, FREE_BYTES};

/// Spare chunks for the time that another thread needs to provide more.
const MIN_SPARE: usize = 64;

/// The limits of a [`History`], and of the files that triggers ask for.
#[derive(Clone, Copy, Debug)]
pub struct HistoryConfig {
    /// How long a record stays in memory, at most.
    pub span: Duration,
    /// The time after a trigger that belongs in its file.
    pub after: Duration,
    /// Maximum of memory. The parts that [`History::take`] has returned are not included.
    pub max_bytes: usize,
}

/// Keeps whole chunks, and drops the oldest. Its memory is reused: once it is full, nothing is allocated.
#[derive(Debug)]
pub struct History {
    span_ns: u64,
    after_ns: u64,
    max_bytes: usize,
    /// Memory for chunks that are not allocated yet.
    reserve: Vec<u8>,
    entries: VecDeque<Entry>,
    /// The memory of the entries.
    bytes: usize,
    /// Empty chunks.
    spare: Vec<Chunk>,
    /// The packets' clock: the time of the newest record since it was last set back.
    latest_ns: u64,
    /// The packets' clock without its steps back. A file's may go far forward again and again.
    elapsed_ns: u128,
    /// When the first live record came.
    begun: Option<Instant>,
    /// How often the clock was set back.
    epoch: u32,
    /// The files still to be completed, in the order of their ends.
    triggers: VecDeque<Trigger>,
    /// The end of the last file that was asked for.
    last_end_ns: Option<u64>,
    dropped: u64,
    lost: u64,
    is_short: bool,
}

#[derive(Debug)]
struct Entry {
    chunk: Chunk,
    epoch: u32,
    /// `elapsed_ns` at its first and last records.
    begun_ns: u128,
    ended_ns: u128,
}

/// The times of the records of one file, both inclusive.
#[derive(Clone, Copy, Debug)]
struct Trigger {
    begin_ns: u64,
    end_ns: u64,
}

impl Trigger {
    fn contains(&self, time_ns: u64) -> bool {
        (self.begin_ns..=self.end_ns).contains(&time_ns)
    }
}

/// Chunks to write to one file.
#[derive(Debug)]
pub struct HistoryPart {
    /// The chunks, oldest first.
    pub chunks: Vec<Chunk>,
    /// The file is complete after them; otherwise another part follows.
    pub completes_file: bool,
}

/// The records in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMemory {
    /// Their number.
    pub packets: u64,
    /// The time from the oldest to the newest.
    pub period: Duration,
    /// Memory has been too small for the span: records left before they were too old.
    pub is_short: bool,
}

impl History {
    /// Creates an empty history, and reserves its memory.
    ///
    /// # Errors
    /// The process cannot have as much memory.
    pub fn new(config: HistoryConfig) -> Result<Self, TryReserveError> {
        let mut reserve = Vec::new();
        // Chunks leave that much to others.
        reserve.try_reserve_exact(config.max_bytes.saturating_add(FREE_BYTES))?;
        reserve.shrink_to(config.max_bytes);
        // Otherwise the compiler may leave the unused memory out.
        black_box(&reserve);
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self {
            span_ns: ns(config.span),
            after_ns: ns(config.after),
            max_bytes: config.max_bytes,
            reserve,
            entries: VecDeque::new(),
            bytes: 0,
            spare: Vec::new(),
            latest_ns: 0,
            elapsed_ns: 0,
            begun: None,
            epoch: 0,
            triggers: VecDeque::new(),
            last_end_ns: None,
            dropped: 0,
            lost: 0,
            is_short: false,
        })
    }

    /// Keeps a chunk's records; leaves an empty chunk in its place. Records that are too old or too many are
    /// dropped, but while a file is asked for, only those that are too many. `arrived` is for live records.
    pub fn push(&mut self, chunk: &mut Chunk, arrived: Option<Instant>) {
        let Some(last_ns) = chunk.last_ns() else { return };
        self.advance(last_ns, arrived);
        self.drop_oldest(chunk.memory());
        // A quiet link passes small chunks on. They share one, unless it would become too old as a whole.
        if let Some(back) = self.entries.back_mut()
            && back.epoch == self.epoch
            && self.elapsed_ns - back.begun_ns <= u128::from(self.span_ns / 8)
            && back.chunk.copy_all(chunk)
        {
            back.ended_ns = self.elapsed_ns;
            chunk.clear();
            return;
        }
        let mut empty = self.empty_like(chunk);
        // The process may have no memory for another: the oldest is reused.
        while empty.is_none()
            && let Some(oldest) = self.pop_oldest()
        {
            self.discard(oldest.chunk, oldest.epoch, false);
            empty = self.empty_like(chunk);
        }
        let Some(empty) = empty else {
            self.count_discarded(chunk, self.epoch, false);
            return chunk.clear();
        };
        self.keep(Entry {
            chunk: std::mem::replace(chunk, empty),
            epoch: self.epoch,
            begun_ns: self.elapsed_ns,
            ended_ns: self.elapsed_ns,
        });
    }

    /// Asks for a file of the records up to now; `now_ns` is the time if the packets' clock is this host's.
    pub fn trigger_now(&mut self, now_ns: Option<u64>) {
        let latest_ns = self.latest_ns;
        let now_ns = now_ns.unwrap_or(latest_ns);
        // The two clocks may differ.
        let (from_ns, at_ns) = (now_ns.min(latest_ns), now_ns.max(latest_ns));
        self.request(from_ns, at_ns, at_ns.saturating_add(self.after_ns));
    }

    /// Asks for a file of the records around this time. It ends no sooner than a span after the file before, so
    /// that frequent events make one file per span.
    pub fn trigger_at(&mut self, at_ns: u64) {
        let end_ns = at_ns.saturating_add(self.after_ns);
        let earliest_ns = self.last_end_ns.map_or(0, |end_ns| end_ns.saturating_add(self.span_ns));
        self.request(at_ns, at_ns, end_ns.max(earliest_ns));
    }

    fn request(&mut self, from_ns: u64, at_ns: u64, end_ns: u64) {
        let begin_ns = from_ns.saturating_sub(self.span_ns);
        match self.triggers.back_mut() {
            Some(last) if at_ns <= last.end_ns => last.end_ns = last.end_ns.min(end_ns),
            _ => self.triggers.push_back(Trigger { begin_ns, end_ns }),
        }
        self.last_end_ns = self.triggers.back().map(|last| last.end_ns);
    }

    /// Returns the first time after all files asked for: an earlier event needs no trigger.
    pub fn uncovered_from_ns(&self) -> u64 {
        self.last_end_ns.map_or(0, |end_ns| end_ns.saturating_add(1))
    }

    /// Takes the next part of a file that was asked for: the last part, once a later record has come, or no
    /// record up to `silent_ns` can come; an earlier part if memory is full. Call it after each push.
    pub fn take(&mut self, silent_ns: u64) -> Option<HistoryPart> {
        let wanted = *self.triggers.front()?;
        let completes_file = wanted.end_ns < self.latest_ns || wanted.end_ns <= silent_ns;
        if !completes_file && self.bytes + self.chunk_bytes() <= self.max_bytes {
            return None;
        }
        let mut chunks = Vec::new();
        self.bytes = 0;
        for entry in std::mem::take(&mut self.entries) {
            chunks.extend(self.divide(entry, wanted));
        }
        if completes_file {
            self.triggers.pop_front();
        }
        Some(HistoryPart { chunks, completes_file })
    }

    /// Returns the records of an entry that are wanted; keeps later ones, drops earlier ones.
    fn divide(&mut self, entry: Entry, Trigger { begin_ns, end_ns }: Trigger) -> Option<Chunk> {
        let (first_ns, last_ns) = (entry.chunk.first_ns()?, entry.chunk.last_ns()?);
        if entry.epoch != self.epoch || begin_ns <= first_ns && last_ns <= end_ns {
            return Some(entry.chunk);
        }
        if end_ns < first_ns {
            self.keep(entry);
            return None;
        }
        let (mut now, mut later) = match [0; 2].map(|_| self.empty_like(&entry.chunk)) {
            [Some(now), Some(later)] => (now, later),
            too_few => {
                too_few.into_iter().flatten().for_each(|chunk| self.give_back(chunk));
                self.discard(entry.chunk, entry.epoch, false);
                return None;
            }
        };
        for record in entry.chunk.records() {
            // Both have room for all records.
            match record.timestamp_ns {
                time_ns if time_ns < begin_ns => self.dropped += 1,
                time_ns if time_ns > end_ns => _ = later.copy(&record),
                _ => _ = now.copy(&record),
            }
        }
        let Entry { chunk, epoch, begun_ns, ended_ns } = entry;
        self.give_back(chunk);
        if !later.is_empty() {
            self.keep(Entry { chunk: later, epoch, begun_ns, ended_ns });
        }
        (!now.is_empty()).then_some(now)
    }

    /// Returns true if [`push`](Self::push) may soon have to allocate chunks like this one. Another thread can
    /// [allocate](Chunk::try_like) one and [give it](Self::give_back) meanwhile.
    pub fn lacks_spare(&mut self, like: &Chunk) -> bool {
        let lacks = self.spare.len() < MIN_SPARE && self.has_room_for_spare(like.memory());
        if lacks {
            self.free_reserve(like.memory());
        }
        lacks
    }

    /// Returns an empty chunk; `None` if there is too little memory.
    fn empty_like(&mut self, chunk: &Chunk) -> Option<Chunk> {
        self.spare.pop().or_else(|| {
            self.free_reserve(chunk.memory());
            chunk.try_like().or_else(|| {
                // Chunks of a file that is being written may have what else is free.
                self.reserve = Vec::new();
                chunk.try_like()
            })
        })
    }

    /// Frees what is reserved for the next chunk.
    fn free_reserve(&mut self, chunk_bytes: usize) {
        let in_use = self.bytes + (self.spare.len() + 1) * chunk_bytes;
        self.reserve.shrink_to(self.max_bytes.saturating_sub(in_use));
    }

    /// Returns the memory of a chunk that was taken.
    pub fn give_back(&mut self, mut chunk: Chunk) {
        if !chunk.has_grown() && self.has_room_for_spare(chunk.memory()) {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    fn has_room_for_spare(&self, bytes: usize) -> bool {
        (self.spare.len() + 1) * bytes <= self.max_bytes.saturating_sub(self.bytes)
    }

    /// Returns the memory that the next chunk will occupy.
    fn chunk_bytes(&self) -> usize {
        self.entries.back().map_or(0, |entry| entry.chunk.memory())
    }

    /// Returns the number of packets that were dropped although nothing is wrong: no file has them, and none
    /// was to have them.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of packets that a file was to have, but that had to make room before it was written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns what is in memory.
    pub fn in_memory(&self) -> InMemory {
        let oldest_ns = self.entries.front().map_or(self.elapsed_ns, |entry| {
            let chunk = &entry.chunk;
            let length_ns =
                chunk.last_ns().zip(chunk.first_ns()).map_or(0, |(last, first)| last - first);
            entry.ended_ns.saturating_sub(length_ns.into())
        });
        InMemory {
            packets: self.entries.iter().map(|entry| entry.chunk.packets()).sum(),
            period: Duration::from_nanos_u128(self.elapsed_ns - oldest_ns),
            is_short: self.is_short,
        }
    }

    /// Advances the packets' clock to the time of a record.
    fn advance(&mut self, last_ns: u64, arrived: Option<Instant>) {
        if last_ns.saturating_add(self.span_ns) < self.latest_ns {
            // Set back, not merely out of order. Files that were asked for have nothing to wait for.
            self.epoch += 1;
            self.latest_ns = last_ns;
            self.last_end_ns = None;
            self.triggers.iter_mut().for_each(|it| *it = Trigger { begin_ns: 0, end_ns: 0 });
        }
        let mut elapsed_ns = self.elapsed_ns + u128::from(last_ns.saturating_sub(self.latest_ns));
        if let Some(arrived) = arrived {
            let begun = *self.begun.get_or_insert(arrived);
            // Several threads push, and not in the order of arrival.
            let since = arrived.saturating_duration_since(begun).as_nanos();
            elapsed_ns = elapsed_ns.min(since).max(self.elapsed_ns);
        }
        self.elapsed_ns = elapsed_ns;
        self.latest_ns = self.latest_ns.max(last_ns);
    }

    /// Drops entries that are too old, and makes room.
    fn drop_oldest(&mut self, room: usize) {
        while let Some(oldest) = self.entries.front() {
            let too_old = oldest.ended_ns + u128::from(self.span_ns) < self.elapsed_ns;
            let too_many = self.bytes + room > self.max_bytes;
            if !(too_many || too_old && self.triggers.is_empty()) {
                return;
            }
            let Some(Entry { chunk, epoch, .. }) = self.pop_oldest() else { return };
            self.discard(chunk, epoch, too_old);
        }
    }

    fn pop_oldest(&mut self) -> Option<Entry> {
        let oldest = self.entries.pop_front()?;
        self.bytes -= oldest.chunk.memory();
        Some(oldest)
    }

    /// Drops a chunk's records, and keeps its memory.
    fn discard(&mut self, chunk: Chunk, epoch: u32, too_old: bool) {
        self.count_discarded(&chunk, epoch, too_old);
        self.give_back(chunk);
    }

    fn count_discarded(&mut self, chunk: &Chunk, epoch: u32, too_old: bool) {
        let lost = self.asked_for(chunk, epoch);
        self.is_short |= !too_old && lost == 0;
        self.lost += lost;
        self.dropped += chunk.packets() - lost;
    }

    /// Returns the number of a chunk's packets that belong in a file that was asked for.
    fn asked_for(&self, chunk: &Chunk, epoch: u32) -> u64 {
        if self.triggers.is_empty() {
            return 0;
        }
        if epoch != self.epoch {
            return chunk.packets();
        }
        let of_one_file =
            |first, last| self.triggers.iter().any(|it| it.contains(first) && it.contains(last));
        if chunk.first_ns().zip(chunk.last_ns()).is_some_and(|(a, b)| of_one_file(a, b)) {
            return chunk.packets();
        }
        let in_file = |time_ns| self.triggers.iter().any(|it| it.contains(time_ns));
        chunk.records().filter(|record| in_file(record.timestamp_ns)).count() as u64
    }

    fn keep(&mut self, entry: Entry) {
        self.bytes += entry.chunk.memory();
        self.entries.push_back(entry);
    }
}

#[cfg(test)]
mod tests;
