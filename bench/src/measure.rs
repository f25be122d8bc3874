//! One turn of one step: the order in which programs start, and the time over which packets are counted.

use std::slice;
use std::time::{Duration, Instant};

use sluicegate::link::netns::run_in;
use sluicegate::xdp::live;
use sluicegate::xdp::resident::Resident;

use crate::cpu_distance;
use crate::measurement::{Figures, Measurement, Spread};
use crate::observer::{BenchObserver, Failure};
use crate::process::{Count, LabHost, Program, Running};
use crate::profile::{Participants, Profiler, Recorded};
use crate::step::{Counter, Destination, Method, Pipe, Reception, Step};
use crate::testbed::{NOBODY, Testbed};

/// The longest wait for the first packet, and for each later rate.
const PACKETS_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two checks for them.
const INTERVAL: Duration = Duration::from_millis(20);
/// A number of packets that proves traffic: a host with a new interface sends fewer on its own.
const TRAFFIC: u64 = 1000;
/// Time until a sender has its full rate, and for its last packets to arrive.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Time for the last packets to be counted after the sender has ended.
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// The conditions of a turn.
#[derive(Clone, Copy)]
pub struct TurnContext<'a> {
    /// The two interfaces, and the CPUs of both sides.
    pub testbed: &'a Testbed,
    /// How long packets are sent.
    pub time: Duration,
    /// Sample the causes of CPU time.
    pub causes: bool,
    /// The longest round trip of a cache line between CPUs that are near each other.
    pub near: Duration,
    /// Observer that can stop the turn.
    pub watch: &'a dyn BenchObserver,
}

