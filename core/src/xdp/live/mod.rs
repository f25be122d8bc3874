//! Live frames: packets that a program makes in the kernel and that are sent at once, without a
//! socket (BPF_PROG_RUN with `BPF_F_TEST_XDP_LIVE_FRAMES`; Linux 5.18, CAP_BPF and CAP_NET_ADMIN).
//!
//! ```text
//!   LiveProgram::run: pages of a pool ---> program writes a packet ---> XDP_REDIRECT ---> interface
//!                     ^                         |                                       |
//!                     |                         `--- XDP_DROP: not yet                  |
//!                     `-----------------------------------------------------------------'
//! ```
//!
//! The program makes packets of what stands in it, or sends those that another thread has written
//! into memory that it reads (`ring`). A run sets up a pool of pages and then goes on for many
//! packets; a signal ends it. A thread runs it again and again ([`LiveThread`]).
//!
//! | file | what it knows |
//! | --- | --- |
//! | `able`, `exit` | which interfaces live frames leave by, and how a program does it |
//! | `live_program`, `known` | a program that makes packets, and its runs, which are to begin at once |
//! | `live_thread`, `run_length`, `signal` | a thread of runs, how long one goes on, what ends it |
//! | `shared_counters` | numbers shared with a program |
//! | `ring`, `program`, `sender` | packets that are written here and sent there: memory, program, thread |
//!
//! Sources: net/bpf/test_run.c (`xdp_test_run_batch`), Documentation/bpf/bpf_prog_run.rst.

mod exit;
mod live_program;
mod live_thread;
mod program;
mod ring;
mod sender;
mod signal;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;

pub use super::bpf::SharedCounters;
pub use exit::Exit;
pub use exit::leaves_by;
pub use live_program::{LiveProgram, RunEnd};
pub use live_thread::{LiveThread, LiveThreadConfig, Next};
pub use ring::MAX_BYTES;
pub(crate) use ring::{Geometry, MIN_BYTES};
pub(crate) use sender::LiveSender;

use super::bpf;
use crate::error::Error;

/// What the kernel refused, by name if it is a privilege.
fn privileged(error: io::Error, operation: &'static str, object: &str) -> Error {
    bpf::privileged(error, "CAP_BPF and CAP_NET_ADMIN", operation, object)
}
