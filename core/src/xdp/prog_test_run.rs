//! Trying a program on packets that come from nowhere and go nowhere (`BPF_PROG_RUN`).

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use super::bpf;
use crate::error::{Error, Result};
use crate::filter::ebpf::Insn;

/// An XDP program to be tried.
#[derive(Debug)]
pub struct ProgTestRun(OwnedFd);

impl ProgTestRun {
    /// Loads a program.
    ///
    /// # Errors
    /// The kernel does not take it, or a privilege is missing.
    pub fn load(name: &CStr, instructions: &[Insn]) -> Result<Self> {
        bpf::load(name, instructions, false).map(Self).map_err(|refused| {
            match refused.said.as_str() {
                "" => super::resident::privileged(refused.error, "load a program for", "a trial"),
                said => Error::Unsupported {
                    feature: "this program".into(),
                    remedy: format!("the kernel's verifier says: {said}"),
                },
            }
        })
    }

    /// Runs it on a packet so many times, and says its answer (`xdp_action`) and how long one run
    /// took on average, in ns.
    ///
    /// # Errors
    /// The kernel refuses, as it does packets shorter than an Ethernet header.
    pub fn run(&self, packet: &[u8], times: u32) -> Result<(i32, u32)> {
        bpf::run_times(self.0.as_fd(), packet, times)
            .map_err(|error| Error::system("try a program on", "a packet", error))
    }
}
