//! Sending live frames: a worker each with a program of its own.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use sluicegate::error::{Error, Result};
use sluicegate::link::netns;
use sluicegate_traffic::live::{Live, Sending};
use sluicegate_traffic::rate::{Gaps, Pace};
use sluicegate_traffic::source::LeftOut;

use super::run::{Done, Orders};

/// Sends live frames.
#[derive(Debug)]
pub struct LiveSender {
    starter: Option<Starter>,
    sending: Vec<Sending>,
    started: Option<Instant>,
}

/// A thread that waits in the interface's namespace to start the workers: a process that dropped
/// its privileges cannot enter the namespace.
#[derive(Debug)]
struct Starter {
    orders: SyncSender<Orders>,
    thread: JoinHandle<Result<Vec<Sending>>>,
}

impl LiveSender {
    /// Creates a sender with one worker per program.
    ///
    /// # Errors
    /// The namespace cannot be entered; the system has no thread left.
    pub fn new(ready: Vec<Live>, netns: Option<&str>) -> Result<Self> {
        let starter = Starter::new(ready, netns.map(str::to_owned))?;
        Ok(Self { starter: Some(starter), sending: Vec::new(), started: None })
    }

    /// Begins to send.
    pub fn start(&mut self, orders: &Orders) -> Result<()> {
        if let Some(starter) = self.starter.take() {
            self.started = Some(Instant::now());
            self.sending = starter.start(orders.clone())?;
        }
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

    /// Reports whether all workers are done, or one has failed.
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

    /// From the start to when the last packet of the last worker had been sent; nothing where one was
    /// ended before that.
    pub fn elapsed(&self) -> Option<Duration> {
        let ends: Option<Vec<_>> = self.sending.iter().map(Sending::done_at).collect();
        Some(ends?.into_iter().max()?.saturating_duration_since(self.started?))
    }

    /// Returns each worker's counts.
    pub fn done(&self) -> Vec<Done> {
        self.sending
            .iter()
            .map(|sending| {
                let (redirects, counters) = (sending.redirects(), sending.counters());
                Done {
                    packets: counters.packets + counters.refused,
                    bytes: counters.bytes,
                    accepted: counters.packets,
                    redirects,
                    untraced: counters.packets.saturating_sub(redirects.total()),
                    rejected: 0,
                    refused: counters.refused,
                    unsent: 0,
                    disconnected: 0,
                    left_out: LeftOut::default(),
                    restarts: counters.restarts,
                    busy: sending.busy(),
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

impl Starter {
    fn new(ready: Vec<Live>, netns: Option<String>) -> Result<Self> {
        let (orders, ordered) = sync_channel(1);
        let (inside, is_inside) = sync_channel(1);
        let wait = move || {
            // Signals are the main thread's, and workers inherit what is held here.
            SigSet::all().thread_block().map_err(|e| Error::system("hold", "signals", e))?;
            netns::run_in(netns.as_deref(), move || {
                // Nobody waits any more: then nobody sends orders either.
                let _ = inside.send(());
                start_all(ready, &ordered)
            })
        };
        let thread = std::thread::Builder::new()
            .name("starter".into())
            .spawn(wait)
            .map_err(|e| Error::system("start", "a thread for live frames", e))?;
        let starter = Self { orders, thread };
        // It waits inside, or has ended outside; then its end says why.
        if is_inside.recv().is_err() {
            starter.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            return Err(Error::Usage("live frames: nothing was ready to be sent".into()));
        }
        Ok(starter)
    }

    fn start(self, orders: Orders) -> Result<Vec<Sending>> {
        // Where it has ended already, its end says why.
        let _ = self.orders.send(orders);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn start_all(ready: Vec<Live>, ordered: &Receiver<Orders>) -> Result<Vec<Sending>> {
    // Without orders the run was given up before it began.
    let Ok(orders) = ordered.recv() else { return Ok(Vec::new()) };
    let workers = ready.len();
    let start =
        |(index, live): (usize, Live)| live.start(orders.share(index, workers), orders.cpu(index));
    ready.into_iter().enumerate().map(start).collect()
}
