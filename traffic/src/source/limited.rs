//! The packets of a plan whose streams end: a stream with a count leaves the mix after it.

use sluicegate::error::Result;
use sluicegate::ring::RingMut;

use super::{Filled, PacketSource, PlanSource, SkippedPackets};
use crate::plan::{Plan, StreamTotals};
use crate::rate::Gaps;

/// The packets that the streams of a worker still have.
#[derive(Clone, Debug)]
pub(crate) struct StreamLimits {
    /// Packets left of each stream; of a stream without a count more than any run sends.
    left: Vec<u64>,
    /// Streams that still have packets.
    open: usize,
    /// For each turn of the plan, the turns from it to the next of a stream that has packets.
    to_open: Vec<u32>,
}

impl StreamLimits {
    /// Creates the limits of worker `worker` of `workers`; `None` if no stream of the plan has a count.
    pub(crate) fn of(plan: &Plan, (worker, workers): (u32, u32)) -> Option<Self> {
        plan.streams.iter().find(|stream| stream.count.is_some())?;
        let left = plan.streams.iter().map(|stream| stream.count_of((worker, workers)));
        let left: Vec<u64> = left.map(|count| count.unwrap_or(u64::MAX)).collect();
        let open = left.iter().filter(|left| **left > 0).count();
        let mut limits = Self { left, open, to_open: vec![0; plan.turns.len()] };
        limits.find_open(&plan.turns);
        Some(limits)
    }

    /// Finds the turns of streams that have packets; once per stream that ends, because a search in each turn
    /// could take as long as all turns.
    fn find_open(&mut self, turns: &[u16]) {
        let mut distance = 0;
        // The turns repeat: what follows the last is known after the first round.
        for at in (0..turns.len()).rev().chain((0..turns.len()).rev()) {
            distance = if self.left[usize::from(turns[at])] > 0 { 0 } else { distance + 1 };
            self.to_open[at] = distance;
        }
    }

    /// Reports whether no stream has packets.
    pub(crate) fn is_over(&self) -> bool {
        self.open == 0
    }

    /// Returns the number of turns from this one to the next of a stream that has packets.
    pub(crate) fn turns_to_open(&self, turn: usize) -> u32 {
        self.to_open[turn]
    }

    /// Counts a packet of a stream that has some.
    pub(crate) fn take(&mut self, stream: usize, turns: &[u16]) {
        self.left[stream] -= 1;
        if self.left[stream] == 0 {
            self.open -= 1;
            self.find_open(turns);
        }
    }
}

/// A worker's packets of a plan with streams that have a count.
#[derive(Debug)]
pub(super) struct LimitedSource {
    source: PlanSource,
    limits: StreamLimits,
    /// The turns of a stream without packets pass, instead of going to the next stream.
    pauses: bool,
}

impl LimitedSource {
    pub(super) fn new(source: PlanSource, limits: StreamLimits, pauses: bool) -> Self {
        Self { source, limits, pauses }
    }

    /// Writes up to `most` packets into the ring, less the turns that pass without a packet. Returns the
    /// packets written, and the turns used up by others.
    fn build(&mut self, ring: &mut RingMut<'_>, most: u32) -> (Filled, u32) {
        let Self { source, limits, pauses } = self;
        let (mut filled, mut others) = (Filled::default(), 0);
        while filled.packets + others < most && !limits.is_over() {
            if source.waiting == 0 {
                let mut closed = limits.turns_to_open(source.frames.turn());
                if *pauses {
                    closed = closed.min(most - filled.packets - others);
                    others += closed;
                }
                source.frames.skip(closed);
                if *pauses && closed > 0 {
                    continue;
                }
            }
            let too_long = source.too_long;
            // Not by `build`: with a second caller it would no longer be inlined in the first, where it is hot.
            match source.split(ring) {
                Some(bytes) => {
                    filled.packets += 1;
                    filled.bytes += bytes as u64;
                }
                None if source.too_long > too_long => others += 1,
                None => break,
            }
            limits.take(source.frames.last_stream(), source.frames.turns());
        }
        (filled, others)
    }
}

