//! A stage: a place in the chain, held by one owner until it ends.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::shared::Owner;
use super::{Resident, Tally};
use crate::error::{Error, Result};
use crate::xdp::bpf::{self, Write};

/// A place in the chain that is ours.
#[derive(Debug)]
pub(crate) struct Stage {
    resident: Arc<Resident>,
    number: u32,
    /// In `sluice_owned` and `sluice_alive` as long as it is open.
    _token: OwnedFd,
    /// What its place counted before it was ours.
    before: Tally,
}

impl Stage {
    /// Takes the first of some places that nobody has, whose owners are dead included. Its
    /// number says what its program is to be; it acts when it is [complete](Self::complete).
    pub fn take(resident: &Arc<Resident>, mut places: Range<u32>, owner: &Owner) -> Result<Self> {
        let failed = |error| resident.failed("take packets from", error);
        let token = bpf::token().map_err(failed)?;
        let taken = |place: &u32| match bpf::put(resident.owned.as_fd(), *place, &token, Write::New)
        {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => None,
            other => Some(other.map(|()| *place)),
        };
        let Some(found) = places.find_map(|place| taken(&place)) else {
            let message = "all places for claims are taken: `sluice claims` shows by whom";
            return Err(Error::Usage(format!("{}: {message}", resident.interface)));
        };
        let number = found.map_err(failed)?;
        // What a dead owner left does nothing any more, and makes room.
        if number < super::DROP {
            bpf::remove(resident.stages.as_fd(), number).map_err(failed)?;
        }
        bpf::write_entry(resident.owners.as_fd(), number, &owner.to_bytes(), Write::Any)
            .map_err(failed)?;
        let before = resident.tallies.of(number);
        Ok(Self { resident: Arc::clone(resident), number, _token: token, before })
    }

    /// Its place.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Puts its program in, where it has one, and lets it act.
    pub fn complete(&self, program: Option<BorrowedFd<'_>>) -> Result<()> {
        let resident = &self.resident;
        let failed = |error| resident.failed("take packets from", error);
        if let Some(program) = program {
            bpf::put(resident.stages.as_fd(), self.number, &program, Write::Any).map_err(failed)?;
        }
        bpf::put(resident.alive.as_fd(), self.number, &self._token, Write::Any).map_err(failed)?;
        resident.control.set_present(self.number);
        Ok(())
    }

    /// Lets it act no more. A packet that is on its way through may still be counted.
    pub fn stop(&self) {
        self.resident.control.clear_present(self.number);
        // What fails here the kernel does when the token is closed.
        let _ = bpf::remove(self.resident.alive.as_fd(), self.number);
    }

    /// What it has counted since it is ours.
    pub fn tally(&self) -> Tally {
        self.resident.tallies.of(self.number).since(self.before)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let resident = &self.resident;
        // In this order, for the place is another's as soon as it is not owned. What fails here
        // the kernel does when the token is closed, or the next owner.
        self.stop();
        if self.number < super::DROP {
            let _ = bpf::remove(resident.stages.as_fd(), self.number);
        }
        let _ = bpf::remove(resident.owned.as_fd(), self.number);
    }
}

/// Sockets in the map that gets everything nobody else took, one a queue.
#[derive(Debug)]
pub(crate) struct Direct {
    resident: Arc<Resident>,
    queues: Vec<u32>,
}

impl Direct {
    /// Will give the packets of these queues to these sockets.
    pub fn new(resident: &Arc<Resident>) -> Self {
        resident.control.add_direct();
        Self { resident: Arc::clone(resident), queues: Vec::new() }
    }

    /// Gives what comes to a queue to a socket bound to it.
    pub fn add(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<()> {
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
        Ok(())
    }

    /// Takes no more packets from a queue.
    pub fn remove(&mut self, queue: u32) -> Result<()> {
        // Only what is ours: the entry may be another's by now.
        let Some(at) = self.queues.iter().position(|&ours| ours == queue) else { return Ok(()) };
        self.queues.swap_remove(at);
        bpf::remove(self.resident.direct.as_fd(), queue)
            .map_err(|error| self.resident.failed("take no more packets from", error))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // What fails here the kernel does when the sockets are closed.
        while let Some(&queue) = self.queues.first() {
            let _ = self.remove(queue);
        }
        self.resident.control.remove_direct();
    }
}
