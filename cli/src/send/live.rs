//! Sending live frames: each worker has its own program.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::sys::signal::SigSet;
use sluicegate::error::{Error, Result};
use sluicegate::link::netns;
use sluicegate::port::QueueStats;
use sluicegate_traffic::live::{Live, Sending};
use sluicegate_traffic::rate::{Gaps, Pace};
use sluicegate_traffic::source::SkippedPackets;

use super::steering::TICK;
use super::{SendCounts, WorkerResult};
use crate::args::Common;
use crate::run::WorkerThread;

/// Sends live frames.
#[derive(Debug)]
pub struct LiveSender {
    /// Lets the starter begin. If it is dropped before that, the run is cancelled.
    go: Sender<()>,
    /// A thread that waits in the interface's namespace to start the workers: a process that dropped
    /// its privileges cannot enter the namespace.
    starter: Option<JoinHandle<Result<Vec<Sending>>>>,
    sending: Vec<Sending>,
    /// Delivers changes of the pace; disconnects at the end.
    paces: Receiver<Pace>,
    started: Instant,
    threads: usize,
}

impl LiveSender {
    /// Creates a sender with one worker per program: the workers from `first` on, of all targets' `workers`.
    ///
    /// # Errors
    /// The namespace cannot be entered; the system has no thread left.
    pub fn new(programs: Vec<Live>, first: usize, workers: u32, common: &Common) -> Result<Self> {
        let (threads, workers) = (programs.len(), workers as usize);
        let programs = (first..).zip(programs);
        let ready: Vec<_> = programs
            .map(|(index, live)| (live, common.share(index, workers), common.cpu(index)))
            .collect();
        let netns = common.netns.clone();
        let (go, begins) = channel();
        let (inside, is_inside) = channel();
        let wait = move || {
            // The main thread takes signals; workers inherit this mask.
            SigSet::all().thread_block().map_err(|e| Error::system("hold", "signals", e))?;
            netns::run_in(netns.as_deref(), move || {
                // If the receiver was dropped, no `go` follows either.
                let _ = inside.send(());
                let ready = if begins.recv().is_ok() { ready } else { Vec::new() };
                ready.into_iter().map(|(live, packets, cpu)| live.start(packets, cpu)).collect()
            })
        };
        let starter = std::thread::Builder::new()
            .name("starter".into())
            .spawn(wait)
            .map_err(|e| Error::start("a thread for live frames", e))?;
        // Either the thread waits in the namespace, or its result has the error.
        if is_inside.recv().is_err() {
            join(starter)?;
            return Err(Error::Usage("live frames: no program to run".into()));
        }
        let (sending, paces, started) = (Vec::new(), channel().1, Instant::now());
        Ok(Self { go, starter: Some(starter), sending, paces, started, threads })
    }

    /// Returns the number of programs, each of which has a thread.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Begins to send. Returns the channel for another pace of all workers together; dropping it ends them.
    pub fn start(&mut self) -> Result<Sender<Pace>> {
        let (to, paces) = channel();
        if let Some(starter) = self.starter.take() {
            self.started = Instant::now();
            // If the thread has ended, its result has the reason.
            let _ = self.go.send(());
            self.sending = join(starter)?;
        }
        self.paces = paces;
        Ok(to)
    }

    /// Waits until all workers are done, one fails, or the run is stopped; then ends all.
    pub fn run(&mut self, thread: &mut WorkerThread<'_, SendCounts>) -> (SendCounts, Result<()>) {
        while !self.is_finished() {
            match self.paces.recv_timeout(TICK) {
                Ok(pace) => self.sending.iter().for_each(|sending| sending.set_pace(pace)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.note_counters(thread);
            if thread.wants_snapshot() {
                thread.publish(self.sent());
            }
        }
        // All are requested to end before the first is joined, because on few CPUs each needs some time.
        self.sending.iter().for_each(|sending| sending.thread.request_stop());
        let ends: Vec<_> = self.sending.iter_mut().map(|sending| sending.thread.end()).collect();
        self.note_counters(thread);
        let sent = self.sent();
        // Stopped programs send until here.
        let span = sent.span.or_else(|| Some((self.started, Instant::now())));
        (SendCounts { span, ..sent }, ends.into_iter().collect())
    }

    fn note_counters(&self, thread: &WorkerThread<'_, SendCounts>) {
        let counts = self.sending.iter().map(Sending::counters);
        let (packets, bytes) = counts.fold((0, 0), |(packets, bytes), counters| {
            (packets + counters.packets, bytes + counters.bytes)
        });
        let before = thread.counters.totals();
        thread.counters.add(packets - before.packets, bytes - before.bytes);
    }

    /// Reports whether all workers are done, or one has failed.
    fn is_finished(&self) -> bool {
        let all = self.sending.iter().all(Sending::is_finished);
        all || self.sending.iter().any(Sending::has_failed)
    }

    /// Returns the workers' counts. The end of sending is unknown if a worker was stopped early.
    fn sent(&self) -> SendCounts {
        let ends: Option<Vec<_>> = self.sending.iter().map(Sending::done_at).collect();
        let span = ends.and_then(|ends| Some((self.started, ends.into_iter().max()?)));
        let mut gaps = Gaps::default();
        self.sending.iter().for_each(|sending| gaps.merge(&sending.gaps()));
        SendCounts { workers: self.sending.iter().map(done).collect(), gaps, span }
    }
}

fn done(sending: &Sending) -> WorkerResult {
    let (redirects, counters) = (sending.thread.redirects(), sending.counters());
    WorkerResult {
        packets: counters.packets + counters.refused,
        bytes: counters.bytes,
        stats: QueueStats {
            sent: counters.packets,
            redirects,
            untraced: counters.packets.saturating_sub(redirects.total()),
            refused: counters.refused,
            ..QueueStats::default()
        },
        skipped: SkippedPackets::default(),
        streams: sending.streams(),
        restarts: counters.restarts,
        busy: sending.thread.busy(),
    }
}

fn join(starter: JoinHandle<Result<Vec<Sending>>>) -> Result<Vec<Sending>> {
    starter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