impl TurnContext<'_> {
    /// Runs a step once.
    ///
    /// # Errors
    /// The step could not be run, or the observer stopped it. Its changes are undone.
    pub fn measure(self, step: &Step) -> Result<Measurement, Failure> {
        let _prepared = Prepared::new(self.testbed, step)?;
        match &step.method {
            Method::Receive(reception) => self.receive(step, reception),
            Method::Send(program) => self.send(program),
            Method::Pipe(pipe) => self.pipe(pipe),
        }
    }

    /// Sends packets to the right end as fast as possible.
    fn receive(self, step: &Step, reception: &Reception) -> Result<Measurement, Failure> {
        let Self { testbed, time, watch, .. } = self;
        let counts_in_xdp = matches!(reception.counter, Some(Counter::Xdp));
        let counter = counts_in_xdp.then(|| self.count_in_xdp()).transpose()?;
        let start = |program: &Program| testbed.start_ready(program, watch);
        let mut program = reception.program.as_ref().map(start).transpose()?;
        let before = self.arrived(reception.counter.as_ref())?;
        let window = Window::begin(Profiler::start(self.causes)?, program.as_slice());
        let mut sender = testbed.start(&self.sender(step, reception.to)?)?;
        sender.over(time, watch)?;
        let (_, cpu_ns) = window.so_far(program.as_slice());
        let recorded = window.profiler.stop()?;
        watch.pause(DRAIN_TIME)?;
        // The counts of a program that has exited do not give a rate.
        program.as_mut().map_or(Ok(()), Running::still_runs)?;

        let said = sender.output();
        let complaint = || Failure::of(format!("the sender: {}", sender.complaint()));
        let seconds = said.number("/elapsed_s").ok_or_else(complaint)?;
        // Packets that the interface did not accept could not be received.
        let accepted = Count::At("/accepted").of(&said);
        let sent = accepted.or_else(|| Count::SENT.of(&said)).ok_or_else(complaint)?;
        let measured = program.iter().map(Running::pid).collect();
        let participants = Participants { measured, sender: vec![sender.pid()] };
        let after = self.arrived(reception.counter.as_ref())?;
        let said = program.map(Running::end).transpose()?;
        let arrived = match (before, after, &reception.program, said) {
            (Some(before), Some(after), ..) => after.saturating_sub(before),
            (_, _, Some(program), Some(said)) => {
                program.count.and_then(|count| count.of(&said)).ok_or_else(|| {
                    let last = said.err.lines().chain(said.out.lines()).last().unwrap_or("nothing");
                    let name = &program.name;
                    Failure::of(format!("{name} did not say how many packets it got: {last}"))
                })?
            }
            _ => return Err(Failure::of("nothing counts the packets that arrive")),
        };
        drop(counter);
        let time = Duration::from_secs_f64(seconds);
        let figures = Figures {
            mpps: mpps(arrived, time),
            offered_mpps: Some(mpps(sent, time)),
            lost: Some(lost(sent, arrived)),
            cpu_ns: reception.program.as_ref().map(|_| per_packet(cpu_ns, arrived)),
        };
        Ok(measurement(&recorded, &participants, sent, figures))
    }

    /// Returns the fastest sender, with a CPU for each queue.
    fn sender(self, step: &Step, to: Destination) -> Result<Program, Failure> {
        let Self { testbed, time, .. } = self;
        let dmac = match (to, &testbed.middle) {
            (Destination::Nobody, _) => NOBODY.to_owned(),
            (Destination::Router, Some([from, _])) => from.mac()?.to_string(),
            _ => testbed.right.mac()?.to_string(),
        };
        let method = if step.setting.size > live::MAX_BYTES { "sendmmsg" } else { "auto" };
        let cpus = testbed.cpus.senders(step.setting.queues);
        let program = testbed.sender(cpus, step.setting.size, &dmac);
        let set = |program: Program, (flag, value): &(&str, &str)| program.set(flag, value);
        let program = step.sender_flags.iter().fold(program, set);
        Ok(program.and(["--method", method, "--duration", &time.as_secs_f64().to_string()]))
    }

    /// Starts the counter at the right.
    fn count_in_xdp(self) -> Result<Running, Failure> {
        self.testbed.start_ready(&self.testbed.counter(), self.watch)
    }

    /// Reads a counter of arrived packets.
    fn arrived(self, counter: Option<&Counter>) -> Result<Option<u64>, Failure> {
        let program = match counter {
            None => return Ok(None),
            Some(Counter::Xdp) => return self.seen_in_xdp().map(Some),
            Some(Counter::Program(program)) => program,
        };
        let said = self.testbed.run(program)?;
        let count = program.count.and_then(|count| count.read(&said));
        let none = || Failure::of(format!("{}: no count in its output", program.shown()));
        count.ok_or_else(none).map(Some)
    }

    /// Returns the packets that have reached the XDP program at the right end's interface.
    fn seen_in_xdp(self) -> Result<u64, Failure> {
        let side = &self.testbed.right;
        let interface = side.read()?;
        let total = run_in(side.netns.as_deref(), || {
            Ok(Resident::find(&interface)?.map(|resident| resident.total().packets))
        })?;
        let removed = || format!("the XDP program on {} was removed", side.interface);
        total.ok_or_else(|| Failure::of(removed()))
    }

    /// Counts the packets that the program sends, at the right end.
    fn send(self, program: &Program) -> Result<Measurement, Failure> {
        let Self { testbed, time, watch, .. } = self;
        let counter = self.count_in_xdp()?;
        let at_first = self.seen_in_xdp()?;
        let mut sender = testbed.start_ready(program, watch)?;
        let deadline = Instant::now() + PACKETS_TIMEOUT;
        while self.seen_in_xdp()? < at_first + TRAFFIC {
            sender.still_runs()?;
            if Instant::now() > deadline {
                return Err(Failure::of(format!("no packets arrive: {}", sender.complaint())));
            }
            watch.pause(INTERVAL)?;
        }
        watch.pause(SETTLE_TIME)?;

        let programs = slice::from_ref(&sender);
        let window = Window::begin(Profiler::start(self.causes)?, programs);
        let before = self.seen_in_xdp()?;
        watch.pause(time)?;
        let (elapsed, cpu_ns) = window.so_far(programs);
        let packets = self.seen_in_xdp()?.saturating_sub(before);
        let recorded = window.profiler.stop()?;
        let participants = Participants { measured: vec![sender.pid()], ..Participants::default() };
        sender.still_runs()?;

        let said = sender.end()?;
        watch.pause(SETTLE_TIME)?;
        let all = self.seen_in_xdp()?.saturating_sub(at_first);
        counter.end()?;
        let sent = program.count.and_then(|count| count.of(&said));
        let figures = Figures {
            mpps: mpps(packets, elapsed),
            offered_mpps: None,
            lost: sent.map(|sent| lost(sent, all)),
            cpu_ns: Some(per_packet(cpu_ns, packets)),
        };
        Ok(measurement(&recorded, &participants, packets, figures))
    }

    /// Reads the rates that the receiver of a pipe reports. The programs are killed afterwards: one that loses
    /// its peer may report any error.
    fn pipe(self, pipe: &Pipe) -> Result<Measurement, Failure> {
        let start = |program: &Program| match program.host == pipe.first {
            true => self.testbed.start_ready(program, self.watch),
            false => Ok(self.testbed.start(program)?),
        };
        let mut programs = pipe.programs().into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let receiver = usize::from(pipe.sender.is_some() && pipe.first != LabHost::Right);
        let apart = || pipe.sender.as_ref().and_then(|_| cpu_distance::apart(&self.testbed.cpus));

        // The intervals of the first packets and of the profiler's start are excluded.
        self.rates(&mut programs, receiver, pipe, 1)?;
        let checks = cpu_distance::checks(self.time);
        let apart_before = cpu_distance::wait_until(self.near, checks, self.watch, apart)?;
        let profiler = Profiler::start(self.causes)?;
        let first = self.rates(&mut programs, receiver, pipe, 1)?.len() + 1;
        let first = self.rates(&mut programs, receiver, pipe, first)?.len();
        let window = Window::begin(profiler, &programs);
        self.watch.pause(self.time)?;
        let rates = self.rates(&mut programs, receiver, pipe, first + 1)?;
        let (elapsed, cpu_ns) = window.so_far(&programs);
        let recorded = window.profiler.stop()?;
        let apart_ns = apart_before.max(apart()).map(|apart| apart.as_nanos() as u64);
        let pps = Spread::of(rates[first..].iter().map(|&pps| pps as f64));
        let pps = pps.map_or(0.0, |rates| rates.median);
        let packets = (pps * elapsed.as_secs_f64()) as u64;
        let cpu_ns = Some(per_packet(cpu_ns, packets));
        let figures = Figures { mpps: pps / 1e6, cpu_ns, ..Figures::default() };
        let measured = programs.iter().map(Running::pid).collect();
        let participants = Participants { measured, ..Participants::default() };
        Ok(Measurement { apart_ns, ..measurement(&recorded, &participants, packets, figures) })
    }

    /// Waits until the receiver has reported at least `n` rates above zero, and returns all of them.
    fn rates(
        self,
        programs: &mut [Running],
        receiver: usize,
        pipe: &Pipe,
        n: usize,
    ) -> Result<Vec<u64>, Failure> {
        let deadline = Instant::now() + PACKETS_TIMEOUT;
        loop {
            let said = programs[receiver].output();
            let rates = pipe.receiver.count.map_or_else(Vec::new, |count| count.all(&said));
            let rates: Vec<u64> = rates.into_iter().skip_while(|&pps| pps == 0).collect();
            if rates.len() >= n {
                return Ok(rates);
            }
            programs.iter_mut().try_for_each(Running::still_runs)?;
            if Instant::now() > deadline {
                let complaint = programs[receiver].complaint();
                return Err(Failure::of(format!("no packets arrive: {complaint}")));
            }
            self.watch.pause(INTERVAL)?;
        }
    }
}

