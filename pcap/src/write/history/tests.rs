use sluicegate_base::ring::{Meta, Packet};

use super::super::{Encoder, EncoderConfig};
use super::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

/// A history of 10 seconds, and one second after a trigger, of 16 chunks.
fn history() -> History {
    let (span, after) = (Duration::from_secs(10), Duration::from_secs(1));
    History::new(HistoryConfig { span, after, max_bytes: 16 * 1024 }).unwrap()
}

/// Pushes a chunk of records of 44 bytes at these times.
fn push(history: &mut History, times: &[u64]) {
    push_at(history, times, None);
}

fn chunk(times: &[u64]) -> Chunk {
    let mut encoder = Encoder::new(&EncoderConfig::default());
    let mut chunk = encoder.chunk_of(1024);
    for &timestamp_ns in times {
        let meta = Meta { timestamp_ns, ..Meta::default() };
        assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[0; 12])));
    }
    chunk
}

fn push_at(history: &mut History, times: &[u64], arrived: Option<Instant>) {
    let mut chunk = chunk(times);
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
    let like = chunk(&[]);
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
fn without_memory_for_a_chunk_the_oldest_is_reused() {
    let mut history = history();
    let push_last = |history: &mut History, second| {
        let mut chunk = chunk(&[second * SECOND; 23]);
        chunk.exhaust();
        history.push(&mut chunk, None);
        assert!(chunk.is_empty());
        (history.in_memory().packets, history.dropped(), history.lost())
    };
    assert_eq!(push_last(&mut history, 100), (0, 23, 0), "no other is in memory");
    (0..3).for_each(|_| push(&mut history, &[101 * SECOND; 23]));
    assert_eq!(push_last(&mut history, 101), (3 * 23, 2 * 23, 0));
    assert!(history.is_short);
    history.trigger_at(101 * SECOND);
    assert_eq!(push_last(&mut history, 104), (3 * 23, 2 * 23, 23), "a file was to have them");
}

#[test]
fn a_history_that_the_process_cannot_have_is_refused() {
    let time = Duration::from_secs(1);
    let config = HistoryConfig { span: time, after: time, max_bytes: isize::MAX as usize };
    assert!(History::new(config).is_err());
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
fn live_packets_may_be_pushed_in_another_order_than_they_arrived() {
    let (mut history, begun) = (history(), Instant::now());
    for (second, arrived_ms) in [(100, 0), (101, 1000), (101, 500)] {
        let arrived = begun + Duration::from_millis(arrived_ms);
        push_at(&mut history, &[second * SECOND], Some(arrived));
    }
    assert_eq!(history.in_memory().period, Duration::from_secs(1));
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
