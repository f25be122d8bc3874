//! Tracks have the same counts as a model that stores every number.

use std::collections::HashSet;

use proptest::prelude::*;
use sluicegate_traffic::analyse::{
    Analyser, Analysis, Condition, Delays, NumberRun, Share, Stamp, StreamCounts, WINDOW,
    WalkResult, WorkerAnalysis,
};

/// An event on a packet's path.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Comes,
    IsLost,
    ComesTwice,
    /// It arrives after this number of packets have overtaken it.
    Waits(u16),
    /// A duplicate arrives after this number of packets.
    ComesAgain(u16),
}

pub fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Comes),
        1 => Just(Fate::IsLost),
        1 => Just(Fate::ComesTwice),
        1 => (1_u16..300).prop_map(Fate::Waits),
        1 => (1_u16..300).prop_map(Fate::ComesAgain),
    ]
}

/// Returns the numbers in order of arrival.
pub fn way(first: u32, fates: &[Fate]) -> Vec<u32> {
    let mut moments = Vec::new();
    for (at, fate) in (0_u32..).zip(fates) {
        let number = first.wrapping_add(at);
        let later = |by: u16| (at + u32::from(by)) * 2 + 1;
        match *fate {
            Fate::Comes => moments.push((at * 2, number)),
            Fate::IsLost => {}
            Fate::ComesTwice => moments.extend([(at * 2, number), (at * 2, number)]),
            Fate::Waits(by) => moments.push((later(by), number)),
            Fate::ComesAgain(by) => moments.extend([(at * 2, number), (later(by), number)]),
        }
    }
    moments.sort_by_key(|&(moment, _)| moment);
    moments.into_iter().map(|(_, number)| number).collect()
}

/// Counts numbers that do not wrap, in order of arrival.
fn model(numbers: impl IntoIterator<Item = u64>) -> (StreamCounts, u64) {
    let (mut counts, mut seen) = (StreamCounts::default(), HashSet::new());
    let (mut first, mut last) = (u64::MAX, 0);
    for number in numbers {
        counts.received += 1;
        if !seen.insert(number) {
            counts.duplicates += 1;
        } else if number < last {
            counts.reordered += 1;
        }
        (first, last) = (first.min(number), last.max(number));
    }
    let lost = if seen.is_empty() { 0 } else { last - first + 1 - seen.len() as u64 };
    (counts, lost)
}

fn stamped(number: u32, time_ns: u64) -> WalkResult {
    let stamp = Stamp { stream: 3, worker: 1, number, time_ns };
    WalkResult { stamp: Some(stamp), condition: Condition::Intact }
}

/// Merges analysers that each receive the numbers of one queue. A number determines its packet's
/// time.
fn analysed(first: u32, queues: &[Vec<u32>]) -> WorkerAnalysis {
    let shares: Vec<Share> = queues
        .iter()
        .map(|numbers| {
            let mut analyser = Analyser::new(|| 0);
            for &number in numbers {
                let since = number.wrapping_sub(first);
                analyser.found(stamped(number, 1000 + u64::from(since) * 10), None);
            }
            analyser.share()
        })
        .collect();
    let analysis = Analysis::of(&shares);
    analysis.streams.first().map_or_else(WorkerAnalysis::default, |it| it.workers[0].clone())
}

proptest! {
    #[test]
    fn tracks_count_as_the_model_does(
        first in prop_oneof![Just(0_u32), Just(u32::MAX - 200), any::<u32>()],
        fates in prop::collection::vec(fate(), 0..2000),
    ) {
        let numbers = way(first, &fates);
        let (counts, lost) = model(numbers.iter().map(|it| u64::from(it.wrapping_sub(first))));
        let found = analysed(first, &[numbers]);
        prop_assert_eq!((found.counts, found.lost, found.restarts), (counts, lost, 0));
    }

    #[test]
    fn losses_are_exact_across_queues(
        first in prop_oneof![Just(0_u32), Just(u32::MAX - 200), any::<u32>()],
        fates in prop::collection::vec(fate(), 1..2000),
        queues in 2_usize..5,
    ) {
        let numbers = way(first, &fates);
        let (counts, lost) = model(numbers.iter().map(|it| u64::from(it.wrapping_sub(first))));
        // A packet and its duplicate have the same flow, so they arrive in the same queue.
        let of = |queue| {
            let mut numbers = numbers.clone();
            numbers.retain(|it| (it.wrapping_mul(0x9e37_79b1) >> 16) as usize % queues == queue);
            numbers
        };
        let dealt: Vec<_> = (0..queues).map(of).collect();
        let found = analysed(first, &dealt);
        let (received, duplicates) = (found.counts.received, found.counts.duplicates);
        prop_assert_eq!(received, counts.received);
        prop_assert_eq!((duplicates, found.lost), (counts.duplicates, lost));
    }
}

#[test]
fn a_packet_beyond_the_window_counts_as_late_only() {
    let window = WINDOW as u32;
    for (sentence, behind, late) in [
        ("the oldest that is remembered", window - 1, 0),
        ("the first that is not", window, 1),
        ("far behind", window * 5, 1),
    ] {
        let last = window * 6;
        let found = analysed(0, &[vec![0, last, last - behind]]);
        let StreamCounts { received, reordered, duplicates, .. } = found.counts;
        assert_eq!((received, duplicates), (3, 0), "{sentence}");
        assert_eq!((found.counts.late, reordered), (late, 1 - late), "{sentence}");
        // A packet too late to be distinguished from a duplicate counts as lost.
        assert_eq!(found.lost, u64::from(last) - 2 + late, "{sentence}");
    }
}

