//! Live frames: packets that a program in the kernel makes and sends without a socket.
//!
//! They use BPF_PROG_RUN with `BPF_F_TEST_XDP_LIVE_FRAMES` (Linux 5.18, CAP_BPF and CAP_NET_ADMIN).
//!
//! ```text
//!   LiveProgram::run: pages of a pool ---> program writes a packet ---> XDP_REDIRECT ---> interface
//!                     ^                         |                                       |
//!                     |                         `--- XDP_DROP: not yet                  |
//!                     `-----------------------------------------------------------------'
//! ```
//!
//! The program makes packets itself, or sends packets from memory that another thread writes (`ring`). A
//! run sets up a pool of pages and then sends many packets; a signal ends it. A thread repeats runs
//! ([`LiveThread`]).
//!
//! Sources: net/bpf/test_run.c (`xdp_test_run_batch`), Documentation/bpf/bpf_prog_run.rst.

mod program;
mod ring;
mod ring_program;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread;

use std::io;

pub use super::bpf::SharedCounters;
pub use program::{LiveProgram, RedirectTarget, RunEnd, check_target};
pub use ring::MAX_BYTES;
pub(crate) use ring::{LiveRingConfig, LiveSender, MIN_BYTES};
pub use thread::{LiveThread, LiveThreadConfig, ThreadAction};

use super::bpf;
use crate::error::Error;

/// Turns a failed bpf(2) into an error for users.
fn privileged(error: io::Error, operation: &'static str, object: &str) -> Error {
    bpf::privileged(error, "CAP_BPF and CAP_NET_ADMIN", operation, object)
}
