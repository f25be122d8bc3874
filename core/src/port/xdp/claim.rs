//! The claim of a port: which packets its sockets get. A claim by copies serves where copies are
//! faster than sockets, and for queues whose socket another port has: the kernel gives a queue to
//! one AF_XDP socket.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{ClaimBuilder, XdpMethod, hardware};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::link;
use crate::port::claim_conflict::{self, overlap, who};
use crate::port::mirror::{CopyJob, RingSize};
use crate::port::{Fallback, Port, PortName, Use};
use crate::xdp::bpf::{self, Write};
use crate::xdp::resident::{
    Action, Direct, FILTERED, Owner, QUEUES_MAX, Resident, Sockets, Stage, WHOLE, load_program,
};
use crate::xdp::stamp::Stamp;
use crate::xdp::{BindMode, Mode};

/// Makes packets come to a port's sockets. When the port ends, or its process is killed, they are
/// the host's again.
#[derive(Debug)]
pub(super) struct Claim {
    // Before the place: nothing is taken any more when that is free.
    way: Way,
    stage: Stage,
    /// Queues whose packets come.
    queues: Vec<u32>,
}

#[derive(Debug)]
enum Way {
    /// Everything that nobody else takes, on the shortest way: no program of ours.
    Direct(Direct),
    /// A program of ours takes the packets that the filter matches, or all packets with a time.
    Program { sockets: OwnedFd, program: OwnedFd },
}

impl Claim {
    /// Makes a claim without sockets, which takes nothing yet. The stamp will be in front of each
    /// packet.
    pub fn new(
        name: &PortName,
        resident: &Arc<Resident>,
        filter: Option<&Filter>,
        stamp: Stamp,
        owner: &Owner,
    ) -> Result<Self> {
        let places = if filter.is_some() { FILTERED } else { WHOLE };
        let stage = claim_conflict::take(name, resident, places, owner)?;
        if filter.is_none() && stamp == Stamp::None {
            return Ok(Self { way: Way::Direct(Direct::new(&stage)), stage, queues: Vec::new() });
        }
        let sockets = bpf::create_socket_map(c"sluice_sockets", QUEUES_MAX)
            .map_err(|error| Error::system("make a map of sockets for", "a claim", error))?;
        let Owner { first_queue, queues, .. } = *owner;
        let to = Sockets { map: &sockets, stamp, first_queue, queues };
        let program = load_program(&stage, resident, Action::Take, filter, Some(to), None)?;
        Ok(Self { way: Way::Program { sockets, program }, stage, queues: Vec::new() })
    }

    /// Takes packets from now on, of the queues that have joined.
    pub fn begin(&self) -> Result<()> {
        match &self.way {
            Way::Direct(_) => Ok(()),
            Way::Program { program, .. } => self.stage.complete(Some(program.as_fd())),
        }
    }

    /// Gives a queue's packets to a socket bound to it.
    pub fn join(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<()> {
        match &mut self.way {
            Way::Direct(direct) => direct.add(queue, socket),
            Way::Program { sockets, .. } => bpf::put(sockets.as_fd(), queue, socket, Write::Any)
                .map_err(|error| {
                    Error::system("take packets from", format!("queue {queue}"), error)
                }),
        }?;
        self.queues.push(queue);
        Ok(())
    }

    /// Takes a queue's packets no more. With the last queue the claim ends, by a mark in memory:
    /// that needs no privilege.
    pub fn leave(&mut self, queue: u32) -> Result<()> {
        self.queues.retain(|&ours| ours != queue);
        if self.queues.is_empty() {
            self.stage.stop();
        }
        match &mut self.way {
            Way::Direct(direct) => direct.remove(queue),
            Way::Program { sockets, .. } => bpf::remove_socket(sockets.as_fd(), queue)
                .map_err(|error| Error::system("leave", format!("queue {queue}"), error)),
        }
    }
}

impl ClaimBuilder<'_> {
    /// Returns the other owners that take packets of our queues.
    ///
    /// # Errors
    /// Another owner has all of them, and this port wants them all: nothing need be made for that.
    pub(super) fn others(&self) -> Result<Vec<Owner>> {
        let claims = self.resident.claims()?;
        if self.options.usage != Use::Send {
            claim_conflict::refuse_second(self.name, &claims, &self.owner(), WHOLE.start)?;
        }
        let owners = claims.into_iter().map(|claim| claim.owner);
        let take = |owner: &Owner| owner.action == Action::Take && overlap(owner, &self.queues);
        Ok(owners.filter(take).collect())
    }