/// The time over which CPUs are measured. The profiler starts before it and stops after it, which takes long.
struct Window {
    profiler: Profiler,
    from: Instant,
    cpu_before: u64,
}

impl Window {
    fn begin(profiler: Profiler, programs: &[Running]) -> Self {
        Self { profiler, from: Instant::now(), cpu_before: cpu_ns(programs) }
    }

    /// The time since it began, and the CPU time of the programs in ns.
    fn so_far(&self, programs: &[Running]) -> (Duration, u64) {
        (self.from.elapsed(), cpu_ns(programs).saturating_sub(self.cpu_before))
    }
}

fn cpu_ns(programs: &[Running]) -> u64 {
    programs.iter().map(Running::cpu_ns).sum()
}

/// The changes of a step, undone on drop.
pub struct Prepared<'a> {
    testbed: &'a Testbed,
    step: &'a Step,
}

impl<'a> Prepared<'a> {
    /// Runs the preparing commands of a step.
    ///
    /// # Errors
    /// One of them fails; the others are undone.
    pub fn new(testbed: &'a Testbed, step: &'a Step) -> Result<Self, Failure> {
        let prepared = Self { testbed, step };
        step.prepare.iter().try_for_each(|program| testbed.run(program).map(drop))?;
        Ok(prepared)
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        for program in &self.step.tidy {
            // A remaining change makes the preparation of the next step fail, which reports it. Also, the
            // testbed is removed in the end.
            let _ = self.testbed.run(program);
        }
    }
}

/// The figures of a turn of `packets` packets, with the work of the CPUs.
fn measurement(
    recorded: &Recorded,
    participants: &Participants,
    packets: u64,
    figures: Figures<f64>,
) -> Measurement {
    let explanation = recorded.explain(participants, packets, figures.lost.unwrap_or(0.0));
    Measurement { figures, explanation, apart_ns: None }
}

fn per_packet(ns: u64, packets: u64) -> f64 {
    ns as f64 / packets.max(1) as f64
}

/// Returns a rate in millions of packets per second.
fn mpps(packets: u64, time: Duration) -> f64 {
    packets as f64 / time.as_nanos().max(1) as f64 * 1e3
}

/// The share of `sent` that did not arrive, from 0 to 1. A host may send packets of its own; if more arrive
/// than were sent, nothing counts as lost.
fn lost(sent: u64, arrived: u64) -> f64 {
    sent.saturating_sub(arrived) as f64 / sent.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_was_sent_is_no_loss() {
        assert_eq!(lost(100, 75), 0.25);
        assert_eq!(lost(100, 101), 0.0);
        assert_eq!(lost(0, 0), 0.0);
    }
}
