//! Who has everything that comes to a queue: of two, one would get nothing. So who comes second is
//! refused, and of two that come at the same moment each that sees the other gives way.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::port::PortName;
use crate::xdp::resident::{Action, Claimed, Owner, Resident, WHOLE};

/// Everything that comes to some queues of an interface.
#[derive(Clone, Debug)]
pub(super) struct Whole<'a> {
    /// The port that is to have it.
    pub name: &'a PortName,
    pub resident: &'a Resident,
    pub queues: RangeInclusive<u32>,
}

impl Whole<'_> {
    /// Refuses it to who comes second.
    pub fn refuse_second(&self) -> Result<()> {
        match self.owned()?.first() {
            Some(first) => Err(self.second_to(&first.owner)),
            None => Ok(()),
        }
    }

    /// Gives way to another process that came at the same moment, once ours stands among the claims.
    pub fn give_way(&self) -> Result<()> {
        let (ours, theirs): (Vec<_>, Vec<_>) = {
            let owned = self.owned()?.into_iter();
            owned.partition(|claim| claim.owner.pid == std::process::id())
        };
        let Some(ours) = ours.first() else { return Ok(()) };
        // Of two takers the first has the first place. Who forwards has its place wherever others are.
        let was_first = |it: &&Claimed| it.place < ours.place || it.owner.action == Action::Forward;
        match theirs.iter().find(was_first) {
            Some(first) => Err(self.second_to(&first.owner)),
            None => Ok(()),
        }
    }

    /// Those that have it. Who only drops what others leave is in nobody's way.
    fn owned(&self) -> Result<Vec<Claimed>> {
        let mut claims = self.resident.claims()?;
        claims.retain(|Claimed { owner, place, .. }| {
            let takes = matches!(owner.action, Action::Take | Action::Forward);
            owner.filter.is_empty()
                && (takes || WHOLE.contains(place))
                && overlap(owner, &self.queues)
        });
        Ok(claims)
    }

    fn second_to(&self, owner: &Owner) -> Error {
        self.name.error(format!(
            "{} takes all packets of that queue already: a filter says which of them are to come \
             here (`sluice claims {}` shows more)",
            who(owner),
            self.name.name()
        ))
    }
}

/// Whether some queues are among an owner's.
pub(super) fn overlap(owner: &Owner, queues: &RangeInclusive<u32>) -> bool {
    let end = owner.first_queue.saturating_add(owner.queues);
    owner.first_queue <= *queues.end() && *queues.start() < end
}

pub(super) fn who(owner: &Owner) -> String {
    format!("{} (process {})", owner.command, owner.pid)
}
