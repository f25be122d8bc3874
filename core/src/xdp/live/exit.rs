//! Where a program's frames leave: a map of interfaces with one in it (`DEVMAP`, Linux 4.14).
//!
//! A redirect by number has the kernel look for the interface anew for each frame; by a map it does
//! not (net/core/filter.c, `__xdp_do_redirect_frame`), which is some 3 % of what a frame costs. An
//! interface that is removed leaves the map by itself.

use std::os::fd::OwnedFd;

use super::privileged;
use crate::error::Result;
use crate::filter::ebpf::Reg::{R1, R2, R3};
use crate::filter::ebpf::{Assembler, Helper, xdp_action};
use crate::link::Interface;
use crate::xdp::bpf;

/// An interface that frames leave by, as a program knows it. The program keeps it.
#[derive(Debug)]
pub struct Exit(OwnedFd);

impl Exit {
    /// An interface of this thread's network namespace.
    ///
    /// # Errors
    /// There is none of its number; a missing privilege.
    pub fn by(interface: &Interface) -> Result<Self> {
        let failed = |error| privileged(error, "make a map for live frames to", &interface.name);
        let map = bpf::create_interface_map(c"sluice_exit", interface.index);
        map.map(Self).map_err(failed)
    }

    /// Ends a program: the frame leaves here. R1 to R3 are lost.
    pub fn leave(&self, asm: &mut Assembler) {
        asm.load_map(R1, &self.0);
        asm.mov(R2, 0);
        // What it answers if the interface is gone.
        asm.mov(R3, xdp_action::DROP);
        asm.call(Helper::REDIRECT_MAP);
        asm.exit();
    }
}
