//! A thread that empties the rings while a step runs, and adds up what it finds.

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sluicegate::error::{Error, Result};

use super::names::{self, Kernel, Mapping};
use super::perf::{EventKind, Events, PerfRecord, SampleClock};

/// How often rings are emptied. Twenty times a second, so that a process is looked at before it ends.
const PAUSE: Duration = Duration::from_millis(50);

/// A place in the code that a CPU was at, as addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    pub what: EventKind,
    pub cpu: u32,
    pub process: u32,
    pub kernel: bool,
    pub chain: Vec<u64>,
}

/// A process that was sampled.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// As the kernel calls it: 15 bytes at most.
    pub name: String,
    /// Where its code is, of those that were seen outside the kernel.
    pub mappings: Vec<Mapping>,
}

/// All samples, and the tables that name their addresses.
#[derive(Debug)]
pub struct Recording {
    pub clock: SampleClock,
    /// How long each place took, in the clock's unit, or how often a thread left its CPU there.
    pub stacks: HashMap<Stack, u64>,
    pub processes: HashMap<u32, Process>,
    pub kernel: Kernel,
    /// Samples that were read.
    pub samples: u64,
    /// Records that found a ring full.
    pub lost: u64,
    /// Context switches of each CPU.
    pub switches: Vec<(u32, u64)>,
}

impl Recording {
    fn add(&mut self, record: PerfRecord, events: &Events) {
        match record {
            PerfRecord::Symbol { address, bytes, name } => self.kernel.add(address, bytes, name),
            PerfRecord::Lost(records) => self.lost += records,
            PerfRecord::Sample(sample) => {
                self.samples += 1;
                let Some(what) = events.what(&sample) else { return };
                let process = self.processes.entry(sample.process).or_insert_with(|| Process {
                    name: name_of(sample.process),
                    mappings: Vec::new(),
                });
                if !sample.kernel && !process.knows(sample.chain[0]) {
                    process.mappings = names::mappings(sample.process);
                }
                let stack = Stack {
                    what,
                    cpu: sample.cpu,
                    process: sample.process,
                    kernel: sample.kernel,
                    chain: sample.chain,
                };
                *self.stacks.entry(stack).or_default() += sample.weight;
            }
        }
    }
}

impl Process {
    fn knows(&self, address: u64) -> bool {
        self.mappings.iter().any(|mapping| mapping.offset_of(address).is_some())
    }
}

fn name_of(process: u32) -> String {
    match process {
        0 => "idle".into(),
        _ => fs::read_to_string(format!("/proc/{process}/comm"))
            .map_or_else(|_| "ended".into(), |name| name.trim_end().to_owned()),
    }
}

/// Sampling that goes on until it is stopped.
#[derive(Debug)]
pub struct Collector {
    /// Dropped to stop it.
    stop: Sender<()>,
    thread: JoinHandle<Result<Recording>>,
}

impl Collector {
    /// Begins, with `per_second` samples a second and CPU.
    ///
    /// # Errors
    /// No privilege, or a kernel that cannot; the remedy is said.
    pub fn start(per_second: u32) -> Result<Self> {
        let kernel = Kernel::read()?;
        let events = Events::open(per_second)?;
        let recording = Recording {
            clock: events.clock,
            stacks: HashMap::new(),
            processes: HashMap::new(),
            kernel,
            samples: 0,
            lost: 0,
            switches: Vec::new(),
        };
        events.enable()?;
        let (stop, stopped) = mpsc::channel();
        let collect = move || {
            let (mut events, mut recording) = (events, recording);
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                take(&mut events, &mut recording);
            }
            events.disable()?;
            take(&mut events, &mut recording);
            recording.switches = events.switches();
            Ok(recording)
        };
        let thread = thread::Builder::new().name("profile".into()).spawn(collect);
        let thread = thread.map_err(|error| Error::system("start", "a thread", error))?;
        Ok(Self { stop, thread })
    }

    /// Ends, and hands out what was found.
    ///
    /// # Errors
    /// The events could not be stopped.
    pub fn stop(self) -> Result<Recording> {
        drop(self.stop);
        match self.thread.join() {
            Ok(recording) => recording,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Looks at what has come since.
fn take(events: &mut Events, recording: &mut Recording) {
    let mut found = Vec::new();
    events.take(|record| found.push(record));
    for record in found {
        recording.add(record, events);
    }
}
