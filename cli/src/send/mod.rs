//! The common part of commands that send.
//!
//! ```text
//!   source: made, or read from a file --> worker: a thread and a transmit ring --+
//!   plan --> program in the kernel: live frames ---------------------------------+--> the wire
//!   control: time, signals, status    report: attempted, accepted, sent
//!   steering: rate, file, keys, ramp --> dial, which workers read
//! ```

mod keys;
mod live;
mod receiver;
mod report;
mod ring;
mod steering;

use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sluicegate::error::Result;
use sluicegate::port::{Port, PortName, QueueStats};
use sluicegate::ring::Wait;
use sluicegate_traffic::plan::{Plan, StreamTotals};
use sluicegate_traffic::rate::{Gaps, Pace};
use sluicegate_traffic::source::{PacketSource, SkippedPackets};

use crate::args::Common;
use crate::counters::{Totals, WorkerCounters};
use crate::ports;
use crate::report::Report;
use crate::run::{Outcomes, RunControl, RunOptions, Work, WorkerThread, supervise};
use crate::signals::Signals;
use crate::status::{self, Status};
use crate::streams;
use crate::target::Carrier;
use keys::Keys;
use report::SendReport;
use ring::RingWorker;
use steering::TICK;

pub use live::LiveSender;
pub use receiver::Receiver;
pub use ring::monotonic_ns;
pub use steering::{Changes, Measure, Rate, Steering};

/// A sender of either kind.
pub enum Sender {
    /// Programs in the kernel.
    Live(LiveSender),
    /// Threads that fill a port's transmit rings, each from its own source.
    Ring { port: Port, sources: Vec<Box<dyn PacketSource>> },
}

impl Sender {
    /// Returns the number of threads that make packets.
    fn threads(&self) -> usize {
        match self {
            Self::Live(live) => live.threads(),
            Self::Ring { .. } => self.workers(),
        }
    }

    /// Returns the number of threads that send.
    fn workers(&self) -> usize {
        match self {
            Self::Live(_) => 1,
            Self::Ring { port, sources } => port.queues.len().min(sources.len()),
        }
    }
}

/// The counts of one thread that sends: of a ring, or of all live frames.
#[derive(Debug)]
pub struct SendCounts {
    pub workers: Vec<WorkerResult>,
    /// The packets' lateness against the timetable; empty without one.
    pub gaps: Gaps,
    /// The begin and end of sending, if known.
    pub span: Option<(Instant, Instant)>,
}

/// The counts of one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerResult {
    /// Packets made, including those that the target cannot send.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that the target cannot send.
    pub skipped: SkippedPackets,
    /// The packets of each stream, if there are streams.
    pub streams: Vec<StreamTotals>,
    /// The queue's own counts.
    pub stats: QueueStats,
    /// Times that it was too late to catch up with its timetable.
    pub restarts: u64,
    /// The share of time on a CPU.
    pub busy: f64,
}

/// The work of a thread that sends.
enum SendWork {
    Live(LiveSender),
    Ring(RingWorker),
}

/// The work is borrowed, so that queues stay open until the report is complete: closing one may delay other
/// workers and readers of the interface's counters.
impl Work for &mut SendWork {
    type Counts = SendCounts;

    fn name(&self) -> String {
        match self {
            SendWork::Live(_) => "live".into(),
            SendWork::Ring(worker) => worker.name(),
        }
    }

    fn cpu_number(&self, _index: usize) -> Option<usize> {
        match self {
            // `--cpus` names CPUs for the programs, each of which has a thread beside those of the run.
            SendWork::Live(_) => None,
            SendWork::Ring(worker) => Some(worker.cpu_number),
        }
    }

    fn run(self, thread: &mut WorkerThread<'_, SendCounts>) -> (SendCounts, Result<()>) {
        match self {
            SendWork::Live(live) => live.run(thread),
            SendWork::Ring(worker) => worker.run(thread),
        }
    }
}

/// A run that sends.
pub struct SendRun<'a> {
    pub command: &'static str,
    pub common: &'a Common,
    /// The rate of all targets together.
    pub steering: Option<Steering>,
    /// A source takes standard input, so there are no keys.
    pub stdin_is_taken: bool,
    /// The plan, if there are streams to report.
    pub plan: Option<Arc<Plan>>,
    /// The receiver of the packets, if this run has one.
    pub receiver: Option<Receiver>,
}

