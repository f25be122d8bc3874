//! Computes the due times of a replay's packets. A packet's due time depends only on its [`Position`] and the
//! start and the paces of the replay. So a late packet delays no other, and all workers share one timetable.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluicegate::ring::{Meta, TimestampSource};

use super::Tempo;
use crate::rate::{Dial, Gaps, MAX_LAG, Period, Unit};

/// A packet's position in a replay: the totals of all earlier packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The time since the first packet, by the file's timestamps.
    pub(super) ns: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// The gap between rounds of a file that spans no time.
const BETWEEN_ROUNDS_NS: u64 = 1_000_000_000;

impl Position {
    /// Returns the position of a packet within a round that begins here.
    #[inline]
    pub(super) fn plus(self, within: Self) -> Self {
        Self {
            ns: self.ns.saturating_add(within.ns),
            packets: self.packets + within.packets,
            bytes: self.bytes.saturating_add(within.bytes),
        }
    }

    /// Returns the start of the next round: after the file's mean gap, or `max_gap_ns` if that is shorter.
    pub(super) fn after_round(self, round: Self, max_gap_ns: u64) -> Self {
        let gap = match round.ns.checked_div(round.packets.saturating_sub(1)) {
            None | Some(0) if round.ns == 0 => BETWEEN_ROUNDS_NS,
            gap => gap.unwrap_or(0).max(1),
        };
        let next = self.plus(round);
        Self { ns: next.ns.saturating_add(gap.min(max_gap_ns)), ..next }
    }
}

/// Computes the positions of a round's packets while they are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The latest timestamp of the packets passed.
    latest_ns: Option<u64>,
    /// The longest gap between two packets; a longer one in the file becomes this long.
    max_gap_ns: u64,
    passed: Position,
}

impl Round {
    pub(super) fn new(max_gap_ns: u64) -> Self {
        Self { latest_ns: None, max_gap_ns, passed: Position::default() }
    }

    /// Returns the next packet's position. Time never goes back: a packet with an earlier timestamp, or none,
    /// is due with the previous packet.
    #[inline]
    pub(super) fn position(&self, meta: &Meta) -> Position {
        let gap = match (self.latest_ns, meta.timestamp_source) {
            (Some(latest), source) if source != TimestampSource::None => {
                meta.timestamp_ns.saturating_sub(latest).min(self.max_gap_ns)
            }
            _ => 0,
        };
        Position { ns: self.passed.ns.saturating_add(gap), ..self.passed }
    }

    /// Advances past a packet at `position`.
    #[inline]
    pub(super) fn pass(&mut self, position: Position, meta: &Meta, bytes: usize) {
        if meta.timestamp_source != TimestampSource::None {
            self.latest_ns = self.latest_ns.max(Some(meta.timestamp_ns));
        }
        self.passed = Position {
            packets: position.packets + 1,
            bytes: position.bytes.saturating_add(bytes as u64),
            ..position
        };
    }

    /// Returns the position after the last packet passed.
    pub(super) fn passed(&self) -> Position {
        self.passed
    }
}

/// The start and the pace of a replay, shared by its workers. Each atomic number is independent of other
/// data, so relaxed ordering suffices.
#[derive(Debug)]
pub(super) struct ReplayStart {
    /// Workers that have not arrived yet.
    missing: AtomicU32,
    /// The monotonic time of the start; 0 until all workers have arrived.
    at_ns: AtomicU64,
    pacing: Mutex<Pacing>,
    /// [`Pacing::changes`], readable without the lock.
    changes: AtomicU64,
}

impl ReplayStart {
    pub(super) fn of(workers: u32) -> Arc<Self> {
        Arc::new(Self {
            missing: AtomicU32::new(workers),
            at_ns: AtomicU64::new(0),
            pacing: Mutex::new(Pacing::NONE),
            changes: AtomicU64::new(0),
        })
    }

    /// Follows the dial. A new pace holds for all workers from the time at which the first worker reads it.
    /// Earlier due times stay.
    #[cold]
    fn follow(&self, dial: &Dial, after_ns: u64) -> Pacing {
        let mut pacing = self.pacing.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = dial.period();
        if asked != pacing.asked {
            let since = after_ns.saturating_sub(pacing.since_ns);
            pacing.before += since as f64 / nanoseconds(pacing.asked);
            pacing.since_ns += since;
            pacing.asked = asked;
            pacing.changes += 1;
            self.changes.store(pacing.changes, Ordering::Relaxed);
        }
        *pacing
    }

