//! Runs a sender: time limit, signals, status.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use sluicegate::error::{Error, Result};
use sluicegate::xdp::RedirectCounts;
use sluicegate_traffic::rate::{Gaps, Pace};
use sluicegate_traffic::source::LeftOut;

use super::keys::Keys;
use super::live::LiveSender;
use super::report::SendReport;
use super::ring::RingSender;
use super::steering::Steering;
use super::target::Carrier;
use crate::args::Common;
use crate::run::WorkerCounters;
use crate::signals::Signals;
use crate::status::Status;

/// The time between two looks at whether it is over, and at which rate is asked for.
pub const TICK: Duration = Duration::from_millis(20);

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

/// The counts of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Packets it made and handed on, or would have.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets of `packets` that were accepted.
    pub accepted: u64,
    /// The known outcomes of packets redirected by XDP, and the number untraced.
    pub redirects: RedirectCounts,
    pub untraced: u64,
    /// Attempts that the kernel answered with a drop.
    pub rejected: u64,
    /// Packets not in `packets`, which the target cannot send.
    pub left_out: LeftOut,
    /// Packets refused, as far as known during the run.
    pub refused: u64,
    /// Packets not sent at the end.
    pub unsent: u64,
    /// Packets with a peer when it disconnected.
    pub disconnected: u64,
    /// Times it was too far behind its timetable.
    pub restarts: u64,
    /// The share of the time it was on a CPU.
    pub busy: f64,
}

impl Orders {
    /// How many packets worker `index` of `workers` sends.
    pub fn share(&self, index: usize, workers: usize) -> Option<u64> {
        let (index, workers) = (index as u64, workers as u64);
        self.count.map(|count| count / workers + u64::from(index < count % workers))
    }

    /// The CPU of a worker.
    pub fn cpu(&self, index: usize) -> Option<usize> {
        self.cpus.get(index % self.cpus.len().max(1)).copied()
    }
}

impl Sender {
    fn start(&mut self, orders: &Orders) -> Result<()> {
        match self {
            Self::Live(live) => live.start(orders),
            Self::Ring(ring) => ring.start(orders),
        }
    }

