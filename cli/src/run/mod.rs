//! Running a port: a thread for each queue, one that watches over them.
//!
//! ```text
//!   control: signals, --duration, status          workers: one a queue, pinned
//!   +-----------------------------+   stop   +----------------------------------+
//!   | every interval: add up      | -------> | sync → visit batch → release     |
//!   | the workers' counters       | <------- | counters, once a batch           |
//!   +-----------------------------+          +----------------------------------+
//! ```

mod control;
mod counters;
mod worker;

pub use control::{Control, Ended, Limits, Run, Work, run, supervise};
pub use counters::{Inquiry, Snapshot, Totals, WorkerCounters};
pub use worker::{Nothing, Outcome, RunContext, Visitor, first_error};
