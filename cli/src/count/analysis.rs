//! `count --analyze`: a look at each packet's stamp.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::port::{LINKTYPE_ETHERNET, Queue};
use sluicegate::ring::Packet;
use sluicegate::xdp::wall_ahead_ns;
use sluicegate_traffic::analyse::{Analyser, Analysis, Share};

use crate::run::Visitor;

/// How often a worker lets others see what it has counted.
const SHOW: Duration = Duration::from_millis(100);

/// Analyses the packets of one queue.
pub struct Analysing {
    analyser: Analyser,
    /// For each interface of the queue, whether its packets begin with an Ethernet header.
    ethernet: Vec<bool>,
    shown: Arc<Mutex<Share>>,
    shown_at: Instant,
}

/// What all queues have counted, as of a moment ago.
pub struct Progress(Vec<Arc<Mutex<Share>>>);

/// A visitor for each queue, and what they show of their counts meanwhile.
pub fn visitors(queues: &[Queue]) -> (Vec<Analysing>, Progress) {
    let shown: Vec<_> = queues.iter().map(|_| Arc::new(Mutex::default())).collect();
    let visitors = shown.iter().map(|shown| Analysing {
        analyser: Analyser::new(wall_ahead_ns),
        ethernet: Vec::new(),
        shown: Arc::clone(shown),
        shown_at: Instant::now(),
    });
    (visitors.collect(), Progress(shown))
}

/// What all visitors have seen.
pub fn analysis(visitors: &[Analysing]) -> Analysis {
    let shares: Vec<Share> = visitors.iter().map(|visitor| visitor.analyser.share()).collect();
    Analysis::of(&shares)
}

impl Progress {
    /// What became of packets so far, but for how long they took.
    pub fn analysis(&self) -> Analysis {
        let shares: Vec<Share> = self
            .0
            .iter()
            .map(|shown| shown.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .collect();
        Analysis::of(&shares)
    }
}

impl Analysing {
    fn show(&mut self) -> ControlFlow<()> {
        if self.shown_at.elapsed() >= SHOW {
            let counts = self.analyser.counts();
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = counts;
            self.shown_at = Instant::now();
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Analysing {
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
        self.show()
    }

    fn idle(&mut self) -> ControlFlow<()> {
        self.show()
    }
}
