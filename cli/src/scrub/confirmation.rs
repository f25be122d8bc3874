//! The confirmation of policies: until when one is unconfirmed, and the one to return to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::error::Error;
use sluicegate_scrub::scrubber::{EditedPolicy, Removed};

use super::changes::Change;
use super::run::needs_confirmation;

/// The confirmation of the present policy.
#[derive(Default)]
pub struct Confirmation {
    /// The interface by which a wrong policy may cut the user off.
    guarded: Option<String>,
    /// The present policy, if it is not confirmed.
    unconfirmed: Option<Unconfirmed>,
}

struct Unconfirmed {
    deadline: Instant,
    /// The deadline has passed.
    is_overdue: bool,
    /// Without a policy to return to, the scrubber stops.
    earlier: Option<Earlier>,
}

/// The last confirmed policy.
pub struct Earlier {
    pub policy: Arc<EditedPolicy>,
    pub path: PathBuf,
    /// Additions that later policies removed.
    pub removed: Arc<Removed>,
}

impl Confirmation {
    /// Requires a confirmation of each policy, because a wrong one may cut the user off this interface.
    pub fn guard(&mut self, interface: Option<String>) {
        self.guarded = interface;
    }

    /// Requires a confirmation of the first policy within this time.
    pub fn require_within(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        self.unconfirmed = Some(Unconfirmed { deadline, is_overdue: false, earlier: None });
    }

    /// Returns true if the present policy is not confirmed.
    pub fn is_missing(&self) -> bool {
        self.unconfirmed.is_some()
    }

    /// Returns true once the time to confirm is over, until [`take`](Self::take).
    pub fn is_overdue(&self) -> bool {
        self.unconfirmed.as_ref().is_some_and(|it| it.is_overdue)
    }

    /// Ends the time to confirm at its deadline. Returns true when it ends.
    pub fn expire(&mut self, now: Instant) -> bool {
        let ending = self.unconfirmed.as_mut().filter(|it| !it.is_overdue && now >= it.deadline);
        ending.map(|it| it.is_overdue = true).is_some()
    }

    /// Returns the time left to confirm. None if it is confirmed, or the time is over.
    pub fn left(&self) -> Option<Duration> {
        let unconfirmed = self.unconfirmed.as_ref().filter(|it| !it.is_overdue)?;
        Some(unconfirmed.deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns the policy to return to.
    pub fn earlier(&self) -> Option<&Earlier> {
        self.unconfirmed.as_ref()?.earlier.as_ref()
    }

    /// Takes the policy to return to, because the present one was confirmed or does not stay. `Some(None)`: the first policy
    /// was not confirmed.
    pub fn take(&mut self) -> Option<Option<Earlier>> {
        self.unconfirmed.take().map(|it| it.earlier)
    }

    /// Returns the change that returns to the earlier policy, once the time to confirm is over.
    pub fn to_return(&self) -> Option<Change> {
        let Earlier { policy, removed, .. } = self.earlier().filter(|_| self.is_overdue())?;
        Some(Change::Return { policy: Arc::clone(policy), removed: Arc::clone(removed) })
    }

    /// Returns the error of a policy that must not be applied now.
    pub fn refusal(&self, change: &Change) -> Option<Error> {
        let Change::Apply { confirm, .. } = change else { return None };
        let problem = match &self.guarded {
            _ if confirm.is_some() => return None,
            _ if self.is_missing() => {
                "the present policy is not confirmed; run `sluice scrub confirm` first, or add --confirm 60s".into()
            }
            Some(name) => needs_confirmation(name),
            None => return None,
        };
        Some(Error::Usage(problem))
    }

    /// Records that a policy was applied after an earlier one, and is to be confirmed within this time.
    pub fn applied(&mut self, earlier: Earlier, time: Duration) {
        let deadline = Instant::now() + time;
        match &mut self.unconfirmed {
            // A second unconfirmed policy returns to the last confirmed one, or stops if there is none.
            Some(it) => {
                it.deadline = deadline;
                if let Some(confirmed) = &mut it.earlier {
                    let removed = Arc::unwrap_or_clone(earlier.removed);
                    Arc::make_mut(&mut confirmed.removed).extend(removed);
                }
            }
            None => {
                let earlier = Some(earlier);
                self.unconfirmed = Some(Unconfirmed { deadline, is_overdue: false, earlier });
            }
        }
    }
}
