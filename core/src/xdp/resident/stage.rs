//! A stage: a place in the chain, held by one owner until it ends.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::owner::{Owner, OwnerEntry};
use super::shared::TURN;
use super::{Counters, LOOK_AGAIN, LOOKS, Resident, privileged};
use crate::error::Result;
use crate::link::Interface;
use crate::xdp::bpf::{self, Write};
use crate::xdp::redirects::RedirectSender;

/// A place in the chain that is ours.
#[derive(Debug)]
pub(crate) struct Stage {
    resident: Arc<Resident>,
    number: u32,
    /// In `sluice_owned` and `sluice_alive` as long as it is open.
    _token: OwnedFd,
    /// What its place counted before it was ours.
    before: Counters,
}

impl Stage {
    /// Takes the first of some places that nobody has, whose owners are dead included. Its
    /// number says what its program is to be; it acts when it is [complete](Self::complete).
    pub(crate) fn take(
        resident: &Arc<Resident>,
        places: Range<u32>,
        owner: &Owner,
    ) -> Result<Self> {
        let failed = |error| resident.failed("take packets from", error);
        let token = bpf::token().map_err(failed)?;
        let Some(number) = occupy(resident, places.clone(), &token).map_err(failed)? else {
            let taken = failed(io::Error::other(match places.len() {
                1 => "somebody does the same there already",
                _ => "all places for claims are taken",
            }));
            return Err(taken.remedy("`sluice claims` shows by whom"));
        };
        // What a dead owner left does nothing any more, and makes room.
        resident.empty(number).map_err(failed)?;
        let before = resident.tallies.of_place(number);
        let entry = OwnerEntry { owner: owner.clone(), before };
        bpf::write_entry(resident.owners.as_fd(), number, &entry.to_bytes(), Write::Any)
            .map_err(failed)?;
        Ok(Self { resident: Arc::clone(resident), number, _token: token, before })
    }

    /// Its place.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Puts its program in, where it has one, and lets it act.
    pub(crate) fn complete(&self, program: Option<BorrowedFd<'_>>) -> Result<()> {
        let resident = &self.resident;
        let failed = |error| resident.failed("take packets from", error);
        if let Some(program) = program {
            bpf::put(resident.stages.as_fd(), self.number, &program, Write::Any).map_err(failed)?;
        }
        bpf::put(resident.alive.as_fd(), self.number, &self._token, Write::Any).map_err(failed)?;
        resident.control.set_present(self.number);
        Ok(())
    }

    /// Has what it forwards go out by an interface of this thread's network namespace; to be called
    /// before it is [complete](Self::complete). The kernel takes an interface that is removed out of
    /// the map; then the packets are the host's.
    pub(crate) fn forward_to(&self, interface: &Interface) -> Result<()> {
        bpf::write_entry(
            self.resident.out.as_fd(),
            self.number,
            &interface.index.to_ne_bytes(),
            Write::Any,
        )
        .map_err(|error| privileged(error, "redirect to", &interface.name))
    }

    /// Counts what becomes of the packets that it [forwards](Self::forward_to) from the interface of its
    /// program to another; none without CAP_PERFMON or BTF.
    pub(crate) fn count_redirects(
        &self,
        from: &Interface,
        to: &Interface,
    ) -> Option<RedirectSender> {
        let mut sender = RedirectSender::new(self.resident.out.as_fd(), self.number).ok()?;
        sender.forwards(from.index, to.index).ok()?;
        Some(sender)
    }

    /// Lets it act no more. A packet that is on its way through may still be counted.
    pub(crate) fn stop(&self) {
        self.resident.control.clear_present(self.number);
        // What fails here the kernel does when the token is closed.
        let _ = bpf::remove(self.resident.alive.as_fd(), self.number);
    }

    /// Whether the program that it is a stage of is still on the interface.
    ///
    /// # Errors
    /// As [`Resident::check_attached`].
    pub(crate) fn check_attached(&self) -> Result<()> {
        self.resident.check_attached()
    }

    /// What it has counted since it is ours.
    pub(crate) fn tally(&self) -> Counters {
        self.resident.tallies.of_place(self.number).since(self.before)
    }
}

/// Ours is the turn to look who has what, and to take a place: who takes one by what stands there waits
/// for it.
#[derive(Debug)]
pub(crate) struct ClaimLock {
    /// In `sluice_owned` as long as it is open.
    _token: OwnedFd,
}

impl ClaimLock {
    /// Waits for it, a second at most: who has it only looks and takes.
    pub(crate) fn wait(resident: &Resident) -> Result<Self> {
        let failed = |error| resident.failed("take packets from", error);
        let token = bpf::token().map_err(failed)?;
        match occupy(resident, TURN..TURN + 1, &token).map_err(failed)? {
            Some(_) => Ok(Self { _token: token }),
            None => {
                Err(failed(io::Error::other("another process has begun to, and does not go on"))
                    .remedy("if one is stopped (state T in `ps`), let it go on or end it"))
            }
        }
    }
}

/// Puts the token into the first of some places that nobody has; none if all have somebody, also
/// after some time: who cleans up after the dead has a place for a moment, longer where its CPU is
/// taken away from it.
fn occupy(resident: &Resident, places: Range<u32>, token: &OwnedFd) -> io::Result<Option<u32>> {
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(LOOK_AGAIN);
        }
        for place in places.clone() {
            match bpf::put(resident.owned.as_fd(), place, token, Write::New) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                other => return other.map(|()| Some(place)),
            }
        }
    }
    Ok(None)
}

impl Drop for Stage {
    fn drop(&mut self) {
        let resident = &self.resident;
        // In this order, for the place is another's as soon as it is not owned. What fails here
        // the kernel does when the token is closed, or whoever joins next.
        self.stop();
        let _ = resident.empty(self.number);
        let _ = bpf::remove(resident.owned.as_fd(), self.number);
    }
}

/// Sockets in the map that gets everything nobody else took, one a queue.
#[derive(Debug)]
pub(crate) struct Direct {
    resident: Arc<Resident>,
    /// Where their packets are counted.
    place: u32,
    queues: Vec<u32>,
}

impl Direct {
    /// Will give the packets of queues to sockets, and count them at a stage that has no program.
    pub(crate) fn new(stage: &Stage) -> Self {
        let (resident, place) = (Arc::clone(&stage.resident), stage.number);
        Self { resident, place, queues: Vec::new() }
    }

    /// Gives what comes to a queue to a socket bound to it.
    pub(crate) fn add(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<()> {
        bpf::put(self.resident.direct.as_fd(), queue, socket, Write::New).map_err(|error| {
            let taken = error.raw_os_error() == Some(libc::EEXIST);
            let error = self.resident.failed("take packets from", error);
            if taken {
                error.remedy("another port takes all packets of that queue: `sluice claims`")
            } else {
                error
            }
        })?;
        self.queues.push(queue);
        self.resident.control.set_direct(queue, self.place);
        Ok(())
    }

    /// Takes no more packets from a queue.
    pub(crate) fn remove(&mut self, queue: u32) -> Result<()> {
        // Only what is ours: the entry may be another's by now.
        let Some(at) = self.queues.iter().position(|&ours| ours == queue) else { return Ok(()) };
        self.queues.swap_remove(at);
        // Of itself enough for no more packets to come.
        self.resident.control.clear_direct(queue, self.place);
        bpf::remove_socket(self.resident.direct.as_fd(), queue)
            .map_err(|error| self.resident.failed("take no more packets from", error))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // What fails here the kernel does when the sockets are closed.
        while let Some(&queue) = self.queues.first() {
            let _ = self.remove(queue);
        }
    }
}
