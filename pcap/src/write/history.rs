//! The newest records in memory, until a trigger asks for them: a flight recorder.
//!
//! Ages are measured by the packets' clock, which also fits a file that is read. If the clock is set back, the
//! records from before age by the new time. Live records age no faster than they arrive: one with a time far
//! ahead does not make all others too old.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::chunk::Chunk;

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
    /// Creates an empty history.
    pub fn new(config: HistoryConfig) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            span_ns: ns(config.span),
            after_ns: ns(config.after),
            max_bytes: config.max_bytes,
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
        }
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
        let empty = self.spare.pop().unwrap_or_else(|| chunk.new_like());
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
        let (mut now, mut later) = (entry.chunk.new_like(), entry.chunk.new_like());
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
    /// [give it](Self::give_back) [resident chunks](Chunk::new_resident) meanwhile.
    pub fn lacks_spare(&self, like: &Chunk) -> bool {
        self.spare.len() < MIN_SPARE && self.has_room_for_spare(like.memory())
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
        self.elapsed_ns += u128::from(last_ns.saturating_sub(self.latest_ns));
        if let Some(arrived) = arrived {
            let begun = *self.begun.get_or_insert(arrived);
            self.elapsed_ns = self.elapsed_ns.min((arrived - begun).as_nanos());
        }
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
            let lost = self.asked_for(oldest);
            self.is_short |= !too_old && lost == 0;
            let Some(Entry { chunk, .. }) = self.entries.pop_front() else { return };
            self.bytes -= chunk.memory();
            self.lost += lost;
            self.dropped += chunk.packets() - lost;
            self.give_back(chunk);
        }
    }

    /// Returns the number of an entry's packets that belong in a file that was asked for.
    fn asked_for(&self, Entry { chunk, epoch, .. }: &Entry) -> u64 {
        if self.triggers.is_empty() {
            return 0;
        }
        if *epoch != self.epoch {
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
mod tests {
    use sluicegate_base::ring::{Meta, Packet};

    use super::super::{Encoder, EncoderConfig};
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const HOUR: u64 = 3600 * SECOND;

    /// A history of 10 seconds, and one second after a trigger, of 16 chunks.
    fn history() -> History {
        let (span, after) = (Duration::from_secs(10), Duration::from_secs(1));
        History::new(HistoryConfig { span, after, max_bytes: 16 * 1024 })
    }

    /// Pushes a chunk of records of 44 bytes at these times.
    fn push(history: &mut History, times: &[u64]) {
        push_at(history, times, None);
    }

    fn push_at(history: &mut History, times: &[u64], arrived: Option<Instant>) {
        let mut encoder = Encoder::new(&EncoderConfig::default());
        let mut chunk = encoder.chunk_of(1024);
        for &timestamp_ns in times {
            let meta = Meta { timestamp_ns, ..Meta::default() };
            assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[0; 12])));
        }
        history.push(&mut chunk, arrived);
        assert!(chunk.is_empty());
    }

    /// The seconds of the records of a part, and whether it completes the file.
    fn take(history: &mut History, silent_ns: u64) -> Option<(Vec<u64>, bool)> {
        let part = history.take(silent_ns)?;
        let times =
            |chunk: &Chunk| chunk.records().map(|it| it.timestamp_ns / SECOND).collect::<Vec<_>>();
        let all = part.chunks.iter().flat_map(times).collect();
        part.chunks.into_iter().for_each(|chunk| history.give_back(chunk));
        Some((all, part.completes_file))
    }

    fn seconds(history: &mut History, seconds: impl IntoIterator<Item = u64>) {
        seconds.into_iter().for_each(|second| push(history, &[second * SECOND]));
    }

    #[test]
    fn a_file_has_the_span_before_its_trigger_and_the_time_after() {
        let mut history = history();
        seconds(&mut history, 100..130);
        history.trigger_at(129 * SECOND);
        assert_eq!(history.uncovered_from_ns(), 130 * SECOND + 1);
        assert_eq!(take(&mut history, 0), None, "the time after has not passed");
        push(&mut history, &[130 * SECOND, 131 * SECOND, 132 * SECOND]);
        assert_eq!(take(&mut history, 0), Some(((119..=130).collect(), true)));
        assert_eq!(take(&mut history, u64::MAX), None);
        assert_eq!((history.dropped(), history.in_memory().packets), (19, 2));
        history.trigger_now(None);
        assert_eq!(take(&mut history, 0), None);
        let rest = Some((vec![131, 132], true));
        assert_eq!(take(&mut history, 133 * SECOND), rest, "no packet is in two files");
    }

    #[test]
    fn frequent_events_make_one_file_per_span() {
        let mut history = history();
        let mut files = Vec::new();
        for second in 100..=140 {
            seconds(&mut history, [second]);
            if second * SECOND >= history.uncovered_from_ns() {
                history.trigger_at(second * SECOND);
            }
            files.extend(take(&mut history, 0));
        }
        let expected = [100..=101, 102..=111, 112..=121, 122..=131];
        assert_eq!(files, expected.map(|range| (range.collect(), true)));
        history.trigger_now(None);
        assert_eq!(take(&mut history, u64::MAX), Some(((132..=140).collect(), true)));
        assert_eq!(history.dropped(), 0);
    }

    #[test]
    fn memory_is_bounded_and_nothing_asked_for_is_dropped() {
        let mut history = history();
        // 23 records fill a chunk.
        let full = [100 * SECOND; 23];
        (0..20).for_each(|_| push(&mut history, &full));
        assert_eq!((history.bytes, history.dropped()), (16 * 1024, 4 * 23));
        let like = Encoder::new(&EncoderConfig::default()).chunk_of(1024);
        assert!(!history.lacks_spare(&like) && self::history().lacks_spare(&like));
        assert!(history.in_memory().is_short && history.spare.is_empty());
        history.trigger_at(100 * SECOND);
        let mut written = 0;
        for _ in 0..40 {
            while let Some((records, completes)) = take(&mut history, 0) {
                assert!(!completes);
                written += records.len();
            }
            push(&mut history, &full);
            assert!(history.bytes + history.spare.len() * 1024 <= 16 * 1024);
        }
        assert_eq!(history.dropped(), 4 * 23);
        assert_eq!(written as u64 + history.in_memory().packets, 56 * 23);
    }

    #[test]
    fn packets_that_a_file_was_to_have_are_lost_if_it_is_written_too_slowly() {
        let mut history = history();
        let full = |second| [second * SECOND; 23];
        // 16 chunks fit; one has nothing for the file, which nobody takes.
        push(&mut history, &full(80));
        (0..15).for_each(|_| push(&mut history, &full(100)));
        history.trigger_at(100 * SECOND);
        (0..3).for_each(|_| push(&mut history, &full(101)));
        assert_eq!((history.dropped(), history.lost()), (23, 2 * 23));
        assert!(!history.is_short, "a larger memory would not be enough for a slow disk");
        let (records, completes) = take(&mut history, u64::MAX).unwrap();
        assert_eq!((records.len(), completes), (16 * 23, true));
        (0..17).for_each(|_| push(&mut history, &full(102)));
        assert_eq!((history.dropped(), history.lost()), (2 * 23, 2 * 23), "no file is asked for");
        assert!(history.is_short);
    }

    #[test]
    fn a_live_packet_far_ahead_ages_no_other() {
        let (mut history, begun) = (history(), Instant::now());
        let mut push = |second: u64, arrived: u64| {
            let arrived = Some(begun + Duration::from_secs(arrived - 100));
            push_at(&mut history, &[second * SECOND], arrived);
            history.dropped()
        };
        (100..108).for_each(|second| assert_eq!(push(second, second), 0));
        assert_eq!(push(100 + HOUR / SECOND, 108), 0);
        assert_eq!(push(109, 109), 0);
        assert_eq!(push(122, 122), 10, "the usual age");
        let in_memory = history.in_memory();
        assert_eq!((in_memory.packets, in_memory.is_short), (1, false));
    }

    #[test]
    fn a_clock_that_is_set_back_ages_what_is_in_memory() {
        let mut history = history();
        seconds(&mut history, [9000, 9001, 8995, 9002]);
        assert_eq!(history.epoch, 0, "out of order");
        history.trigger_at(9002 * SECOND);
        seconds(&mut history, [5000]);
        let before = Some((vec![9000, 9001, 8995, 9002], true));
        assert_eq!(take(&mut history, 0), before, "no later packet of that clock will come");
        assert_eq!(history.uncovered_from_ns(), 0);
        seconds(&mut history, 5001..5005);
        seconds(&mut history, [5004 - HOUR / SECOND]);
        seconds(&mut history, 1405..1412);
        history.trigger_at(1411 * SECOND);
        let both = (5000..5005).chain([1404]).chain(1405..1412);
        assert_eq!(take(&mut history, u64::MAX), Some((both.collect(), true)));
        seconds(&mut history, 1412..1440);
        // Packets of an eighth of the span share a chunk.
        let period = history.in_memory().period;
        assert!((10.0..11.25).contains(&period.as_secs_f64()), "{period:?}");
    }

    #[test]
    fn times_may_jump_to_both_ends() {
        let mut history = history();
        for _ in 0..3 {
            push(&mut history, &[0]);
            push(&mut history, &[u64::MAX]);
        }
        let last = InMemory { packets: 1, period: Duration::ZERO, is_short: false };
        assert_eq!((history.dropped(), history.in_memory()), (5, last));
    }
}
