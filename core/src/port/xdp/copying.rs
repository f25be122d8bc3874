//! Claims by copying: where it is faster than sockets, and for queues whose socket somebody else
//! has, for the kernel gives a queue to one AF_XDP socket.

use std::time::Duration;

use super::{Method, Taking, hardware};
use crate::error::{Error, Result};
use crate::link;
use crate::port::mirror::{Job, Size};
use crate::port::{Fallback, Port, Use};
use crate::xdp::resident::{Action, Claimed, FILTERED, Owner, WHOLE};
use crate::xdp::stamp::Stamp;
use crate::xdp::{BindMode, Mode};

impl Taking<'_> {
    /// Who else takes packets of our queues.
    pub(super) fn others(&self) -> Result<Vec<Owner>> {
        Ok(self.overlapping()?.into_iter().map(|claim| claim.owner).collect())
    }

    fn overlapping(&self) -> Result<Vec<Claimed>> {
        let ours = &self.queues;
        let mut claims = self.resident.claims()?;
        claims.retain(|Claimed { owner, .. }| {
            let end = owner.first_queue.saturating_add(owner.queues);
            owner.action == Action::Take && owner.first_queue <= *ours.end() && *ours.start() < end
        });
        Ok(claims)
    }

    /// Of two that take everything from a queue, one would get nothing.
    pub(super) fn refuse_second_whole(&self, others: &[Owner]) -> Result<()> {
        let whole = others.iter().find(|owner| owner.filter.is_empty());
        match (&self.filter, whole) {
            (None, Some(owner)) if self.options.usage != Use::Send => Err(self.second_to(owner)),
            _ => Ok(()),
        }
    }

    /// Gives way to another process that takes everything, too, and was a moment faster.
    pub(super) fn give_way(&self, port: Port) -> Result<Port> {
        if self.filter.is_some() || self.options.usage == Use::Send {
            return Ok(port);
        }
        let (mut ours, mut theirs) = (None, None);
        for claim in self.overlapping()?.into_iter().filter(|it| it.owner.filter.is_empty()) {
            match claim.owner.pid == std::process::id() {
                true => ours = Some(claim.place),
                false => theirs = theirs.or(Some(claim)),
            }
        }
        match (ours, theirs) {
            (Some(ours), Some(first)) if first.place < ours => Err(self.second_to(&first.owner)),
            _ => Ok(port),
        }
    }

    fn second_to(&self, owner: &Owner) -> Error {
        self.name.error(format!(
            "{} takes all packets of that queue already: a filter says which of them are to come \
             here (`sluice claims {}` shows more)",
            who(owner),
            self.interface.name
        ))
    }

    /// Takes the packets by copying them where that is the fastest way, or the one asked for;
    /// None where it is not.
    pub(super) fn by_faster_copies(
        &mut self,
        others: &[Owner],
        patience: Duration,
    ) -> Result<Option<Port>> {
        match self.config.method {
            Some(Method::Copies) if self.options.usage != Use::Receive => {
                Err(self.name.error("method=ring only receives; method=af_xdp sends"))
            }
            Some(Method::Copies) => self.by_copies(None).map(Some),
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

    /// What fails here (before Linux 5.18, say) sockets may be able to do.
    fn by_copies_if_they_go(&mut self, no_zero_copy: String) -> Option<Port> {
        let reason = no_zero_copy;
        match self.by_copies(Some(Fallback { from: "zero-copy", to: "copy", reason })) {
            Ok(port) => Some(port),
            Err(error) => {
                let reason = error.to_string();
                self.fallbacks.push(Fallback { from: "copy ring", to: "af_xdp", reason });
                None
            }
        }
    }

    /// Whether it is all the same to the user how the packets come.
    fn leaves_the_way_open(&self) -> bool {
        self.options.usage == Use::Receive
            && self.options.pool.is_none()
            && self.config.bind.is_none()
            && self.config.busy_poll.is_none()
            && self.stamp != Stamp::Driver
            && self.resident.mode() == Mode::Native
    }

    /// Whether copies are the way out: somebody has a queue, and what was asked for is packets,
    /// not a socket.
    pub(super) fn may_copy(&self, error: &Error) -> bool {
        let socket = self.config.method == Some(Method::Sockets)
            || matches!(self.name.option("mode"), Some("zero-copy" | "copy"));
        error.errno() == Some(libc::EBUSY) && self.options.usage == Use::Receive && !socket
    }

    /// Takes the packets by copying them; `error` is why no socket does.
    pub(super) fn by_copies_beside(&self, others: &[Owner], error: &Error) -> Result<Port> {
        let reason = match others.first() {
            Some(owner) => format!("{} has the queue, and a queue has one socket", who(owner)),
            None => error.to_string(),
        };
        self.by_copies(Some(Fallback { from: "af_xdp", to: "copy ring", reason }))
    }

    fn by_copies(&self, fallback: Option<Fallback>) -> Result<Port> {
        let mut fallbacks = self.fallbacks.clone();
        fallbacks.extend(fallback);
        if self.stamp == Stamp::Driver {
            fallbacks.push(hardware::fallback("a copy has the time at which it was made".into()));
        }
        let job = Job {
            name: self.name,
            interface: self.interface,
            resident: &self.resident,
            filter: self.filter.as_ref(),
            action: Action::Take,
            places: if self.filter.is_some() { FILTERED } else { WHOLE },
            queues: self.queues.clone(),
            watch: &self.watch,
            size: Size {
                slots: self.config.slots,
                snaplen: self.config.snaplen,
                cells: self.config.cells,
            },
            stamped: self.stamp != Stamp::None,
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

fn who(owner: &Owner) -> String {
    format!("{} (process {})", owner.command, owner.pid)
}