    /// Counts a worker as ready; the last one sets the start.
    fn arrive(&self, now_ns: u64) {
        if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.at_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    fn at(&self) -> Option<u64> {
        Some(self.at_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0)
    }

    /// Postpones the start. Returns false if another worker postponed it further.
    fn put_off(&self, to_ns: u64) -> bool {
        self.at_ns.fetch_max(to_ns, Ordering::Relaxed) < to_ns
    }
}

/// One worker's view of the timetable, and its lateness.
#[derive(Debug)]
pub(super) struct ReplayClock {
    tempo: Tempo,
    pacing: Pacing,
    start: Arc<ReplayStart>,
    arrived: bool,
    /// The due time of the first packet that has to wait.
    pub(super) next_ns: Option<u64>,
    /// Due times of packets in the ring that are not yet submitted.
    in_ring: Vec<u64>,
    pub(super) gaps: Gaps,
    pub(super) restarts: u64,
}

impl ReplayClock {
    pub(super) fn new(tempo: &Tempo, start: Arc<ReplayStart>) -> Self {
        Self {
            pacing: Pacing::NONE,
            tempo: tempo.clone(),
            start,
            arrived: false,
            next_ns: None,
            in_ring: Vec::new(),
            gaps: Gaps::default(),
            restarts: 0,
        }
    }

    /// Returns the start; `None` until all workers have arrived.
    #[inline]
    pub(super) fn begun(&mut self, now_ns: u64) -> Option<u64> {
        if !self.arrived {
            self.arrived = true;
            self.start.arrive(now_ns);
        }
        self.next_ns = None;
        let begun = self.start.at()?;
        if let Tempo::Paced { dial, .. } = &self.tempo {
            let changes = self.start.changes.load(Ordering::Relaxed);
            if (changes, dial.period()) != (self.pacing.changes, self.pacing.asked) {
                self.pacing = self.start.follow(dial, now_ns.saturating_sub(begun));
            }
        }
        Some(begun)
    }

    /// Reports whether all workers have arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.start.at().is_some()
    }

    /// Returns the due time of a position if that time has come.
    #[inline]
    pub(super) fn is_due(&mut self, position: Position, begun_ns: u64, now_ns: u64) -> Option<u64> {
        if let Tempo::Top = self.tempo {
            return Some(begun_ns);
        }
        let due = begun_ns.saturating_add(self.after_ns(position));
        if due <= now_ns {
            return Some(due);
        }
        self.next_ns = Some(due);
        None
    }

    /// Records that a due packet enters the ring. Postpones the whole timetable if the delay is too
    /// long to make up for.
    #[inline]
    pub(super) fn sent(&mut self, due_ns: u64, begun_ns: u64, now_ns: u64) -> u64 {
        if let Tempo::Top = self.tempo {
            return begun_ns;
        }
        self.in_ring.push(due_ns);
        let late = now_ns - due_ns;
        if u128::from(late) <= MAX_LAG.as_nanos() {
            return begun_ns;
        }
        self.restarts += u64::from(self.start.put_off(begun_ns + late));
        self.start.at().unwrap_or(begun_ns)
    }

    /// Records the lateness of the submitted packets.
    #[inline]
    pub(super) fn handed_over(&mut self, now_ns: u64) {
        for due in self.in_ring.drain(..) {
            self.gaps.add(now_ns.saturating_sub(due));
        }
    }

    /// Returns the time from the start of the replay to a packet, the recorded one at top speed.
    pub(super) fn planned_ns(&self, position: Position) -> u64 {
        match self.tempo {
            Tempo::Top => position.ns,
            _ => self.after_ns(position),
        }
    }

    /// Returns the time from the start of the replay to a packet.
    #[inline]
    fn after_ns(&self, position: Position) -> u64 {
        match &self.tempo {
            Tempo::Recorded(1.0) => position.ns,
            Tempo::Recorded(speed) => (position.ns as f64 / speed) as u64,
            Tempo::Paced { of, .. } => self.pacing.after_ns(position, *of),
            Tempo::Top => 0,
        }
    }
}

/// The last pace, and the units due before it.
#[derive(Clone, Copy, Debug)]
struct Pacing {
    /// The dial's period when it was last read.
    asked: Period,
    /// The number of changes.
    changes: u64,
    /// The time of the last change since the start, and the units due by then.
    since_ns: u64,
    before: f64,
}

impl Pacing {
    /// No packet is due before a worker reads the dial.
    const NONE: Self = Self { asked: Period::NEVER, changes: 0, since_ns: 0, before: 0.0 };

    #[inline]
    fn after_ns(&self, position: Position, of: Unit) -> u64 {
        let units = match of {
            Unit::Packet => position.packets as f64,
            Unit::Byte { besides } => {
                position.bytes as f64 + position.packets as f64 * f64::from(besides)
            }
        };
        if self.asked == Period::NEVER && units >= self.before {
            return Period::NEVER.ns;
        }
        // Units due before the change of pace are due by now.
        let since = ((units - self.before) * nanoseconds(self.asked)).max(0.0);
        self.since_ns.saturating_add(since as u64)
    }
}

