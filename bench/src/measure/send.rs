//! Sending: what comes to the right end is counted there in XDP, whoever sends it and whatever it
//! says.

use std::time::{Duration, Instant};

use super::{Load, Run, lost, mpps, seen_in_xdp};
use crate::failure::Failure;
use crate::measurement::{Figures, Measurement};
use crate::process::Running;
use crate::profile::Who;
use crate::step::Job;
use crate::testbed::End;

/// The longest that the first packets are waited for.
const FIRST: Duration = Duration::from_secs(20);
/// So many: a host sends a few by itself when its interface is new.
const FEW: u64 = 1000;
/// From then on, until the sender has found its pace.
const SETTLE: Duration = Duration::from_millis(300);

impl Run<'_> {
    /// Runs a step once.
    pub fn send(self, job: &Job) -> Result<Measurement, Failure> {
        let Self { testbed, conditions, watch } = self;
        let counter = self.count_in_xdp()?;
        let at_first = seen_in_xdp(testbed)?;
        let mut sender = job.program.start(testbed, End::Left, job.cpu)?;
        sender.until(&job.ready, watch)?;
        self.first_packets(&mut sender, at_first)?;
        watch.pause(SETTLE)?;

        let (from, before) = (Instant::now(), seen_in_xdp(testbed)?);
        let (load, cpu_before) = (Load::begin(&testbed.right, conditions)?, sender.cpu_ns());
        watch.pause(conditions.time)?;
        let (time, after) = (from.elapsed(), seen_in_xdp(testbed)?);
        let cpu_ns = sender.cpu_ns().saturating_sub(cpu_before);
        let packets = after.saturating_sub(before);
        let loaded = load.end()?;
        let who = Who { measured: Some(vec![sender.pid()]), ..Who::default() };
        sender.still_runs()?;

        let said = sender.end()?;
        // What is under way arrives.
        watch.pause(SETTLE)?;
        let whole = seen_in_xdp(testbed)?.saturating_sub(at_first);
        counter.end()?;
        let figures = Figures {
            mpps: mpps(packets, time),
            offered_mpps: None,
            lost: job.count.and_then(|count| count.of(&said)).map(|sent| lost(sent, whole)),
            cpu_ns: Some(cpu_ns as f64 / packets.max(1) as f64),
        };
        Ok(loaded.explain(&who, packets, figures))
    }

    /// Waits until the sender's packets come.
    fn first_packets(self, sender: &mut Running, before: u64) -> Result<(), Failure> {
        let deadline = Instant::now() + FIRST;
        while seen_in_xdp(self.testbed)? < before + FEW {
            sender.still_runs()?;
            if Instant::now() > deadline {
                return Err(Failure::of(format!(
                    "its packets do not come: {}",
                    sender.complaint()
                )));
            }
            self.watch.pause(Duration::from_millis(20))?;
        }
        Ok(())
    }
}
