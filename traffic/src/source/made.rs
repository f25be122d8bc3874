//! Packets made to a plan.

use std::sync::Arc;

use sluicegate::error::Result;
use sluicegate::ring::RingMut;

use super::fill::Filler;
use super::{Filled, LeftOut, Source, rest_until};
use crate::plan::{Frames, Plan};
use crate::rate::{Dial, Gaps, Timetable};

/// A worker's packets of a plan, endlessly many or some.
#[derive(Debug)]
pub struct Made {
    filler: Filler,
    left: Option<u64>,
    timetable: Option<Timetable>,
}

impl Made {
    /// The packets of worker `worker` of `workers`: `packets`, or endlessly many; at the pace that
    /// all workers keep together, if there is one. `time_ns` is asked where a packet is to carry the time.
    pub fn new(
        plan: &Arc<Plan>,
        (worker, workers): (u32, u32),
        packets: Option<u64>,
        pace: Option<Dial>,
        time_ns: fn() -> u64,
    ) -> Self {
        let frames = Frames::new(Arc::clone(plan), worker, workers, time_ns);
        let timetable = pace.map(|dial| Timetable::of(dial, (worker, workers)));
        Self { filler: Filler::new(frames, plan.longest()), left: packets, timetable }
    }
}

impl Source for Made {
    #[inline]
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        let mut most = self.left.map_or(most, |left| left.min(most.into()) as u32);
        if let Some(timetable) = &mut self.timetable {
            most = timetable.due(now_ns, most);
        }
        let left_out = self.filler.too_long();
        let filled = self.filler.fill(ring, most);
        // What is left out had its turn, too.
        let left_out = (self.filler.too_long() - left_out) as u32;
        if let Some(timetable) = &mut self.timetable {
            timetable.sent(filled.packets + left_out);
        }
        self.left = self.left.map(|left| left.saturating_sub((filled.packets + left_out).into()));
        Ok(filled)
    }

    fn rest(&mut self, now_ns: u64) -> Result<()> {
        // Without a timetable the ring has no room: some may come at any time.
        rest_until(self.timetable.as_ref().and_then(Timetable::next_ns).unwrap_or(0), now_ns);
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.left == Some(0)
    }

    fn lateness(&self) -> Gaps {
        self.timetable.as_ref().map(Timetable::gaps).cloned().unwrap_or_default()
    }

    fn left_out(&self) -> LeftOut {
        LeftOut { too_long: self.filler.too_long(), ..LeftOut::default() }
    }

    fn restarts(&self) -> u64 {
        self.timetable.as_ref().map_or(0, Timetable::restarts)
    }
}
