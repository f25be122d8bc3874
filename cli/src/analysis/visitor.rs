//! Analyses the stamped packets of queues while they are received.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::port::{LINKTYPE_ETHERNET, Queue};
use sluicegate::ring::Packet;
use sluicegate::xdp::wall_ahead_ns;
use sluicegate_traffic::analyse::{Analyser, Analysis, Share};

use crate::run::Visitor;

/// Interval between two updates of a worker's shared counts.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);

/// Analyses the packets of one queue.
pub struct AnalysisVisitor {
    pub analyser: Analyser,
    /// For each interface of the queue, whether its packets begin with an Ethernet header.
    ethernet: Vec<bool>,
    shown: Arc<Mutex<Share>>,
    shown_at: Instant,
}

/// The counts of several queues so far, without latencies.
#[derive(Clone, Default)]
pub struct AnalysisSoFar(Vec<Arc<Mutex<Share>>>);

impl AnalysisSoFar {
    /// Returns the analysis so far.
    pub fn analysis(&self) -> Analysis {
        Analysis::of(&self.0.iter().map(|share| lock(share).clone()).collect::<Vec<_>>())
    }
}

/// Creates a visitor for each queue, and the counts so far that they share.
pub fn visitors(queues: &[Queue]) -> (Vec<AnalysisVisitor>, AnalysisSoFar) {
    let shown: Vec<_> = queues.iter().map(|_| Arc::new(Mutex::default())).collect();
    let visitors = shown.iter().map(|shown| AnalysisVisitor {
        analyser: Analyser::new(wall_ahead_ns),
        ethernet: Vec::new(),
        shown: Arc::clone(shown),
        shown_at: Instant::now(),
    });
    (visitors.collect(), AnalysisSoFar(shown))
}

/// Returns the whole analysis of visitors that have ended.
pub fn analysis_of(visitors: &[AnalysisVisitor]) -> Analysis {
    let shares: Vec<Share> = visitors.iter().map(|it| it.analyser.share()).collect();
    Analysis::of(&shares)
}

fn lock(share: &Arc<Mutex<Share>>) -> MutexGuard<'_, Share> {
    share.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Visitor for AnalysisVisitor {
    fn prepare(&mut self, queue: &Queue) {
        self.analyser.begin_batch();
        let known = self.ethernet.len();
        let new = queue.interfaces().iter().skip(known);
        self.ethernet.extend(new.map(|interface| interface.link_type == LINKTYPE_ETHERNET));
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        match self.ethernet.get(packet.meta().interface as usize) {
            Some(false) => self.analyser.unstamped(),
            _ => self.analyser.packet(packet),
        }
    }

    fn batch_done(&mut self) -> ControlFlow<()> {
        if self.shown_at.elapsed() >= SHOW_INTERVAL {
            let counts = self.analyser.counts();
            *lock(&self.shown) = counts;
            self.shown_at = Instant::now();
        }
        ControlFlow::Continue(())
    }
}
