//! Receiving and dropping: packets are sent to the right end as fast as they can be.

use std::time::Duration;

use sluicegate::xdp::live;

use super::{Conditions, Load, TurnContext, lost, mpps, seen_in_xdp};
use crate::failure::Failure;
use crate::measurement::{Figures, Measurement};
use crate::process::{Program, Running};
use crate::process_output::{Count, ProcessOutput};
use crate::profile::Participants;
use crate::step::{Intake, Setting, Step, Tally, To};
use crate::testbed::{End, Line, Testbed};
use crate::testbed::{NOBODY, from_left};

/// The time in which the last packets arrive after the sender has ended.
const DRAIN: Duration = Duration::from_millis(500);

impl TurnContext<'_> {
    /// Runs a step once.
    pub fn receive(self, step: &Step, intake: &Intake) -> Result<Measurement, Failure> {
        let Self { testbed, conditions, watch } = self;
        let counts_in_xdp = matches!(intake.tally, Some(Tally::InXdp));
        let counter = counts_in_xdp.then(|| self.count_in_xdp()).transpose()?;
        let mut job = None;
        if let Some(it) = &intake.job {
            let mut running = it.program.start(testbed, intake.at, it.cpu)?;
            running.until(&it.ready, watch)?;
            job = Some(running);
        }
        let before = asked(testbed, intake.tally.as_ref())?;
        let cpu_before = job.as_ref().map(Running::cpu_ns);
        let load = Load::begin(&testbed.right, conditions)?;
        let sender = sender(testbed, step.setting, intake.to, conditions)?;
        let sent = Sent::by(sender, self)?;
        let loaded = load.end()?;
        watch.pause(DRAIN)?;
        // What one that has ended got or passed on before is no rate.
        if let Some(job) = &mut job {
            job.still_runs()?;
        }

        let participants = Participants {
            measured: Some(job.iter().map(Running::pid).collect()),
            sender: vec![sent.pid],
            live_frames_send: true,
        };
        let spent = |(job, before): (&Running, u64)| job.cpu_ns().saturating_sub(before);
        let cpu_ns = job.as_ref().zip(cpu_before).map(spent);
        let after = asked(testbed, intake.tally.as_ref())?;
        let said = job.map(Running::end).transpose()?;
        let arrived = match (before, after) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => counted(intake, said.as_ref())?,
        };
        drop(counter);
        let figures = Figures {
            mpps: mpps(arrived, sent.time),
            offered_mpps: Some(mpps(sent.packets, sent.time)),
            lost: Some(lost(sent.packets, arrived)),
            cpu_ns: cpu_ns.map(|ns| ns as f64 / arrived.max(1) as f64),
        };
        Ok(loaded.explain(&participants, sent.packets, figures))
    }
}

/// The count that the job reports at its end.
fn counted(intake: &Intake, said: Option<&ProcessOutput>) -> Result<u64, Failure> {
    let (Some(job), Some(said)) = (&intake.job, said) else {
        return Err(Failure::of("nobody counts what arrives"));
    };
    job.count.and_then(|count| count.of(said)).ok_or_else(|| {
        let last = said.err.lines().chain(said.out.lines()).last().unwrap_or("nothing");
        Failure::of(format!("{} did not say how many packets it got: {last}", job.program.name))
    })
}

/// Reads a tally.
fn asked(testbed: &Testbed, tally: Option<&Tally>) -> Result<Option<u64>, Failure> {
    let (program, count) = match tally {
        None => return Ok(None),
        Some(Tally::InXdp) => return seen_in_xdp(testbed).map(Some),
        Some(Tally::Says(program, count)) => (program, count),
    };
    let said = ProcessOutput { out: program.run(testbed, End::Right)?, err: String::new() };
    let none = || Failure::of(format!("{}: no count in its output", program.shown()));
    count.of(&said).ok_or_else(none).map(Some)
}

/// The sender: the fastest there is, from a CPU for each queue, each packet from another source port.
fn sender(
    testbed: &Testbed,
    Setting { size, queues, .. }: Setting,
    to: To,
    conditions: &Conditions,
) -> Result<Program, Failure> {
    let to = match to {
        To::Nobody => NOBODY.to_owned(),
        To::Host => testbed.right.mac()?.to_string(),
        To::Router => {
            testbed.line.as_ref().map_or_else(|| testbed.right.mac(), Line::mac)?.to_string()
        }
    };
    let method = if size > live::MAX_BYTES { "sendmmsg" } else { "auto" };
    let seconds = conditions.time.as_secs_f64().to_string();
    let program = from_left(testbed, &conditions.cpus.senders(queues), size, &to);
    Ok(program.and(["--method", method, "--duration", &seconds]))
}

/// The sender's count and its time.
struct Sent {
    pid: u32,
    packets: u64,
    time: Duration,
}

impl Sent {
    fn by(program: Program, run: TurnContext<'_>) -> Result<Self, Failure> {
        let mut sender = program.start(run.testbed, End::Left, None)?;
        sender.over(run.conditions.time, run.watch)?;
        let said = sender.said();
        let complaint = || Failure::of(format!("the sender: {}", sender.complaint()));
        let seconds = said.number("/elapsed_s").ok_or_else(complaint)?;
        // What the interface did not take was not there to be received.
        let taken = Count::At("/accepted").of(&said);
        let packets = taken.or_else(|| Count::SENT.of(&said)).ok_or_else(complaint)?;
        Ok(Self { pid: sender.pid(), packets, time: Duration::from_secs_f64(seconds) })
    }
}
