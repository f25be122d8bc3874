//! Merging the records of several sources by time.
//!
//! The records of each source are in order. A record is released when no open source can still send an
//! earlier one: each other source has a later record waiting, or has set a later watermark. A source without
//! either delays the others' records for at most the window, counted from their arrival, because the packets'
//! clock may differ from the system's and be ahead of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::chunk::{Chunk, EncodedRecords};

/// The default time for which a silent source may delay the others.
const WINDOW: Duration = Duration::from_millis(100);

/// Merges the chunks of several sources by time.
///
/// It allocates no chunks. The caller of `push` bounds the chunks in circulation: it must regularly take them
/// back by [`spent`](Self::spent).
#[derive(Debug)]
pub struct Merger {
    sources: Vec<OrderedInput>,
    window: Duration,
    /// The latest time released.
    out_ns: u64,
    late: u64,
    spent: Vec<(usize, Chunk)>,
}

#[derive(Debug, Default)]
struct OrderedInput {
    /// Chunks with their arrival times.
    chunks: VecDeque<(Chunk, Instant)>,
    /// Bytes of the first chunk already released.
    released: usize,
    /// The time of the first unreleased record; `None` without one.
    head_ns: Option<u64>,
    /// The source sends nothing earlier.
    watermark_ns: u64,
    closed: bool,
    pending: u64,
}

/// The next records to release: those of one source up to a time.
struct RecordRun {
    source: usize,
    until_ns: u64,
}

impl Merger {
    /// Creates a merger of `sources` sources, numbered from 0, with a window of 100 ms.
    pub fn new(sources: usize) -> Self {
        Self::with_window(sources, WINDOW)
    }

    /// Creates a merger with a window: the time after which a record is released although a source is silent.
    pub fn with_window(sources: usize, window: Duration) -> Self {
        Self {
            sources: (0..sources).map(|_| OrderedInput::default()).collect(),
            window,
            out_ns: 0,
            late: 0,
            spent: Vec::new(),
        }
    }

    /// Adds a chunk of a source that arrived at `arrived`.
    ///
    /// # Panics
    /// The source does not exist.
    pub fn push(&mut self, number: usize, chunk: Chunk, arrived: Instant) {
        let source = &mut self.sources[number];
        let Some(last_ns) = chunk.last_ns() else { return self.keep(number, chunk) };
        source.watermark_ns = source.watermark_ns.max(last_ns);
        source.pending += chunk.packets();
        source.chunks.push_back((chunk, arrived));
        if source.head_ns.is_none() {
            source.find_head();
        }
    }

    /// Sets a source's watermark: it will send nothing earlier than `watermark_ns`.
    ///
    /// # Panics
    /// The source does not exist.
    pub fn advance(&mut self, source: usize, watermark_ns: u64) {
        let source = &mut self.sources[source];
        source.watermark_ns = source.watermark_ns.max(watermark_ns);
    }

    /// Closes a source: it will send nothing more.
    ///
    /// # Panics
    /// The source does not exist.
    pub fn close(&mut self, source: usize) {
        self.sources[source].closed = true;
    }

    /// Moves releasable records into `out`, in order. Returns true if there may be more: the caller must
    /// write and empty `out`, then call again. Without `now` the window does not apply: records wait for
    /// silent sources.
    ///
    /// # Panics
    /// `out` and a pushed chunk have different formats.
    pub fn drain(&mut self, now: Option<Instant>, out: &mut Chunk) -> bool {
        let expired = now.and_then(|now| now.checked_sub(self.window));
        while let Some(run) = self.next_run(expired) {
            if self.pass_whole(&run, out) || !self.move_run(&run, out) {
                return true;
            }
        }
        false
    }

    /// Returns an emptied chunk and the source that pushed it: each source gets back as many as it has
    /// pushed.
    pub fn spent(&mut self) -> Option<(usize, Chunk)> {
        self.spent.pop()
    }

    /// Returns the number of records that arrived after a later one was released. They are released
    /// nevertheless.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns the number of waiting records.
    pub fn pending(&self) -> u64 {
        self.sources.iter().map(|s| s.pending).sum()
    }

    /// Returns the source with the earliest record, if that is releasable, and the time up to which its
    /// records may follow without a check of the others. Records that arrived by `expired`, and all earlier
    /// ones, no longer wait.
    fn next_run(&self, expired: Option<Instant>) -> Option<RecordRun> {
        let mut first: Option<(u64, usize)> = None;
        let mut until_ns = u64::MAX;
        let mut promised_ns = u64::MAX;
        for (number, source) in self.sources.iter().enumerate() {
            match (source.head_ns, first) {
                (Some(head_ns), Some((earliest_ns, _))) if head_ns >= earliest_ns => {
                    until_ns = until_ns.min(head_ns);
                }
                (Some(head_ns), earlier) => {
                    until_ns = earlier.map_or(until_ns, |(earliest_ns, _)| earliest_ns);
                    first = Some((head_ns, number));
                }
                (None, _) if !source.closed => promised_ns = promised_ns.min(source.watermark_ns),
                (None, _) => {}
            }
        }
        let (head_ns, source) = first?;
        let horizon_ns = self.sources.iter().filter_map(|s| s.expired_ns(expired?)).max();
        // A record earlier than the last one released is already late: waiting does not help.
        let limit_ns = promised_ns.max(horizon_ns.unwrap_or(0)).max(self.out_ns);
        (head_ns <= limit_ns).then(|| RecordRun { source, until_ns: until_ns.min(limit_ns) })
    }

