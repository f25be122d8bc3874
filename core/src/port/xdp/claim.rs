//! The claim of a port on the packets that its sockets receive.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::port::claim_conflict;
use crate::port::name::PortName;
use crate::xdp::bpf::{self, Write};
use crate::xdp::resident::{
    Action, Direct, FILTERED, Owner, QUEUES_MAX, Resident, Sockets, Stage, WHOLE, load_program,
};
use crate::xdp::rx_metadata::RxMetadata;

/// Gives packets to a port's sockets. When the port is closed, or its process is killed, the packets return
/// to the host.
#[derive(Debug)]
pub(super) struct Claim {
    // Dropped before the stage: nothing is taken any more when the stage is free.
    way: ClaimRoute,
    stage: Stage,
    /// Queues whose packets are taken.
    queues: Vec<u32>,
}

#[derive(Debug)]
enum ClaimRoute {
    /// Takes all packets that no other claim takes, without a program of its own: the shortest path.
    Direct(Direct),
    /// A program of its own takes the packets that match the filter, or all packets with timestamps.
    Program { sockets: OwnedFd, program: OwnedFd },
}

impl Claim {
    /// Makes a claim without sockets, which takes nothing yet. The metadata will be in front of each packet.
    pub(super) fn new(
        name: &PortName,
        resident: &Arc<Resident>,
        filter: Option<&Filter>,
        rx_metadata: RxMetadata,
        owner: &Owner,
    ) -> Result<Self> {
        let stages = if filter.is_some() { FILTERED } else { WHOLE };
        let stage = claim_conflict::take(name, resident, stages, owner)?;
        if filter.is_none() && rx_metadata == RxMetadata::None {
            return Ok(Self {
                way: ClaimRoute::Direct(Direct::new(&stage)),
                stage,
                queues: Vec::new(),
            });
        }
        let sockets = bpf::create_socket_map(c"sluice_sockets", QUEUES_MAX)
            .map_err(|error| Error::system("make a map of sockets for", "a claim", error))?;
        let Owner { first_queue, queues, .. } = *owner;
        let to = Sockets { map: &sockets, rx_metadata, first_queue, queues };
        let program = load_program(&stage, resident, Action::Take, filter, Some(to), None)?;
        Ok(Self { way: ClaimRoute::Program { sockets, program }, stage, queues: Vec::new() })
    }

    /// Starts taking packets of the queues that have joined.
    pub(super) fn begin(&self) -> Result<()> {
        match &self.way {
            ClaimRoute::Direct(_) => Ok(()),
            ClaimRoute::Program { program, .. } => self.stage.complete(Some(program.as_fd())),
        }
    }

    /// Gives a queue's packets to a socket bound to it.
    pub(super) fn join(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<()> {
        match &mut self.way {
            ClaimRoute::Direct(direct) => direct.add(queue, socket),
            ClaimRoute::Program { sockets, .. } => {
                bpf::put(sockets.as_fd(), queue, socket, Write::Any).map_err(|error| {
                    Error::system("take packets from", format!("queue {queue}"), error)
                })
            }
        }?;
        self.queues.push(queue);
        Ok(())
    }

    /// Stops taking a queue's packets. The last queue ends the claim by clearing its bit in `present`, in
    /// shared memory, which needs no privilege.
    pub(super) fn leave(&mut self, queue: u32) -> Result<()> {
        self.queues.retain(|&ours| ours != queue);
        if self.queues.is_empty() {
            self.stage.stop();
        }
        match &mut self.way {
            ClaimRoute::Direct(direct) => direct.remove(queue),
            ClaimRoute::Program { sockets, .. } => bpf::remove_socket(sockets.as_fd(), queue)
                .map_err(|error| Error::system("leave", format!("queue {queue}"), error)),
        }
    }
}