fn nanoseconds(period: Period) -> f64 {
    period.ns as f64 + f64::from(period.fraction) / (1_u64 << 32) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{Dial, Pace};

    const MS: u64 = 1_000_000;

    fn at(ns: u64, packets: u64, bytes: u64) -> Position {
        Position { ns, packets, bytes }
    }

    fn paced(pps: f64, of: Unit) -> Tempo {
        Tempo::Paced { dial: Dial::new(Pace { pps, burst: 1 }), of }
    }

    #[test]
    fn due_times_follow_from_the_position() {
        let position = at(5_000, 10, 600);
        for (tempo, ns) in [
            (Tempo::Recorded(1.0), 5_000),
            (Tempo::Recorded(2.5), 2_000),
            (Tempo::Recorded(0.1), 50_000),
            (paced(1e6, Unit::Packet), 10_000),
            (paced(1.25e8, Unit::BYTE_OF_LAYER1), 840 * 8),
            (paced(1.25e8, Unit::BYTE_OF_LAYER2), 600 * 8),
            (Tempo::Top, 0),
        ] {
            let mut clock = ReplayClock::new(&tempo, ReplayStart::of(1));
            assert_eq!(clock.begun(MS), Some(MS));
            assert_eq!(clock.after_ns(position), ns, "{tempo:?}");
        }
        // Exact to the nanosecond over years.
        let years = at(3 * 365 * 86_400 * 1_000 * MS + 1, 1, 60);
        let clock = ReplayClock::new(&Tempo::Recorded(1.0), ReplayStart::of(1));
        assert_eq!(clock.after_ns(years), years.ns);
    }

    #[test]
    fn a_pace_holds_from_its_change_on() {
        let dial = Dial::new(Pace { pps: 1_000.0, burst: 1 });
        let start = ReplayStart::of(1);
        start.follow(&dial, 0);
        let mut pacing = start.follow(&dial, 50 * MS);
        let due = |pacing: &Pacing, packets| {
            (pacing.after_ns(at(0, packets, 0), Unit::Packet) + MS / 2) / MS
        };
        assert_eq!((due(&pacing, 100), due(&pacing, 200)), (100, 200));
        dial.set(Pace { pps: 100.0, burst: 1 });
        pacing = start.follow(&dial, 100 * MS);
        assert_eq!((due(&pacing, 100), due(&pacing, 110)), (100, 200), "ten times as slow");
        dial.set(Pace { pps: 0.0, burst: 1 });
        pacing = start.follow(&dial, 200 * MS);
        assert!(due(&pacing, 111) > 1_000_000_000, "none at all");
        dial.set(Pace { pps: 1_000.0, burst: 1 });
        pacing = start.follow(&dial, 5_000 * MS);
        assert_eq!((due(&pacing, 110), due(&pacing, 120)), (5_000, 5_010), "and nothing made up");
    }

    #[test]
    fn a_change_of_pace_holds_for_all_workers_from_one_time() {
        let dial = Dial::new(Pace { pps: 1_000.0, burst: 1 });
        let tempo = Tempo::Paced { dial: dial.clone(), of: Unit::Packet };
        let start = ReplayStart::of(2);
        let mut clocks = [(); 2].map(|()| ReplayClock::new(&tempo, Arc::clone(&start)));
        assert_eq!(clocks.each_mut().map(|clock| clock.begun(MS)), [None, Some(MS)]);
        // Each row: a pace, the worker that reads it, and the time after the start in ms.
        for (sentence, steps, packets, due_ms) in [
            ("one reads it first", &[(100.0, 0, 100), (100.0, 1, 180)][..], 110, 200),
            (
                "one misses a change and its reversal",
                &[(1.0, 0, 200), (100.0, 0, 1200), (100.0, 1, 1250)],
                121,
                1300,
            ),
            (
                "one reads it at an earlier time than that of the last change",
                &[(1_000.0, 1, 1150), (1_000.0, 0, 1350)],
                131,
                1220,
            ),
        ] {
            for &(pps, worker, ms) in steps {
                dial.set(Pace { pps, burst: 1 });
                assert_eq!(clocks[worker].begun(MS + ms * MS), Some(MS));
            }
            let due = clocks.each_ref().map(|clock| clock.after_ns(at(0, packets, 0)));
            assert_eq!(due.map(|ns| (ns + MS / 2) / MS), [due_ms; 2], "{sentence}");
        }
    }

    #[test]
    fn workers_begin_together() {
        let start = ReplayStart::of(2);
        let mut clocks =
            [(); 2].map(|()| ReplayClock::new(&Tempo::Recorded(1.0), Arc::clone(&start)));
        assert_eq!(clocks[0].begun(100), None);
        assert_eq!(clocks[0].begun(150), None, "it counts once");
        assert_eq!(clocks[1].begun(200), Some(200));
        assert_eq!(clocks[0].begun(250), Some(200));
    }

    #[test]
    fn a_late_packet_counts_when_handed_over_and_delays_none() {
        let mut clock = ReplayClock::new(&Tempo::Recorded(1.0), ReplayStart::of(1));
        let begun = clock.begun(1_000).unwrap();
        assert_eq!(clock.is_due(at(500, 1, 60), begun, 1_400), None);
        assert_eq!(clock.next_ns, Some(1_500));
        let due = clock.is_due(at(500, 1, 60), begun, 1_600).unwrap();
        assert_eq!(clock.sent(due, begun, 1_600), begun);
        assert_eq!(clock.gaps.count(), 0, "not yet");
        clock.handed_over(1_700);
        assert!(clock.gaps.percentile(1.0).is_some_and(|ns| (200..=225).contains(&ns)));
        assert_eq!(clock.is_due(at(2_000, 2, 120), begun, 3_000), Some(3_000), "in time");
    }

    #[test]
    fn too_long_a_delay_postpones_the_timetable_for_all() {
        let start = ReplayStart::of(1);
        let mut clock = ReplayClock::new(&paced(1_000.0, Unit::Packet), Arc::clone(&start));
        let begun = clock.begun(1_000 * MS).unwrap();
        let late = 1_000 * MS + 500 * MS;
        let due = clock.is_due(at(0, 100, 0), begun, late).unwrap();
        let begun = clock.sent(due, begun, late);
        assert_eq!((begun, clock.restarts), (1_400 * MS, 1), "what is due now is due now");
        assert_eq!(start.at(), Some(begun));
        assert_eq!(clock.is_due(at(0, 101, 0), begun, late), None, "and no burst follows");
    }

    #[test]
    fn top_speed_knows_no_times() {
        let mut clock = ReplayClock::new(&Tempo::Top, ReplayStart::of(1));
        let begun = clock.begun(5).unwrap();
        assert!(clock.is_due(at(u64::MAX, 9, 9), begun, 5).is_some());
        clock.sent(5, begun, 5);
        clock.handed_over(9);
        assert_eq!(clock.gaps.count(), 0);
    }

    fn meta(timestamp_ns: u64) -> Meta {
        Meta { timestamp_ns, timestamp_source: TimestampSource::File, ..Meta::default() }
    }

    #[test]
    fn time_counts_from_the_first_packet_and_never_goes_back() {
        let mut round = Round::new(u64::MAX);
        let recorded = [5_000, 6_000, 5_500, 4_000, 9_000];
        let positions: Vec<_> = recorded
            .into_iter()
            .map(|ns| {
                let position = round.position(&meta(ns));
                round.pass(position, &meta(ns), 60);
                position.ns
            })
            .collect();
        assert_eq!(positions, [0, 1_000, 1_000, 1_000, 4_000]);
        assert_eq!(round.passed(), Position { ns: 4_000, packets: 5, bytes: 300 });
    }

    #[test]
    fn a_packet_without_a_time_follows_its_predecessor() {
        let mut round = Round::new(u64::MAX);
        let mut position = |meta: &Meta| {
            let position = round.position(meta);
            round.pass(position, meta, 60);
            position.ns
        };
        let timeless = Meta::default();
        let positions = [timeless, meta(700), timeless, meta(900)].map(|meta| position(&meta));
        assert_eq!(positions, [0, 0, 0, 200]);
    }

    #[test]
    fn the_next_round_comes_after_the_mean_gap() {
        let round = |ns, packets| Position { ns, packets, bytes: packets * 60 };
        let first = Position::default();
        assert_eq!(first.after_round(round(900, 10), u64::MAX), round(1_000, 10));
        assert_eq!(round(1_000, 10).after_round(round(900, 10), u64::MAX), round(2_000, 20));
        assert_eq!(first.after_round(round(0, 1), 5).ns, 5, "the longest gap");
        for (why, ns, packets, next) in [
            ("one packet", 0, 1, 1_000_000_000),
            ("all at one time", 0, 7, 1_000_000_000),
            ("a gap below a nanosecond", 3, 10, 4),
        ] {
            assert_eq!(first.after_round(round(ns, packets), u64::MAX).ns, next, "{why}");
        }
    }
}
