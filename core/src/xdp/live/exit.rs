//! The interface by which a program's frames leave: a map of interfaces with one in it (`DEVMAP`, Linux
//! 4.14), and what became of the frames.
//!
//! A redirect by number has the kernel look for the interface anew for each frame; by a map it does
//! not (net/core/filter.c, `__xdp_do_redirect_frame`), which is some 3 % of what a frame costs. An
//! interface that is removed leaves the map by itself.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::privileged;
use crate::error::{Error, Result};
use crate::filter::ebpf::Reg::{R0, R1, R2, R3};
use crate::filter::ebpf::{Assembler, Helper, Size, xdp_action};
use crate::link::{Interface, xdp_abilities};
use crate::xdp::RedirectCounts;
use crate::xdp::bpf::{self, SharedCounters};
use crate::xdp::redirects::{RedirectSender, ThreadMark};

/// An interface that frames leave by, as one program knows it.
#[derive(Debug)]
pub struct Exit {
    interface: Interface,
    map: OwnedFd,
    /// One counter: frames for which the map was empty.
    removed: SharedCounters,
    /// Absent without CAP_PERFMON, or where the kernel has no BTF.
    redirects: Option<Arc<RedirectSender>>,
}

impl Exit {
    /// An interface of this thread's network namespace.
    ///
    /// # Errors
    /// There is none of its number; a missing privilege.
    pub fn by(interface: &Interface) -> Result<Self> {
        let failed = |error| privileged(error, "make a map for live frames to", &interface.name);
        let map = bpf::create_interface_map(c"sluice_exit", interface.index).map_err(failed)?;
        let redirects = RedirectSender::new(map.as_fd(), 0).ok().map(Arc::new);
        let removed = SharedCounters::new(&[0])?;
        Ok(Self { interface: interface.clone(), map, removed, redirects })
    }

    /// The interface, as it was when the exit was made.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Ends a program: the frame leaves here. R1 to R3 are lost.
    pub fn leave(&self, asm: &mut Assembler) {
        let end = asm.label();
        asm.load_map(R1, &self.map);
        asm.mov(R2, 0);
        // What it answers if the interface was removed.
        asm.mov(R3, xdp_action::DROP);
        asm.call(Helper::REDIRECT_MAP);
        asm.jeq(R0, xdp_action::REDIRECT, end);
        asm.load_map_value(R1, &self.removed, 0);
        // The program is all that writes it, and it runs on one CPU at a time.
        asm.load(Size::DW, R2, R1 + 0);
        asm.add(R2, 1);
        asm.store(Size::DW, R1 + 0, R2);
        asm.place(end);
        asm.exit();
    }

    /// What became of the frames that left here. Without CAP_PERFMON, or BTF, only those are known
    /// for which the interface was removed.
    pub fn counts(&self) -> RedirectCounts {
        let traced = self.redirects.as_ref().map(|sender| sender.counts()).unwrap_or_default();
        RedirectCounts { removed: self.removed.get(0), ..traced }
    }

    /// Counts the frames that the calling thread sends, as long as it keeps the answer.
    pub(super) fn mark_thread(&self) -> Option<ThreadMark> {
        self.redirects.as_ref()?.mark_thread().ok()
    }
}

/// What keeps live frames from leaving an interface of the namespace `netns`, or of this thread's,
/// as far as the kernel says (since 6.3).
///
/// # Errors
/// The interface is down; its driver takes no packets that a program redirects to it.
pub fn leaves_by(interface: &Interface, netns: Option<&str>) -> Result<()> {
    let name = &interface.name;
    if !interface.up {
        return Err(Error::Usage(format!("{name} is down: ip link set {name} up")));
    }
    match xdp_abilities(netns, interface)? {
        Some(abilities) if !abilities.sends_redirected() => Err(Error::Unsupported {
            feature: format!("sending live frames out of {name}"),
            remedy: match interface.kind.as_str() {
                "veth" => "the other end needs NAPI: ethtool -K OTHER_END gro on".into(),
                _ => format!(
                    "the driver takes no redirected packets; some do with a program attached: \
                     sluice attach {name}"
                ),
            },
        }),
        _ => Ok(()),
    }
}