    /// Swaps the source's first chunk into `out`, if all of it is releasable.
    fn pass_whole(&mut self, run: &RecordRun, out: &mut Chunk) -> bool {
        let source = &mut self.sources[run.source];
        let Some((chunk, _)) = source.chunks.front_mut() else { return false };
        let (Some(first_ns), Some(last_ns)) = (chunk.first_ns(), chunk.last_ns()) else {
            return false;
        };
        let whole = source.released == 0 && chunk.ordered;
        let in_time = first_ns >= self.out_ns && last_ns <= run.until_ns;
        if !(whole && in_time && out.is_empty()) {
            return false;
        }
        self.out_ns = last_ns;
        source.pending -= chunk.packets();
        std::mem::swap(chunk, out);
        self.finish_chunk(run.source);
        true
    }

    /// Copies the run's records to `out`; false if `out` is full.
    fn move_run(&mut self, run: &RecordRun, out: &mut Chunk) -> bool {
        let source = &mut self.sources[run.source];
        let Some((chunk, _)) = source.chunks.front() else { return true };
        assert!(chunk.layout() == out.layout(), "a chunk of another format");
        let records = EncodedRecords::new(chunk.layout(), &chunk.bytes()[source.released..]);
        let mut moved = 0;
        let mut full = false;
        source.head_ns = None;
        for record in records {
            let in_run = record.timestamp_ns <= run.until_ns;
            if !in_run || !out.copy(&record) {
                source.head_ns = Some(record.timestamp_ns);
                full = in_run;
                break;
            }
            source.released += record.bytes.len();
            moved += 1;
            self.late += u64::from(record.timestamp_ns < self.out_ns);
            self.out_ns = self.out_ns.max(record.timestamp_ns);
        }
        source.pending -= moved;
        if source.head_ns.is_none() {
            self.finish_chunk(run.source);
        }
        !full
    }

    fn finish_chunk(&mut self, number: usize) {
        let source = &mut self.sources[number];
        source.released = 0;
        let chunk = source.chunks.pop_front();
        source.find_head();
        if let Some((chunk, _)) = chunk {
            self.keep(number, chunk);
        }
    }

    /// Keeps a chunk for reuse.
    fn keep(&mut self, source: usize, mut chunk: Chunk) {
        chunk.clear();
        self.spent.push((source, chunk));
    }
}

impl OrderedInput {
    fn find_head(&mut self) {
        let first = self.chunks.front().and_then(|(chunk, _)| chunk.records().next());
        self.head_ns = first.map(|record| record.timestamp_ns);
    }

