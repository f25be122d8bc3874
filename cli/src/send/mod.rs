//! The common part of commands that send.
//!
//! ```text
//!   source: made, or read from a file --> worker: a thread and a transmit ring --+
//!   plan --> program in the kernel: live frames ---------------------------------+--> the wire
//!   control: time, signals, status    report: attempted, accepted, sent
//!   steering: rate, file, keys, ramp --> dial, which workers look at
//! ```

mod keys;
mod live;
mod report;
mod ring;
mod steering;

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::port::{Kind, PortName, Queue, QueueStats};
use sluicegate::ring::Wait;
use sluicegate_traffic::rate::{Gaps, Pace};
use sluicegate_traffic::source::LeftOut;

use crate::args::Common;
use crate::report::Report;
use crate::run::{Outcomes, RunControl, RunOptions, Work, WorkerThread, supervise};
use crate::signals::Signals;
use crate::status::{self, Status};
use crate::target::Carrier;
use keys::Keys;
use report::SendReport;
use ring::RingWorker;
use steering::TICK;

pub use live::LiveSender;
pub use ring::{RingSender, Supply, monotonic_ns};
pub use steering::{Changes, Measure, Rate, Steering};

/// A sender of either kind.
pub enum Sender {
    /// Programs in the kernel.
    Live(LiveSender),
    /// Threads that fill a port's transmit rings.
    Ring(RingSender),
}

/// Orders to the workers.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Packets to send, all workers together.
    pub count: Option<u64>,
    /// The CPUs they run on, in turns; anywhere if empty.
    pub cpus: Vec<usize>,
}

impl Orders {
    /// How many packets worker `index` of `workers` sends.
    pub fn share(&self, index: usize, workers: usize) -> Option<u64> {
        let (index, workers) = (index as u64, workers as u64);
        self.count.map(|count| count / workers + u64::from(index < count % workers))
    }

    /// The CPU of a worker.
    pub fn cpu(&self, index: usize) -> Option<usize> {
        self.cpus.iter().copied().cycle().nth(index)
    }
}

/// The counts of one thread that sends: of a ring, or of all live frames.
#[derive(Debug)]
pub struct SendCounts {
    pub workers: Vec<Done>,
    /// How late packets were against the timetable; empty without one.
    pub gaps: Gaps,
    /// The begin and end of sending, where known.
    pub span: Option<(Instant, Instant)>,
}

/// The counts of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Packets it made, whether or not the target can send them.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that the target cannot send.
    pub left_out: LeftOut,
    /// The queue's own counts.
    pub stats: QueueStats,
    /// Times it fell too far behind its timetable.
    pub restarts: u64,
    /// The share of the time it was on a CPU.
    pub busy: f64,
}

/// The remains of workers that have ended.
#[derive(Debug, Default)]
pub struct Remains {
    /// Kept until the report is complete: closing a queue may delay other workers and readers of
    /// the interface's counters.
    queues: Vec<Queue>,
    /// Failures of sources: no reason for other workers to end, because each sends what it has before.
    failures: Vec<Error>,
}

/// The work of a thread that sends.
enum SendWork {
    Live(LiveSender),
    Ring(RingWorker),
}

impl Work for SendWork {
    type Counts = SendCounts;

    fn name(&self) -> String {
        match self {
            Self::Live(_) => "live".into(),
            Self::Ring(worker) => worker.name(),
        }
    }

    fn is_pinned(&self) -> bool {
        // The CPUs are those of the programs.
        !matches!(self, Self::Live(_))
    }

    fn run(self, thread: &mut WorkerThread<'_, SendCounts>) -> (SendCounts, Result<()>) {
        match self {
            Self::Live(live) => live.run(thread),
            Self::Ring(worker) => worker.run(thread),
        }
    }
}

/// Runs a sender that was opened, and publishes the report.
///
/// # Errors
/// What failed first.
pub fn send(
    command: &'static str,
    port: &PortName,
    common: &Common,
    sender: Sender,
    mut steering: Option<Steering>,
) -> anyhow::Result<()> {
    let report = SendReport::of(command, port, common, &sender);
    let carrier = Carrier::of(port, common.netns.as_deref());
    common.become_user()?;
    let signals = Signals::catch()?;
    // Before threads start, which inherit the blocked SIGTSTP.
    let keys = status::is_live(common).then(|| Keys::open(steering.is_some())).flatten();
    let orders = Orders { count: common.count, cpus: common.cpus().to_vec() };
    let remains = Arc::<Mutex<Remains>>::default();
    let mut paces = None;
    let work = match sender {
        Sender::Ring(ring) => {
            let workers = ring.workers(&orders, &remains)?;
            workers.into_iter().map(SendWork::Ring).collect()
        }
        Sender::Live(mut live) => {
            paces = Some(live.start(&orders)?);
            vec![SendWork::Live(live)]
        }
    };
    let mut control =
        SendControl { report: &report, steering: steering.as_mut(), carrier, keys, paces };
    let options = RunOptions { common, wait: Wait::Sleep, stdout_is_taken: false };
    let ended = supervise(work, options, &signals, &mut control)?;
    let report = report.count(&ended, steering.as_ref());
    // Where packets go to standard output, that is for them alone.
    report.publish(port.kind() == Kind::Pcap && port.name() == "-", common.json)?;
    ended.result?;
    let failures =
        std::mem::take(&mut remains.lock().unwrap_or_else(PoisonError::into_inner).failures);
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure.into());
    }
    report.check_sent(ended.ended_by_user)
}

/// Controls a run that sends: the rate, the keys, the carrier.
struct SendControl<'a> {
    report: &'a SendReport,
    steering: Option<&'a mut Steering>,
    carrier: Option<Carrier>,
    keys: Option<Keys>,
    /// Sends another pace to live frames; dropped at the end. Rings follow the dial.
    paces: Option<mpsc::Sender<Pace>>,
}

impl RunControl<SendCounts> for SendControl<'_> {
    const TICK: Duration = TICK;

    fn report_so_far(&mut self, outcomes: &Outcomes<SendCounts>, elapsed: Duration) -> Report {
        self.report.so_far(outcomes, elapsed)
    }

    fn tick(&mut self, status: &mut Status, elapsed: Duration) -> ControlFlow<()> {
        if let Some(text) = self.carrier.as_mut().and_then(Carrier::look) {
            status.say(text);
        }
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
        let pace = self.steering.as_mut().and_then(|steering| steering.look(elapsed));
        if let (Some(pace), Some(paces)) = (pace, &self.paces) {
            // A worker that has ended needs none.
            let _ = paces.send(pace);
        }
        ControlFlow::Continue(())
    }

    fn at_end(&mut self) {
        // A second signal may end the process from now on: the terminal is given back before.
        self.keys = None;
        self.paces = None;
    }
}