impl PacketSource for LimitedSource {
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        let mut most = self.source.left.map_or(most, |left| left.min(most.into()) as u32);
        if let Some(timetable) = &mut self.source.timetable {
            most = timetable.due(now_ns, most);
        }
        let too_long = self.source.too_long;
        let (filled, others) = self.build(ring, most);
        if let Some(timetable) = &mut self.source.timetable {
            timetable.sent(filled.packets + others);
        }
        let packets = u64::from(filled.packets) + (self.source.too_long - too_long);
        self.source.left = self.source.left.map(|left| left.saturating_sub(packets));
        Ok(filled)
    }

    fn rest(&mut self, now_ns: u64) -> Result<()> {
        self.source.rest(now_ns)
    }

    fn is_finished(&self) -> bool {
        self.source.is_finished() || self.limits.is_over()
    }

    fn lateness(&self) -> Gaps {
        self.source.lateness()
    }

    fn skipped(&self) -> SkippedPackets {
        self.source.skipped()
    }

    fn restarts(&self) -> u64 {
        self.source.restarts()
    }

    fn streams(&self) -> Vec<StreamTotals> {
        self.source.streams()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluicegate::port::{Directions, OpenOptions, Port};

    use super::super::of_plan;
    use crate::rate::{Dial, Pace};
    use crate::spec::{Defaults, Spec};

    /// Sends by a clock that advances 1 ms for each turn. Returns the stream of each turn's packet; a dot
    /// is a turn without one.
    fn sent(settings: [&str; 2], worker: (u32, u32), packets: Option<u64>) -> String {
        let stream = |setting| format!("[[stream]]\n{setting}\nsize = 60\nlayers = ['ether']\n");
        let spec = Spec::parse(&settings.map(stream).concat()).unwrap();
        let plan = Arc::new(spec.plan(&Defaults::default()).unwrap());
        let options = OpenOptions { usage: Directions::Send, ..OpenOptions::default() };
        let mut queue = Port::open(&"null:".parse().unwrap(), &options).unwrap().queues.remove(0);
        let pps = 1000.0 * f64::from(worker.1);
        let mut source =
            of_plan(&plan, worker, packets, Some(Dial::new(Pace { pps, burst: 1 })), || 0);
        let (mut order, mut before) = (String::new(), source.streams());
        for turn in 0..30 {
            if source.is_finished() {
                break;
            }
            let filled = source.fill(&mut queue.tx_mut(), 64, 1 + turn * 1_000_000).unwrap();
            queue.sync_tx().unwrap();
            let now = source.streams();
            let new = now.iter().zip(&before).position(|(now, old)| now.packets > old.packets);
            order.push(new.map_or('.', |stream| if stream == 0 { 'a' } else { 'b' }));
            assert_eq!(filled.packets, u32::from(new.is_some()), "{order}");
            before = now;
        }
        order
    }

    #[test]
    fn a_stream_leaves_after_its_count_and_another_takes_its_turns_unless_it_has_a_rate() {
        for (sentence, settings, packets, expected) in [
            ("by weight", ["count = 2", "count = 4"], None, "ababbb"),
            ("the weight of the other", ["weight = 2\ncount = 3", "count = 3"], None, "abaabb"),
            ("by rate", ["rate = 500\ncount = 2", "rate = 500\ncount = 4"], None, "abab.b.b"),
            ("an endless stream", ["count = 1", ""], Some(5), "abbbb"),
            ("the run's own count", ["count = 9", "count = 9"], Some(3), "aba"),
        ] {
            assert_eq!(sent(settings, (0, 1), packets), expected, "{sentence}");
        }
        assert_eq!(sent(["count = 2", ""], (0, 1), None), format!("abab{}", "b".repeat(26)));
    }

    #[test]
    fn workers_share_the_count_of_a_stream() {
        let counts = [0, 1, 2].map(|worker| sent(["count = 4", "count = 2"], (worker, 3), None));
        let all = |stream| counts.iter().map(|order| order.matches(stream).count()).sum::<usize>();
        assert_eq!((all('a'), all('b')), (4, 2), "{counts:?}");
        assert!(counts.iter().all(|order| order.matches('a').count() < 3), "{counts:?}");
    }
    #[test]
    fn the_largest_counts_of_streams_are_an_endless_run() {
        let stream = format!("[[stream]]\ncount = {}\nlayers = ['ether']\n", i64::MAX);
        let plan = Spec::parse(&stream.repeat(3)).unwrap().plan(&Defaults::default()).unwrap();
        assert_eq!(plan.count_of((0, 1)), Some(u64::MAX));
    }
}
