//! A program that makes packets, and its runs.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::privileged;
use crate::error::{Error, Result};
use crate::filter::ebpf::{Insn, xdp_action};
use crate::link::netns;
use crate::xdp::bpf;

/// Frames between two looks at whether a signal came. 256 can be had, but no more speed.
const BATCH: u32 = 64;
/// More than can be had (`TEST_XDP_MAX_BATCH`).
const TOO_MANY: u32 = 257;

/// A program that makes packets.
#[derive(Debug)]
pub struct LiveProgram {
    program: OwnedFd,
    frame: Vec<u8>,
    known: Option<KnownProgram>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All its packets are made.
    Done,
    /// A signal came.
    Interrupted,
}

impl LiveProgram {
    /// Loads a program. `frame` is what lies in the frames before it runs on them the first time.
    ///
    /// # Errors
    /// The kernel does not take the program, or a privilege is missing.
    pub fn load(name: &CStr, instructions: &[Insn], frame: Vec<u8>) -> Result<Self> {
        let program = bpf::load(name, instructions, false).map_err(|refused| {
            match refused.said.as_str() {
                "" => privileged(refused.error, "load a program for", "live frames"),
                // It refuses with the number of a missing privilege.
                said => Error::Unsupported {
                    feature: "a program for these live frames".into(),
                    remedy: format!("send by another method; the kernel's verifier says: {said}"),
                },
            }
        })?;
        // Without the privilege for it runs take their time to begin, and are longer.
        let known = KnownProgram::new(program.as_fd()).ok();
        Ok(Self { program, frame, known })
    }

    /// Whether a run begins and ends in no time.
    pub(super) fn is_quick(&self) -> bool {
        self.known.is_some()
    }

    /// The next packet, which is not sent.
    ///
    /// # Errors
    /// The program refused to make it.
    pub fn once(&self) -> Result<Vec<u8>> {
        let failed = |error| Error::system("make", "a packet", error);
        let (answer, packet) = bpf::run(self.program.as_fd(), &self.frame).map_err(failed)?;
        match answer {
            xdp_action::REDIRECT => Ok(packet),
            _ => Err(failed(io::Error::other(format!("the program answered {answer}")))),
        }
    }

    /// Runs the program `times` times, or until a signal comes: to this thread.
    ///
    /// # Errors
    /// The kernel has no live frames, or none as long as this.
    pub fn run(&self, times: u32) -> Result<RunEnd> {
        self.run_on(times, self.frame.len())
    }

    /// The same on frames of so many bytes, of those that there are.
    pub(super) fn run_on(&self, times: u32, bytes: usize) -> Result<RunEnd> {
        let frame = &self.frame[..bytes.min(self.frame.len())];
        match bpf::run_live(self.program.as_fd(), frame, times, BATCH) {
            Ok(()) => Ok(RunEnd::Done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(RunEnd::Interrupted),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(self.refused(error)),
            Err(error) => Err(privileged(error, "send", "live frames")),
        }
    }

    /// Why the kernel calls a run invalid. One that has live frames refuses a batch that is too large
    /// before it looks at the frame, and by another number (net/bpf/test_run.c, `bpf_prog_test_run_xdp`).
    fn refused(&self, error: io::Error) -> Error {
        let asked = bpf::run_live(self.program.as_fd(), &self.frame, 1, TOO_MANY);
        match asked.map_err(|error| error.raw_os_error()) {
            Err(Some(libc::E2BIG)) => Error::system("send", "live frames", error).remedy(
                "they have an Ethernet header at least, and one page at most: send others, or by \
                 another method",
            ),
            _ => Error::Unsupported {
                feature: "sending live frames (Linux 5.18)".into(),
                remedy: "send by another method".into(),
            },
        }
    }
}

// A program that the kernel knows before it runs.
//
// On x86 the kernel calls XDP programs through a piece of code with a branch for each that is in use,
// and a run changes it at its begin and its end, each time waiting for all readers of RCU: some 25 ms
// a run, and with other runs on other CPUs, which are readers, as long as these take
// (net/bpf/test_run.c and kernel/bpf/dispatcher.c, `bpf_dispatcher_change_prog`). A program that is
// attached somewhere stays in it. So it is attached where no packet ever comes: to the loopback
// interface, which is down, of a namespace of its own. That ends with the descriptor.

/// Loopback is the first interface of every namespace.
const LOOPBACK: u32 = 1;

/// Keeps a program known to the kernel.
#[derive(Debug)]
pub(super) struct KnownProgram {
    _namespace: File,
}

impl KnownProgram {
    /// Makes a program known.
    ///
    /// # Errors
    /// A missing CAP_SYS_ADMIN: the program can do without, and its runs take longer to begin.
    pub(super) fn new(program: BorrowedFd<'_>) -> Result<Self> {
        let namespace = netns::private(|| {
            bpf::attach_permanently(program, LOOPBACK)
                .map_err(|error| Error::system("attach", "a program of live frames", error))
        })?;
        Ok(Self { _namespace: namespace })
    }
}
