//! Claims by copying, for queues whose socket somebody else has: the kernel gives a queue to one
//! AF_XDP socket.

use super::Taking;
use crate::error::{Error, Result};
use crate::port::mirror::{Job, Size};
use crate::port::{Fallback, Port, Use};
use crate::xdp::resident::{Action, FILTERED, Owner, WHOLE};

impl Taking<'_> {
    /// Who else takes packets of our queues.
    pub(super) fn others(&self) -> Result<Vec<Owner>> {
        let ours = &self.queues;
        let claims = self.resident.claims()?.into_iter().map(|claim| claim.owner);
        let others = claims.filter(|owner| {
            let end = owner.first_queue.saturating_add(owner.queues);
            owner.action == Action::Take && owner.first_queue <= *ours.end() && *ours.start() < end
        });
        Ok(others.collect())
    }

    /// Of two that take everything from a queue, one would get nothing.
    pub(super) fn refuse_second_whole(&self, others: &[Owner]) -> Result<()> {
        let whole = others.iter().find(|owner| owner.filter.is_empty());
        match (&self.filter, whole) {
            (None, Some(owner)) if self.options.usage != Use::Send => {
                Err(self.name.error(format!(
                    "{} takes all packets of that queue already: a filter says which of them are \
                     to come here (`sluice claims {}` shows more)",
                    who(owner),
                    self.interface.name
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether copies are the way out: somebody has a queue, and what was asked for is packets,
    /// not a socket.
    pub(super) fn may_copy(&self, error: &Error) -> bool {
        let socket = matches!(self.name.option("mode"), Some("zero-copy" | "copy"));
        error.errno() == Some(libc::EBUSY) && self.options.usage == Use::Receive && !socket
    }

    /// Takes the packets by copying them; `error` is why no socket does.
    pub(super) fn by_copies(&self, others: &[Owner], error: &Error) -> Result<Port> {
        let reason = match others.first() {
            Some(owner) => format!("{} has the queue, and a queue has one socket", who(owner)),
            None => error.to_string(),
        };
        let mut fallbacks = self.fallbacks.clone();
        fallbacks.push(Fallback { from: "af_xdp", to: "copy ring", reason });
        let job = Job {
            name: self.name,
            interface: self.interface,
            resident: &self.resident,
            filter: self.filter.as_ref(),
            action: Action::Take,
            places: if self.filter.is_some() { FILTERED } else { WHOLE },
            queues: self.queues.clone(),
            size: Size { slots: self.config.slots, snaplen: None, cells: Some(self.config.frames) },
            stamped: self.config.stamped,
            promiscuous: None,
        };
        Ok(Port {
            name: self.name.clone(),
            method: "ring",
            mode: Some(super::mode_name(self.resident.mode())),
            fallbacks,
            queues: job.open(self.options)?,
        })
    }
}

fn who(owner: &Owner) -> String {
    format!("{} (process {})", owner.command, owner.pid)
}
