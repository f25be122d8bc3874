//! A switch on its own thread, and the handle by which other threads use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use sluicegate::ring::Wait;

use crate::member::MemberState;
use crate::switch::{Event, Switch};

/// The longest sleep between two checks for requests.
const TICK: Duration = Duration::from_millis(10);

type Order = Box<dyn FnOnce(&mut Switch) + Send>;

/// A switch and its connection to a [`Handle`].
#[derive(Debug)]
pub struct Worker {
    switch: Switch,
    orders: Receiver<Order>,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

/// Sends requests to a switch on another thread.
#[derive(Debug)]
pub struct Handle {
    orders: Sender<Order>,
    events: Receiver<Event>,
    stop: Arc<AtomicBool>,
}

/// The result of a switch.
#[derive(Debug)]
pub struct SwitchOutcome {
    /// The final states of all ports.
    pub ports: Vec<MemberState>,
    /// The time at which reception ended.
    pub at: Instant,
}

impl Worker {
    /// Creates a worker and its handle.
    pub fn new(switch: Switch) -> (Self, Handle) {
        let (orders, to_do) = channel();
        let (events, happened) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Self { switch, orders: to_do, events, stop: Arc::clone(&stop) };
        (worker, Handle { orders, events: happened, stop })
    }

    /// Runs until [`Handle::stop`] or until the limit of packets is reached.
    pub fn run(mut self, wait: Wait) -> SwitchOutcome {
        // `Relaxed` suffices: the flag publishes no other data.
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
        // The handle may be dropped.
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
    /// Calls a function with the switch between two batches, and waits for its result; `None` if the switch
    /// has ended. The function must be short, because packets wait.
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