    fn counts(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Live(live) => live.counts(),
            Self::Ring(ring) => ring.counts(),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Live(live) => live.is_finished(),
            Self::Ring(ring) => ring.is_finished(),
        }
    }

    /// Tells workers of another pace that do not look for it themselves.
    fn set_pace(&self, pace: Pace) {
        match self {
            Self::Live(live) => live.set_pace(pace),
            // Their sources have the dial.
            Self::Ring(_) => {}
        }
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Self::Live(live) => live.end(),
            Self::Ring(ring) => ring.end(),
        }
    }

    /// How long it sent, where the workers know it themselves.
    fn elapsed(&self) -> Option<Duration> {
        match self {
            Self::Live(live) => live.elapsed(),
            Self::Ring(ring) => ring.elapsed(),
        }
    }

    /// Takes the notices about the port, each once.
    fn take_notices(&self) -> Vec<String> {
        match self {
            Self::Live(_) => Vec::new(),
            Self::Ring(ring) => ring.take_notices(),
        }
    }

    /// Asks workers for what they have done so far.
    fn ask(&mut self) {
        match self {
            // Their counters can be read at any time.
            Self::Live(_) => {}
            Self::Ring(ring) => ring.ask(),
        }
    }

    /// Returns each worker's counts once all asked workers have answered; `None` for a worker that
    /// is held up.
    fn answer(&mut self) -> Option<Vec<Option<Arc<Done>>>> {
        match self {
            Self::Live(live) => Some(live.done().into_iter().map(Arc::new).map(Some).collect()),
            Self::Ring(ring) => ring.answer(),
        }
    }

    /// Returns each worker's counts.
    pub fn done(&self) -> Vec<Done> {
        match self {
            Self::Live(live) => live.done(),
            Self::Ring(ring) => ring.done(),
        }
    }

    /// How late packets were against the timetable; empty without one.
    pub fn gaps(&self) -> Gaps {
        match self {
            Self::Live(live) => live.gaps(),
            Self::Ring(ring) => ring.gaps(),
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct SendOutcome {
    /// From the start to the end.
    pub elapsed: Duration,
    /// Notices about the port during the run.
    pub notices: Vec<String>,
    /// The first failure.
    pub result: Result<()>,
}

/// Sends until all is sent, the time is over, a user requests the end, or something fails.
///
/// # Errors
/// It could not begin.
pub fn run(
    sender: &mut Sender,
    mut steering: Option<&mut Steering>,
    common: &Common,
    signals: &Signals,
    mut carrier: Option<Carrier>,
    status: &mut Status,
    sent: &SendReport,
) -> Result<SendOutcome> {
    // Before threads are started, which leave the terminal's signals to it.
    let mut keys = Keys::of(status, steering.is_some());
    let cpus = common.cpus.as_ref().map_or_else(Vec::new, |list| list.0.clone());
    let start = Instant::now();
    sender.start(&Orders { count: common.count, cpus })?;
    let interval = status.interval();
    let mut next_look = interval;
    let mut notices = Vec::new();
    let mut tell = |sender: &Sender, status: &Status| {
        let news = sender.take_notices();
        news.iter().for_each(|notice| status.say(notice));
        notices.extend(news);
    };
    let mut ledger_asked = false;
    let waited = loop {
        tell(sender, status);
        if let Some(said) = carrier.as_mut().and_then(Carrier::look) {
            status.say(said);
        }
        let elapsed = start.elapsed();
        if sender.is_finished() || common.duration.is_some_and(|end| elapsed >= end) {
            break Ok(());
        }
        if press(&mut keys, steering.as_deref_mut(), status) {
            break Ok(());
        }
        if let Some(pace) = steering.as_mut().and_then(|steering| steering.look(elapsed)) {
            sender.set_pace(pace);
        }
        if elapsed >= next_look {
            status.show(&counters(sender), elapsed);
            next_look = elapsed + interval;
        }
        if signals.take_ledger_request() {
            ledger_asked = true;
            sender.ask();
        }
        if ledger_asked && let Some(done) = sender.answer() {
            ledger_asked = false;
            status.ledger(&sent.so_far(&done, elapsed), common.json);
        }
        match wait(signals, common.duration.map(|end| end.saturating_sub(elapsed))) {
            Ok(false) => {}
            Ok(true) => break signals.end_at_second(),
            Err(error) => break Err(error),
        }
    };
    let elapsed = start.elapsed();
    // A second signal may end the process from now on: the terminal is given back before.
    drop(keys);
    let ended = sender.end();
    tell(sender, status);
    // Nobody looks at the very moment when the last packet is sent.
    let elapsed = sender.elapsed().unwrap_or(elapsed);
    Ok(SendOutcome { elapsed, notices, result: waited.and(ended) })
}

/// Does what keys ask for; true if it is the end.
fn press(keys: &mut Option<Keys>, steering: Option<&mut Steering>, status: &mut Status) -> bool {
    let Some(keys) = keys else { return false };
    let Some(steering) = steering else { return keys.take() == Some(b'q') };
    while let Some(key) = keys.take() {
        match key {
            b'q' => return true,
            key if steering.press(key) => status.note(steering.shown()),
            _ => {}
        }
    }
    false
}

fn counters(sender: &Sender) -> Vec<WorkerCounters> {
    let counters = |(packets, bytes)| {
        let counters = WorkerCounters::default();
        counters.add(packets, bytes);
        counters
    };
    sender.counts().into_iter().map(counters).collect()
}

/// Waits a moment; true if a signal asks for the end.
fn wait(signals: &Signals, left: Option<Duration>) -> Result<bool> {
    let left = left.map_or(TICK, |left| left.min(TICK)).as_millis() as u16;
    match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], left.max(1)) {
        Ok(0) | Err(Errno::EINTR) => Ok(false),
        Ok(_) => Ok(signals.take()),
        Err(error) => Err(Error::system("wait for", "signals", error)),
    }
}