/// Runs a sender for each target, and publishes the report on them.
///
/// # Errors
/// The first failure.
pub fn send(run: SendRun<'_>, targets: Vec<(&PortName, Sender)>) -> anyhow::Result<()> {
    let SendRun { command, common, mut steering, stdin_is_taken, plan, mut receiver } = run;
    let mut reports = Vec::new();
    let (mut workers, mut threads) = (0, 0);
    for (port, sender) in &targets {
        let first = workers;
        workers += sender.workers();
        let report = SendReport::of(command, port, common, sender, first..workers, threads);
        reports.push(report.with_streams(plan.clone()));
        threads += sender.threads();
    }
    if receiver.is_some() {
        receiver::check_workers(threads)?;
    }
    let carrier = |(port, _): &(&PortName, _)| Carrier::of(port, common.netns.as_deref());
    let carriers = targets.iter().filter_map(carrier).collect();
    // Standard output may be the target of packets; then the report goes to stderr.
    let stdout_is_taken = targets.iter().any(|(port, _)| ports::is_standard_output(port));
    common.become_user()?;
    let signals = Signals::catch()?;
    // Opened before threads start, because they inherit the blocked SIGTSTP.
    let has_keys = status::is_live(common) && !stdin_is_taken;
    let keys = has_keys.then(|| Keys::open(steering.is_some())).flatten();
    receiver.as_mut().map_or(Ok(()), Receiver::start)?;
    let mut paces = Vec::new();
    let mut work = Vec::new();
    let mut first = 0;
    for (_, sender) in targets {
        let cpu_numbers = first..;
        first += sender.threads();
        match sender {
            Sender::Ring { port, sources } => {
                work.extend(RingWorker::all(port.queues, sources, cpu_numbers));
            }
            Sender::Live(mut live) => {
                paces.push(live.start()?);
                work.push(SendWork::Live(live));
            }
        }
    }
    let mut control = SendControl {
        reports: &reports,
        steering: steering.as_mut(),
        carriers,
        keys,
        paces,
        receiver: receiver.as_ref(),
    };
    let options = RunOptions { common, wait: Wait::Sleep, stdout_is_taken };
    let ended = supervise(work.iter_mut().collect(), options, &signals, &mut control)?;
    let reports = reports.into_iter().map(|report| report.count(&ended, steering.as_ref()));
    let mut report = report::together(reports.collect());
    if steering.as_ref().is_some_and(Steering::is_constant) {
        report.note_missed_rate();
    }
    let received = receiver.map_or(Ok(()), |receiver| report.receive(receiver, &signals));
    report.publish(stdout_is_taken, common.json)?;
    let (reader_left, ended_by_user) = (ended.reader_left, ended.ended_by_user);
    ended.end()?;
    received?;
    // A source's failure does not end other workers: each sends its packets before the fault.
    let mut workers = work.iter_mut();
    let failure = workers.find_map(|work| match work {
        SendWork::Ring(worker) => worker.failure(),
        SendWork::Live(_) => None,
    });
    failure.map_or(Ok(()), Err)?;
    if reader_left {
        return Ok(());
    }
    report.check_sent(ended_by_user)?;
    report.ports.iter().try_for_each(|port| port.check_sent(ended_by_user))
}

/// Controls a run that sends: the rate, the keys, the carrier.
struct SendControl<'a> {
    reports: &'a [SendReport<'a>],
    steering: Option<&'a mut Steering>,
    carriers: Vec<Carrier>,
    keys: Option<Keys>,
    /// Sends changes of the pace to live frames; dropped at the end. Rings follow the dial.
    paces: Vec<mpsc::Sender<Pace>>,
    /// The receiver of the packets, if this run has one.
    receiver: Option<&'a Receiver>,
}

impl RunControl<SendCounts> for SendControl<'_> {
    const TICK: Duration = TICK;

    fn report_so_far(&mut self, outcomes: &Outcomes<SendCounts>, elapsed: Duration) -> Report {
        let reports = self.reports.iter().map(|report| report.so_far(outcomes, elapsed));
        let mut report = report::together(reports.collect());
        if let Some(receiver) = self.receiver {
            streams::arrive(&mut report, &receiver.analysis());
        }
        report
    }

    fn watch(&mut self, status: &mut Status, counters: &[WorkerCounters], elapsed: Duration) {
        if let Some(receiver) = self.receiver {
            status.analysed(&receiver.analysis());
        }
        status.show(Totals::sum(counters), elapsed);
    }

    fn tick(&mut self, status: &mut Status, elapsed: Duration) -> ControlFlow<()> {
        if self.receiver.is_some_and(Receiver::is_over) {
            return ControlFlow::Break(());
        }
        self.carriers.iter_mut().filter_map(Carrier::poll).for_each(|text| status.say(text));
        while let Some(key) = self.keys.as_mut().and_then(Keys::take) {
            if key == b'q' {
                return ControlFlow::Break(());
            }
            if let Some(steering) = &mut self.steering
                && steering.press(key)
            {
                status.note(steering.shown());
            }
        }
        let pace = self.steering.as_mut().and_then(|steering| steering.update(elapsed));
        if let Some(pace) = pace {
            for paces in &self.paces {
                // A worker that has ended needs no pace.
                let _ = paces.send(pace);
            }
        }
        ControlFlow::Continue(())
    }

    fn at_end(&mut self) {
        // A second signal may end the process from now on, so the terminal is restored before.
        self.keys = None;
        self.paces.clear();
    }
}
