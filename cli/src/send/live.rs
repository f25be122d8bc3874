//! Sending live frames: a worker each with a program of its own.

use sluicegate::error::Result;
use sluicegate::link::netns;
use sluicegate_traffic::live::{Live, Sending};
use sluicegate_traffic::rate::{Gaps, Pace};
use sluicegate_traffic::source::LeftOut;

use super::run::{Done, Orders};

/// What sends live frames.
#[derive(Debug)]
pub struct LiveSender {
    netns: Option<String>,
    ready: Vec<Live>,
    sending: Vec<Sending>,
}

impl LiveSender {
    /// Of these programs, a worker each.
    pub fn new(ready: Vec<Live>, netns: Option<&str>) -> Self {
        Self { netns: netns.map(str::to_owned), ready, sending: Vec::new() }
    }

    /// Begins to send.
    pub fn start(&mut self, orders: &Orders) -> Result<()> {
        let ready = std::mem::take(&mut self.ready);
        let workers = ready.len();
        let sending = netns::within(self.netns.as_deref(), move || {
            let start = |(index, live): (usize, Live)| {
                live.start(orders.share(index, workers), orders.cpu(index))
            };
            ready.into_iter().enumerate().map(start).collect::<Result<Vec<_>>>()
        })?;
        self.sending = sending;
        Ok(())
    }

    /// Another pace of all workers together, from now on.
    pub fn set_pace(&self, pace: Pace) {
        self.sending.iter().for_each(|sending| sending.set_pace(pace));
    }

    /// Packets and bytes of each worker so far.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.sending.iter().map(Sending::counters);
        counts.map(|counters| (counters.packets, counters.bytes)).collect()
    }

    /// Whether all workers have sent what they should, or one cannot go on.
    pub fn is_finished(&self) -> bool {
        let all = self.sending.iter().all(Sending::is_finished);
        all || self.sending.iter().any(Sending::has_failed)
    }

    /// Ends all workers. The first failure of one is the answer.
    pub fn end(&mut self) -> Result<()> {
        // All are told before one is waited for: on few CPUs each takes its time.
        self.sending.iter().for_each(Sending::tell);
        let ends: Vec<_> = self.sending.iter_mut().map(Sending::end).collect();
        ends.into_iter().collect()
    }

    /// What each worker did.
    pub fn done(&self) -> Vec<Done> {
        self.sending
            .iter()
            .map(|sending| {
                let counters = sending.counters();
                Done {
                    packets: counters.packets + counters.refused,
                    bytes: counters.bytes,
                    accepted: counters.packets,
                    unsent: 0,
                    left_out: LeftOut::default(),
                    restarts: counters.restarts,
                    // A run of the kernel's never sleeps.
                    busy: 1.0,
                }
            })
            .collect()
    }

    /// How late packets were.
    pub fn gaps(&self) -> Gaps {
        self.sending.iter().fold(Gaps::default(), |mut all, sending| {
            all.merge(&sending.gaps());
            all
        })
    }
}