#[test]
fn a_long_gap_leaves_no_marks_behind() {
    let window = WINDOW as u32;
    for gap in [63, 64, 65, window - 1, window, window + 1, window * 3 + 7] {
        let numbers = vec![0, 1, 2, 3 + gap, 2 + gap, 3 + gap];
        let found = analysed(0, &[numbers]);
        let StreamCounts { duplicates, reordered, .. } = found.counts;
        assert_eq!((duplicates, reordered), (1, 1), "{gap}");
        assert_eq!(found.lost, u64::from(gap) - 1, "{gap}");
    }
}

#[test]
fn a_restart_is_recognized_by_the_times_of_stamps() {
    type Numbers = &'static [(u32, u64)];
    const BILLION: u32 = 1_000_000_000;
    let rows: [(&str, &[Numbers], u64, u64); 14] = [
        ("once", &[&[(0, 10), (1, 20), (3, 40), (0, 50), (1, 60), (2, 70)]], 1, 1),
        (
            "two queues, each with its part",
            &[&[(0, 10), (2, 30), (1, 60)], &[(1, 20), (0, 50)]],
            1,
            0,
        ),
        (
            "one queue has nothing of the first run",
            &[&[(0, 10), (1, 20), (0, 50)], &[(1, 60)]],
            1,
            0,
        ),
        ("overtaken is not started over", &[&[(0, 10), (2, 30), (1, 20)]], 0, 0),
        ("nor made at the same moment", &[&[(0, 10), (2, 10), (1, 10)]], 0, 0),
        ("after a single packet", &[&[(0, 10), (0, 20)]], 1, 0),
        ("far beyond the middle", &[&[(2_999_999_999, 10), (3 * BILLION, 20), (0, 30)]], 1, 0),
        ("the numbers do", &[&[(u32::MAX - 1, 10), (u32::MAX, 20), (0, 30), (1, 40)]], 0, 0),
        ("the numbers do, and some are lost", &[&[(u32::MAX, 20), (65_534, 30)]], 0, 65_534),
        ("too many are lost", &[&[(u32::MAX, 20), (65_535, 30)]], 1, 0),
        ("a long gap", &[&[(0, 10), (3 * BILLION, 20)]], 0, 2_999_999_999),
        (
            "one queue has only the beginning",
            &[&[(0, 10), (1, 11)], &[(2, 20), (BILLION, 30), (2 * BILLION, 40), (3 * BILLION, 50)]],
            0,
            2_999_999_995,
        ),
        (
            "and one only what came when the numbers had started over",
            &[
                &[(0, 10)],
                &[(BILLION, 20), (2 * BILLION, 30), (3 * BILLION, 40), (u32::MAX, 50), (5, 60)],
                &[(3, 55), (10, 70)],
            ],
            0,
            (1 << 32) + 11 - 8,
        ),
        (
            "what one queue began with has overtaken what another has",
            &[&[(1, 20)], &[(2, 30), (0, 10)]],
            0,
            0,
        ),
    ];
    for (sentence, queues, restarts, lost) in rows {
        let shares: Vec<Share> = queues
            .iter()
            .map(|packets| {
                let mut analyser = Analyser::new(|| 0);
                packets.iter().for_each(|&(n, time)| analyser.found(stamped(n, time), None));
                analyser.share()
            })
            .collect();
        let found = &Analysis::of(&shares).streams[0].workers[0];
        assert_eq!((found.restarts, found.lost), (restarts, lost), "{sentence}");
        assert_eq!(found.counts.duplicates, 0, "{sentence}");
    }
}

#[test]
fn frequent_restarts_lose_no_count() {
    let mut analyser = Analyser::new(|| 0);
    for run in 0..1000_u64 {
        analyser.found(stamped(0, run * 100), None);
        analyser.found(stamped(2, run * 100 + 1), None);
    }
    let found = &Analysis::of(&[analyser.share()]).streams[0].workers[0];
    assert_eq!((found.restarts, found.lost), (999, 1000));
    assert_eq!((found.first, found.last), (0, 2));
}

#[test]
fn a_stamp_of_another_clock_has_no_latency() {
    let mut analyser = Analyser::new(|| 0);
    for (made, came) in [(1000, 1500), (1000, 999), (0, 3_600_000_000_001), (5, 5)] {
        analyser.found(stamped(0, made), Some(came));
    }
    let analysis = Analysis::of(&[analyser.share()]);
    let delays = &analysis.streams[0].delays;
    assert_eq!((delays.other_clock, delays.times.count(), delays.longest_ns), (2, 2, 500));
    assert_eq!((delays.percentile(0.5), delays.percentile(1.0)), (Some(0), Some(500)));
}

#[test]
fn contradictory_counters_do_not_count_billions_lost() {
    // The counters as read while a program begins another run.
    let run = NumberRun { first: 7 << 32, last: 1 << 32, different: 9, first_ns: 1, last_ns: 0 };
    assert_eq!(run.lost(), 0);
    let mut other =
        NumberRun { first: 7 << 32, last: (7 << 32) + 10, different: 11, first_ns: 1, last_ns: 5 };
    assert!(other.join(&run).is_some());
    assert_eq!(other.lost(), 0);
}

#[test]
fn delays_are_never_reported_shorter() {
    for delay in [0, 1, 63, 64, 1000, (1 << 36) - 1, 1 << 36, 70_000_000_000, 3_600_000_000_000] {
        let mut delays = Delays::default();
        delays.add(0, delay);
        delays.add(0, delay);
        assert_eq!(delays.percentile(0.5), Some(delay));
        delays.add(0, 3_600_000_000_000);
        let ns = delays.percentile(0.5).unwrap();
        assert!(ns >= delay && (ns <= delay + delay / 32 || delay > 68_000_000_000), "{delay}");
    }
}
