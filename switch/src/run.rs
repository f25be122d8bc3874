//! A switch at work on a thread of its own, and those who have something to ask it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use sluicegate::ring::Wait;

use crate::member::MemberState;
use crate::switch::{Event, Switch};

/// How long it may sleep before it looks whether somebody wants something.
const TICK: Duration = Duration::from_millis(10);

type Order = Box<dyn FnOnce(&mut Switch) + Send>;

/// A switch that is to work.
#[derive(Debug)]
pub struct Worker {
    switch: Switch,
    orders: Receiver<Order>,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

/// For those who have something to ask a switch that is at work.
#[derive(Debug)]
pub struct Handle {
    orders: Sender<Order>,
    events: Receiver<Event>,
    stop: Arc<AtomicBool>,
}

/// How a switch ended.
#[derive(Debug)]
pub struct SwitchOutcome {
    /// All ports there were, as they ended.
    pub ports: Vec<MemberState>,
    /// When nothing more was let in.
    pub at: Instant,
}

impl Worker {
    /// A worker, and the handle to ask it by.
    pub fn new(switch: Switch) -> (Self, Handle) {
        let (orders, to_do) = channel();
        let (events, happened) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Self { switch, orders: to_do, events, stop: Arc::clone(&stop) };
        (worker, Handle { orders, events: happened, stop })
    }

    /// Works until it is told to stop, or as many packets as there may be have come in.
    pub fn run(mut self, wait: Wait) -> SwitchOutcome {
        // A flag by itself: nothing is published through it.
        while !self.stop.load(Ordering::Relaxed) && !self.switch.is_spent() {
            while let Ok(order) = self.orders.try_recv() {
                order(&mut self.switch);
            }
            if self.switch.turn() == 0 {
                self.switch.part();
                self.switch.wait(wait, TICK);
            }
            self.tell();
        }
        let at = Instant::now();
        let (ports, events) = self.switch.finish();
        // Nobody may want to know any more.
        events.into_iter().for_each(|event| drop(self.events.send(event)));
        SwitchOutcome { ports, at }
    }

    fn tell(&mut self) {
        for event in self.switch.take_events() {
            let _ = self.events.send(event);
        }
    }
}

impl Handle {
    /// Has the switch do something between two batches, and waits for its answer; none if it has
    /// ended. Packets wait meanwhile, so it is to be short.
    pub fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Switch) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = channel();
        let order = Box::new(move |switch: &mut Switch| drop(answer.send(work(switch))));
        self.orders.send(order).ok()?;
        answered.recv().ok()
    }

    /// Takes the next event, if there is one.
    pub fn event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Ends the switch.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
