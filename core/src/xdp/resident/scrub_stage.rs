//! The scrub stage: a program of another crate that drops packets of attacks before all claims.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::shared::SCRUB;
use super::{Action, Owner, Resident, Stage, StageCounters};
use crate::error::Result;
use crate::link::{Interface, TcHook};
use crate::xdp::bpf;

/// The maps that a program at the scrub stage shares with the resident program (`bpf/chain.h`). Before its
/// object is loaded, the maps with these names have to reuse these descriptors (`bpf_map__reuse_fd`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ChainMaps<'a> {
    /// `sluice_stages`.
    pub stages: BorrowedFd<'a>,
    /// `sluice_alive`.
    pub alive: BorrowedFd<'a>,
    /// `sluice_tallies`.
    pub tallies: BorrowedFd<'a>,
    /// Frames may span several buffers. The program has to be loaded with `BPF_F_XDP_HAS_FRAGS` (Linux 5.18)
    /// if this is true, and without it otherwise: if not, the kernel does not load it (EINVAL).
    pub frags: bool,
}

impl Resident {
    /// Returns the maps for a program at the [scrub stage](ScrubStage).
    pub fn chain_maps(&self) -> ChainMaps<'_> {
        ChainMaps {
            stages: self.stages.as_fd(),
            alive: self.alive.as_fd(),
            tallies: self.tallies_fd.as_fd(),
            frags: self.frags(),
        }
    }
}

/// A program that an earlier owner of the scrub stage kept there.
#[derive(Debug)]
pub struct KeptProgram {
    /// Its maps, by the first 15 bytes of their names.
    pub maps: Vec<(String, OwnedFd)>,
}

/// The scrub stage of an interface, owned by this process until it is dropped. Its program runs after all
/// mirrors, and before the flows of the host and all claims. It drops packets, or passes them on by
/// `sluice_resume()` of `bpf/chain.h`. It must pass all on while `is_alive(SLUICE_SCRUB)` is false, because
/// it may still run for a while if its owner is killed.
///
/// Needs Linux 5.10, CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN, as [`Resident::join`].
#[derive(Debug)]
pub struct ScrubStage(Stage);

impl ScrubStage {
    /// Takes the stage. Removes the program of a killed owner. `sluice claims` shows the description.
    /// Packets pass until the first [`install`](Self::install).
    ///
    /// # Errors
    /// Another owner has the stage, which the error names; it waits a second for that owner to leave. Or
    /// the kernel refused.
    pub fn take(resident: &Arc<Resident>, description: &str) -> Result<Self> {
        let queues = 0..=resident.rx_queues.max(1) - 1;
        let owner = Owner::myself(Action::Scrub, description, queues);
        Stage::take(resident, SCRUB, &owner).map(Self)
    }

    /// Installs an XDP program that uses the [maps of the chain](Resident::chain_maps), and activates the
    /// stage. Another call replaces the program: each packet runs the old or the new one.
    ///
    /// # Errors
    /// It is no XDP program, or [`ChainMaps::frags`] does not match: the earlier program stays. Or the kernel
    /// refused.
    pub fn install(&self, program: BorrowedFd<'_>) -> Result<()> {
        self.0.complete(Some(program)).map_err(|error| match error.errno() {
            Some(libc::EINVAL) => error.remedy(
                "install an XDP program, loaded with BPF_F_XDP_HAS_FRAGS only if ChainMaps::frags is true",
            ),
            _ => error,
        })
    }

    /// Keeps the program at the stage when this process exits, whatever ends it: until [`release`](Self::release), or
    /// [`Resident::detach`], or the interface is removed. The program itself has to act while
    /// `is_alive(SLUICE_SCRUB)` is false.
    ///
    /// # Errors
    /// As [`Resident::keep`].
    pub fn keep(&self, interface: &Interface) -> Result<()> {
        let resident = self.0.resident();
        resident.pin_for_scrub(interface)?;
        resident.control.set_kept(true);
        Ok(())
    }

    /// Ends [`keep`](Self::keep): when this value is dropped, the program is removed. So is the resident program without
    /// other users, unless [`Resident::keep`] pinned it.
    pub fn release(&self) {
        let resident = self.0.resident();
        resident.control.set_kept(false);
        resident.unpin_of_scrub();
    }

    /// Returns the program that an earlier owner kept at the stage, with its maps. None if the stage was free.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn kept(&self) -> Result<Option<KeptProgram>> {
        let resident = self.0.resident();
        if !resident.control.is_kept(self.0.number()) {
            return Ok(None);
        }
        let find = || {
            // The kernel returns a program's id.
            let mut id = [0; 4];
            if !bpf::read_entry(resident.stages.as_fd(), self.0.number(), &mut id)? {
                return Ok(None);
            }
            let program = bpf::program(u32::from_ne_bytes(id))?;
            let maps = bpf::maps_of(program.as_fd())?;
            let maps = maps.into_iter().map(|map| (map.name, map.fd)).collect();
            Ok(Some(KeptProgram { maps }))
        };
        find().map_err(|error| resident.failed("take over the scrubber of", error))
    }

    /// Returns the counters that the program has added at the stage since it was taken.
    pub fn tally(&self) -> StageCounters {
        self.0.tally()
    }

    /// Fails if the resident program is not attached to the interface any more, so that no packet reaches
    /// the stage. Takes one system call, which may wait for the rtnl lock.
    ///
    /// # Errors
    /// [`Error::Removed`](crate::error::Error::Removed): the program was detached or the interface removed.
    pub fn check_attached(&self) -> Result<()> {
        self.0.check_attached()
    }
}

/// Attaches a program for tc behind the stage, before all others there: it runs on the packets that an interface of this
/// thread's network namespace passes to the host, until the last descriptor of the returned link is closed. Needs Linux
/// 6.6.
///
/// # Errors
/// `EINVAL`: the kernel has no tcx. Or it refused.
pub fn attach_ingress(program: BorrowedFd<'_>, interface: &Interface) -> io::Result<OwnedFd> {
    bpf::tcx_attach_first(program, interface.index, TcHook::Ingress)
}

/// Attaches a program for tc that sees the packets which the host sends by an interface of this thread's network
/// namespace, behind all others there, until the last descriptor of the returned link is closed. Needs Linux 6.6.
///
/// # Errors
/// `EINVAL`: the kernel has no tcx. Or it refused.
pub fn attach_egress(program: BorrowedFd<'_>, interface: &Interface) -> io::Result<OwnedFd> {
    bpf::tcx_attach(program, interface.index, TcHook::Egress)
}
