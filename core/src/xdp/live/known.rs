//! A program that the kernel knows before it runs.
//!
//! On x86 the kernel calls XDP programs through a piece of code with a branch for each that is in use,
//! and a run changes it at its begin and its end, each time waiting for all readers of RCU: some 25 ms
//! a run, and with other runs on other CPUs, which are readers, as long as these take
//! (net/bpf/test_run.c and kernel/bpf/dispatcher.c, `bpf_dispatcher_change_prog`). A program that is
//! attached somewhere stays in it. So it is attached where no packet ever comes: to the loopback
//! interface, which is down, of a namespace of its own. That ends with the descriptor.

use std::fs::File;
use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::link::netns;
use crate::xdp::bpf;

/// Loopback is the first interface of every namespace.
const LOOPBACK: u32 = 1;

/// Keeps a program known to the kernel.
#[derive(Debug)]
pub(super) struct Known {
    _namespace: File,
}

impl Known {
    /// Makes a program known.
    ///
    /// # Errors
    /// A missing CAP_SYS_ADMIN: the program can do without, and its runs take longer to begin.
    pub fn new(program: BorrowedFd<'_>) -> Result<Self> {
        let namespace = netns::private(|| {
            bpf::attach_for_good(program, LOOPBACK)
                .map_err(|error| Error::system("attach", "a program of live frames", error))
        })?;
        Ok(Self { _namespace: namespace })
    }
}
