//! From one program to another: the receiver tells its rate now and then.

use std::time::{Duration, Instant};

use super::{Load, TurnContext};
use crate::cpu_distance::{self, apart_ns};
use crate::failure::Failure;
use crate::measurement::{Figures, Measurement};
use crate::process::Running;
use crate::profile::Participants;
use crate::statistics::Spread;
use crate::step::{Job, Pipe};
use crate::testbed::End;

/// The longest that a rate is waited for: that of the first packets, and each later one.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is looked whether there is one.
const LOOK: Duration = Duration::from_millis(20);

impl TurnContext<'_> {
    /// Runs a step once.
    pub fn pipe(self, pipe: &Pipe) -> Result<Measurement, Failure> {
        let mut ends = Ends::start(self, pipe)?;
        // Of the interval in which packets begin to come nothing is to be learned, nor of the one in
        // which the measurement begins.
        ends.tells(self, 1)?;
        let apart_before = ends.come_near(self)?;
        let load = Load::begin(&self.testbed.right, self.conditions)?;
        let (from, cpu_before, told) = (Instant::now(), ends.cpu_ns(), ends.rates().len());
        self.watch.pause(self.conditions.time)?;
        let rates = ends.tells(self, told + 2)?;
        let (time, cpu_ns) = (from.elapsed(), ends.cpu_ns().saturating_sub(cpu_before));
        let loaded = load.end()?;
        let apart_ns = apart_before.max(ends.apart_ns(self));
        let whole = rates[told + 1..].iter().map(|&pps| pps as f64);
        let pps = Spread::of(whole).map_or(0.0, |rates| rates.median);
        let packets = pps * time.as_secs_f64();
        let figures = Figures {
            mpps: pps / 1e6,
            cpu_ns: Some(cpu_ns as f64 / packets.max(1.0)),
            ..Figures::default()
        };
        let participants = Participants { measured: Some(ends.pids()), ..Participants::default() };
        Ok(Measurement { apart_ns, ..loaded.explain(&participants, packets as u64, figures) })
    }
}

/// Programs at both ends. The bench kills them: one that loses its peer may report any error.
struct Ends<'a> {
    sender: Option<Running>,
    receiver: Running,
    pipe: &'a Pipe,
}

impl<'a> Ends<'a> {
    fn start(run: TurnContext<'_>, pipe: &'a Pipe) -> Result<Self, Failure> {
        let start = |end: End, job: &Job| -> Result<Running, Failure> {
            let mut running = job.program.start(run.testbed, end, job.cpu)?;
            if end == pipe.first {
                running.until(&job.ready, run.watch)?;
            }
            Ok(running)
        };
        let sender = || pipe.sender.as_ref().map(|job| start(End::Left, job)).transpose();
        let (sender, receiver) = match pipe.first {
            End::Left => {
                let sender = sender()?;
                (sender, start(End::Right, &pipe.receiver)?)
            }
            _ => {
                let receiver = start(End::Right, &pipe.receiver)?;
                (sender()?, receiver)
            }
        };
        Ok(Self { sender, receiver, pipe })
    }

    fn all(&self) -> impl Iterator<Item = &Running> {
        self.sender.iter().chain([&self.receiver])
    }

    fn pids(&self) -> Vec<u32> {
        self.all().map(Running::pid).collect()
    }

    fn cpu_ns(&self) -> u64 {
        self.all().map(Running::cpu_ns).sum()
    }

    /// Waits until their CPUs are near each other, or for long enough: how far they lie apart then.
    fn come_near(&self, run: TurnContext<'_>) -> Result<Option<u64>, Failure> {
        let near = |ns| Duration::from_nanos(ns) <= run.conditions.near;
        let mut apart = self.apart_ns(run);
        for _ in 1..cpu_distance::looks(run.conditions.time) {
            if apart.is_none_or(near) {
                break;
            }
            run.watch.pause(cpu_distance::PAUSE)?;
            apart = self.apart_ns(run);
        }
        Ok(apart)
    }

    /// How far their CPUs lie apart now, where there are two.
    fn apart_ns(&self, run: TurnContext<'_>) -> Option<u64> {
        self.sender.as_ref().and_then(|_| apart_ns(&run.conditions.cpus))
    }

    /// The rates that the receiver has told since packets came, in packets a second.
    fn rates(&self) -> Vec<u64> {
        let rates = self.pipe.receiver.count.map(|count| count.all(&self.receiver.said()));
        rates.unwrap_or_default().into_iter().skip_while(|&pps| pps == 0).collect()
    }

    /// Waits until the receiver has reported `rates` rates.
    fn tells(&mut self, run: TurnContext<'_>, rates: usize) -> Result<Vec<u64>, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let told = self.rates();
            if told.len() >= rates {
                return Ok(told);
            }
            for end in self.sender.iter_mut().chain([&mut self.receiver]) {
                end.still_runs()?;
            }
            if Instant::now() > deadline {
                let said = self.receiver.complaint();
                return Err(Failure::of(format!("packets do not come: {said}")));
            }
            run.watch.pause(LOOK)?;
        }
    }
}