    /// Returns the latest time in the first chunk, if that arrived by then.
    fn expired_ns(&self, by: Instant) -> Option<u64> {
        let (chunk, arrived) = self.chunks.front()?;
        chunk.last_ns().filter(|_| *arrived <= by)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{EncodedRecord, Encoder, EncoderConfig};
    use super::*;
    use sluicegate_base::ring::{Meta, Packet};

    fn encoder() -> Encoder {
        Encoder::new(&EncoderConfig::default())
    }

    fn chunk(times: &[u64], tag: u8) -> Chunk {
        let mut encoder = encoder();
        let mut chunk = encoder.chunk_of(4096);
        for &timestamp_ns in times {
            let meta = Meta { timestamp_ns, ..Meta::default() };
            assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[tag; 4])));
        }
        chunk
    }

    /// Returns the records released now: their time, and the tag of their chunk.
    fn drain(merger: &mut Merger, now: Option<Instant>, capacity: usize) -> Vec<(u64, u8)> {
        let mut out = encoder().chunk_of(capacity);
        let mut released = Vec::new();
        loop {
            let more = merger.drain(now, &mut out);
            let tagged = |r: EncodedRecord<'_>| (r.timestamp_ns, r.bytes[28]);
            released.extend(out.records().map(tagged));
            out.clear();
            if !more {
                return released;
            }
        }
    }

    #[derive(Clone, Copy)]
    enum MergeStep {
        Push(usize, &'static [u64]),
        Advance(usize, u64),
        Close(usize),
        /// Drains at this time, which must release these. Later pushes arrive at this time; the first at 0.
        Drain(u64, &'static [u64]),
    }
    use MergeStep::{Advance, Close, Drain, Push};

    #[test]
    fn a_record_goes_when_nothing_earlier_can_come() {
        let rows: &[(&str, &[MergeStep], u64)] = &[
            ("a silent source holds the others up", &[Push(0, &[10, 20]), Drain(30, &[])], 0),
            (
                "a later record of the other lets go",
                &[Push(0, &[10, 20]), Push(1, &[15]), Drain(30, &[10, 15])],
                0,
            ),
            (
                "a watermark lets go what is not later than it",
                &[Push(0, &[10, 20, 21]), Advance(1, 20), Drain(30, &[10, 20])],
                0,
            ),
            (
                "a closed source holds nobody up",
                &[Push(0, &[10, 20]), Close(1), Drain(30, &[10, 20])],
                0,
            ),
            (
                "what has been here for the window goes in any case",
                &[
                    Push(0, &[10, 20]),
                    Drain(99, &[]),
                    Push(0, &[30]),
                    Drain(100, &[10, 20]),
                    Drain(199, &[30]),
                ],
                0,
            ),
            (
                "also when its clock is 37 s ahead of that of the silent one's promises",
                &[Push(0, &[37_000_000_000]), Advance(1, 50), Drain(100, &[37_000_000_000])],
                0,
            ),
            (
                "what comes too late goes at once and is counted",
                &[
                    Push(0, &[10, 20]),
                    Drain(1000, &[10, 20]),
                    Push(1, &[15, 19, 20]),
                    Drain(1000, &[15, 19, 20]),
                ],
                2,
            ),
            (
                "disorder within a source is counted, not mended",
                &[Push(0, &[10, 30, 20]), Close(1), Drain(0, &[10, 30, 20])],
                1,
            ),
        ];
        for (why, steps, late) in rows {
            let mut merger = Merger::with_window(2, Duration::from_nanos(100));
            let start = Instant::now();
            let mut now = start;
            for step in *steps {
                match *step {
                    Push(source, times) => merger.push(source, chunk(times, 0), now),
                    Advance(source, watermark_ns) => merger.advance(source, watermark_ns),
                    Close(source) => merger.close(source),
                    Drain(at_ns, expected) => {
                        now = start + Duration::from_nanos(at_ns);
                        let released = drain(&mut merger, Some(now), 4096);
                        let times: Vec<u64> = released.iter().map(|(time, _)| *time).collect();
                        assert_eq!(times, *expected, "{why}");
                    }
                }
            }
            assert_eq!(merger.late(), *late, "{why}");
        }
    }

    #[test]
    fn earlier_records_leave_with_one_that_has_waited() {
        let mut merger = Merger::with_window(3, Duration::from_nanos(100));
        let start = Instant::now();
        let now = start + Duration::from_nanos(100);
        merger.push(0, chunk(&[37_000_000_000], 0), start);
        // Because more records of that time may follow.
        merger.push(1, chunk(&[100], 1), now);
        assert_eq!(drain(&mut merger, Some(now), 4096), [(100, 1), (37_000_000_000, 0)]);
    }

    #[test]
    fn each_source_gets_its_chunks_back_empty() {
        let mut merger = Merger::new(2);
        let start = Instant::now();
        for round in 0..20 {
            merger.push(0, chunk(&[round, round], 0), start);
            merger.push(1, chunk(&[round], 1), start);
            assert_eq!(merger.pending(), 3);
            assert_eq!(drain(&mut merger, Some(start + WINDOW), 100).len(), 3);
        }
        assert_eq!(merger.pending(), 0);
        let spent: Vec<(usize, Chunk)> = std::iter::from_fn(|| merger.spent()).collect();
        assert!(spent.iter().all(|(_, chunk)| chunk.is_empty()));
        let of = |number| spent.iter().filter(|(source, _)| *source == number).count();
        assert_eq!((of(0), of(1)), (20, 20));
    }

    proptest! {
        /// For all chunk sizes and drain times, the result equals that of a sort.
        #[test]
        fn merging_is_sorting(
            sources in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0..50u64, 0..12), 0..6),
                1..5,
            ),
            order in prop::collection::vec((0..5usize, any::<bool>(), any::<bool>()), 0..60),
            capacity in 40..600usize,
        ) {
            let mut merger = Merger::with_window(sources.len(), Duration::MAX);
            let mut feeds: Vec<_> = sources.iter().map(|chunks| chunks.iter()).collect();
            let mut at_ns = vec![0; sources.len()];
            let (mut expected, mut released) = (Vec::new(), Vec::new());
            let rest = (0..sources.len()).flat_map(|s| std::iter::repeat_n((s, false, true), 7));
            for (source, promise, look) in order.into_iter().chain(rest) {
                let source = source % sources.len();
                if let Some(steps) = feeds[source].next() {
                    let at_ns = &mut at_ns[source];
                    let times: Vec<u64> = steps
                        .iter()
                        .map(|step| {
                            *at_ns += step;
                            *at_ns
                        })
                        .collect();
                    expected.extend(times.iter().map(|time| (*time, source as u8)));
                    merger.push(source, chunk(&times, source as u8), Instant::now());
                }
                if promise {
                    at_ns[source] += 10;
                    merger.advance(source, at_ns[source]);
                }
                if look {
                    released.extend(drain(&mut merger, None, capacity));
                }
            }
            (0..sources.len()).for_each(|source| merger.close(source));
            released.extend(drain(&mut merger, None, capacity));
            prop_assert!(released.is_sorted_by_key(|(time, _)| *time));
            expected.sort();
            released.sort();
            prop_assert_eq!(released, expected);
            prop_assert_eq!((merger.late(), merger.pending()), (0, 0));
        }
    }
}