    /// Takes the packets by copying them where that is the fastest way, or the one asked for;
    /// None where it is not.
    pub(super) fn by_faster_copies(
        &mut self,
        others: &[Owner],
        patience: Duration,
    ) -> Result<Option<Port>> {
        match self.config.method {
            Some(XdpMethod::Copies) if self.options.usage != Use::Receive => {
                Err(self.name.error("method=ring only receives; method=af_xdp sends"))
            }
            Some(XdpMethod::Copies) => self.by_copies(None).map(Some),
            None if self.leaves_the_way_open() => {
                let error = match self.lacks_zero_copy() {
                    Some(reason) => return Ok(self.by_copies_if_they_go(reason)),
                    None => match self.by_sockets(Some(BindMode::ZeroCopy), patience) {
                        Ok(port) => return Ok(Some(port)),
                        Err(error) => error,
                    },
                };
                Ok(if self.may_copy(&error) {
                    self.by_copies_beside(others, &error).ok()
                } else {
                    self.by_copies_if_they_go(error.to_string())
                })
            }
            _ => Ok(None),
        }
    }

    /// Why there is no need to try; none where the kernel does not say (before 6.3).
    fn lacks_zero_copy(&self) -> Option<String> {
        let abilities = link::xdp_abilities(None, self.interface).ok()??;
        let lacks = !abilities.zero_copy();
        lacks.then(|| format!("the driver of {} has no zero-copy", self.interface.name))
    }

    /// Tries copies; if they fail (before Linux 5.18, say) sockets may work.
    fn by_copies_if_they_go(&mut self, no_zero_copy: String) -> Option<Port> {
        let reason = no_zero_copy;
        match self.by_copies(Some(Fallback::new("zero-copy", "copy", reason))) {
            Ok(port) => Some(port),
            Err(error) => {
                let reason = error.to_string();
                self.fallbacks.push(Fallback::new("copy ring", "af_xdp", reason));
                None
            }
        }
    }

    /// Returns true if no option requires sockets: the port only receives, and shares no pool.
    fn leaves_the_way_open(&self) -> bool {
        self.options.usage == Use::Receive
            && self.options.pool.is_none()
            && self.config.bind.is_none()
            && self.config.busy_poll.is_none()
            && self.stamp != Stamp::Driver
            && self.resident.mode() == Mode::Native
    }

    /// Returns true if copies can replace a socket: another owner has a queue, and the user asked
    /// for packets, not a socket.
    pub(super) fn may_copy(&self, error: &Error) -> bool {
        let socket = self.config.method == Some(XdpMethod::Sockets)
            || matches!(self.name.option("mode"), Some("zero-copy" | "copy"));
        error.errno() == Some(libc::EBUSY) && self.options.usage == Use::Receive && !socket
    }

    /// Takes the packets by copying them; `error` is why no socket does.
    pub(super) fn by_copies_beside(&self, others: &[Owner], error: &Error) -> Result<Port> {
        let reason = match others.first() {
            Some(owner) => format!("{} has the queue, and a queue has one socket", who(owner)),
            None => error.to_string(),
        };
        self.by_copies(Some(Fallback::new("af_xdp", "copy ring", reason)))
    }

    fn by_copies(&self, fallback: Option<Fallback>) -> Result<Port> {
        let mut fallbacks = self.fallbacks.clone();
        fallbacks.extend(fallback);
        if self.stamp == Stamp::Driver {
            fallbacks.push(hardware::fallback("a copy has the time at which it was made".into()));
        }
        let job = CopyJob {
            name: self.name,
            interface: self.interface,
            resident: &self.resident,
            filter: self.filter.as_ref(),
            action: Action::Take,
            places: if self.filter.is_some() { FILTERED } else { WHOLE },
            queues: self.queues.clone(),
            watch: &self.watch,
            size: RingSize {
                slots: self.config.slots,
                snaplen: self.config.snaplen,
                cells: self.config.cells,
            },
            stamped: self.stamp != Stamp::None,
            latency: self.name.latency(self.options)?,
            promiscuous: self.promiscuous.clone(),
        };
        Ok(Port {
            name: self.name.clone(),
            method: "ring",
            mode: Some(match self.resident.mode() {
                Mode::Native => "native-copy",
                Mode::Skb => "skb",
            }),
            fallbacks,
            queues: job.open(self.options)?,
        })
    }
}
