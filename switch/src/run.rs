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

type SwitchRequest = Box<dyn FnOnce(&mut Switch) + Send>;

/// A switch and its connection to a [`Handle`].
#[derive(Debug)]
pub struct SwitchRunner {
    switch: Switch,
    requests: Receiver<SwitchRequest>,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

/// Sends requests to a switch on another thread.
#[derive(Debug)]
pub struct Handle {
    requests: Sender<SwitchRequest>,
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

impl SwitchRunner {
    /// Connects a switch to a new handle.
    pub fn new(switch: Switch) -> (Self, Handle) {
        let (requests, received) = channel();
        let (events, happened) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let runner = Self { switch, requests: received, events, stop: Arc::clone(&stop) };
        (runner, Handle { requests, events: happened, stop })
    }

    /// Runs until [`Handle::stop`] or until the limit of packets is reached.
    pub fn run(mut self, wait: Wait) -> SwitchOutcome {
        // `Relaxed` suffices: the flag publishes no other data.
        while !self.stop.load(Ordering::Relaxed) && !self.switch.is_spent() {
            while let Ok(request) = self.requests.try_recv() {
                request(&mut self.switch);
            }
            if self.switch.run_once() == 0 {
                self.switch.drop_removed();
                self.switch.wait(wait, TICK);
            }
            // The handle may be dropped.
            self.switch.take_events().into_iter().for_each(|event| drop(self.events.send(event)));
        }
        let at = Instant::now();
        let (ports, events) = self.switch.finish();
        events.into_iter().for_each(|event| drop(self.events.send(event)));
        SwitchOutcome { ports, at }
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
        let request = Box::new(move |switch: &mut Switch| drop(answer.send(work(switch))));
        self.requests.send(request).ok()?;
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
