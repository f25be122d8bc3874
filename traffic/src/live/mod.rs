//! Live frames: packets that a program makes in the kernel, and sends at once.
//!
//! A plan becomes straight-line eBPF ([`program`](self)): no packet is interpreted. Several
//! workers have a program each, with its own sheet of counters and its own thread.

mod arith;
mod program;
mod sheet;

use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::xdp::live::{Maker, Running, Sheet};

use crate::plan::Plan;
use program::Job;
use sheet::word;

/// One worker's share of a plan, ready to be sent.
#[derive(Debug)]
pub struct Live {
    sheet: Sheet,
    maker: Maker,
}

/// One worker, sending.
#[derive(Debug)]
pub struct Sending {
    sheet: Sheet,
    running: Running,
}

/// What a worker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the interface.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Packets that the kernel did not let become as long as they should be.
    pub refused: u64,
}

impl Live {
    /// Makes the program of worker `worker` of `workers`, which sends out of `interface`, of this
    /// thread's network namespace. Linux 5.18, CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// A missing privilege; a plan too large for a program.
    pub fn new(plan: &Plan, worker: u32, workers: u32, interface: &Interface) -> Result<Self> {
        let job = Job { plan, worker, workers, interface: interface.index };
        let sheet = Sheet::new(&program::sheet(&job))?;
        let instructions = program::program(&job, &sheet).map_err(|fault| {
            Error::Usage(format!("the plan is too large for a program of the kernel: {fault}"))
        })?;
        let maker = Maker::load(c"sluice_live", &instructions, job.frame())?;
        Ok(Self { sheet, maker })
    }

    /// The next packet, which is not sent.
    ///
    /// # Errors
    /// The program refused to make it.
    pub fn next_packet(&self) -> Result<Vec<u8>> {
        self.maker.once()
    }

    /// Begins to send, from a thread pinned to a CPU if one is given: `packets` packets, or endlessly
    /// many.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(self, packets: Option<u64>, cpu: Option<usize>) -> Result<Sending> {
        Ok(Sending { sheet: self.sheet, running: Running::start(self.maker, packets, cpu)? })
    }
}

impl Sending {
    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        let count = |word: i16| self.sheet.get(word as usize / 8);
        Counters {
            packets: count(word::PACKETS),
            bytes: count(word::BYTES),
            refused: count(word::REFUSED),
        }
    }

    /// Whether it has ended by itself.
    pub fn is_finished(&self) -> bool {
        self.running.is_finished()
    }

    /// Ends it, within a few milliseconds.
    ///
    /// # Errors
    /// Why it ended before, if it failed.
    pub fn end(self) -> Result<Counters> {
        let Self { sheet, running } = self;
        running.end()?;
        let count = |word: i16| sheet.get(word as usize / 8);
        Ok(Counters {
            packets: count(word::PACKETS),
            bytes: count(word::BYTES),
            refused: count(word::REFUSED),
        })
    }
}
