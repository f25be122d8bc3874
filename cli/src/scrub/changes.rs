//! Changes of the running policy. A thread makes the tables, so that the socket stays responsive. Changes that arrive
//! meanwhile wait, and are then made together.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::errno::Errno;
use serde_json::{Value, json};
use sluicegate::error::{Error, Result};
use sluicegate_scrub::policy::{PolicyError, read_networks};
use sluicegate_scrub::scrubber::{Candidate, EditedPolicy, Removed, TimedFrame, Until};

use super::read_policy;
use super::run::check_session_set;
use crate::notice::failure;

/// Answers that are kept until their clients ask for them.
const MAX_ANSWERS: usize = 1024;
/// Changes that wait.
const MAX_WAITING: usize = 1024;

/// A change.
#[derive(Clone, Debug)]
pub enum Change {
    /// Replaces the policy.
    Apply {
        path: PathBuf,
        confirm: Option<Duration>,
    },
    /// Returns to an earlier policy, which needs no check, with what was removed since.
    Return {
        policy: Arc<EditedPolicy>,
        removed: Arc<Removed>,
    },
    AddEntries {
        set: String,
        networks: Vec<IpNet>,
        until: Until,
    },
    LoadEntries {
        set: String,
        path: PathBuf,
        until: Until,
    },
    ReplaceEntries {
        set: String,
        path: PathBuf,
    },
    DeleteEntries {
        set: String,
        networks: Vec<IpNet>,
    },
    AddRule {
        text: String,
        first: bool,
        until: Until,
    },
    DeleteRule {
        name: String,
    },
    /// Ends the set of the session, because the policy was confirmed.
    EndSession,
}

/// A change and its number.
type NumberedChange = (u64, Change);

/// The number of the service's own change.
pub const SERVICE_CHANGE: u64 = 0;

/// A policy whose tables exist.
pub struct NextPolicy {
    pub edited: EditedPolicy,
    /// When the first of what was added ends.
    pub next_end: Option<Instant>,
    /// Additions that did not fit.
    pub removed: Removed,
    pub candidate: Candidate,
}

/// The thread's result.
#[derive(Default)]
pub struct BuildResult {
    /// None if no change succeeded and nothing has ended.
    pub next: Option<NextPolicy>,
    /// The changes that succeeded, with their answers.
    pub changes: Vec<(NumberedChange, Value)>,
    pub refused: Vec<(u64, Error)>,
    /// The failure to remove entries that have expired.
    pub expiry: Option<Error>,
}

/// The thread, and the changes that it makes.
struct Build {
    changes: Vec<NumberedChange>,
    thread: io::Result<JoinHandle<BuildResult>>,
}

/// Changes to make, being made, and answered.
#[derive(Default)]
pub struct Changes {
    last: u64,
    waiting: VecDeque<NumberedChange>,
    build: Option<Build>,
    answers: VecDeque<(u64, Value)>,
}

impl Changes {
    /// Adds a change. Returns its number.
    ///
    /// # Errors
    /// Too many wait.
    pub fn push(&mut self, change: Change) -> Result<u64> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(Error::Usage("too many changes wait; ask again later".into()));
        }
        self.last += 1;
        self.waiting.push_back((self.last, change));
        Ok(self.last)
    }

    /// Adds a change of the service before the others.
    pub fn push_own(&mut self, change: Change) {
        self.waiting.push_front((SERVICE_CHANGE, change));
    }

    /// Returns true if nothing is being made.
    pub fn is_idle(&self) -> bool {
        self.build.is_none()
    }

    /// Returns true if changes wait.
    pub fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts to make the waiting changes, and to remove what has ended.
    pub fn start(&mut self, live: &Arc<EditedPolicy>, recent: Vec<TimedFrame>) {
        // A policy is made alone: the one to return to is then the one before it.
        let replaces = |(_, it): &NumberedChange| it.replaces_policy();
        let count =
            self.waiting.iter().position(replaces).map_or(self.waiting.len(), |it| it.max(1));
        let changes: Vec<_> = self.waiting.drain(..count).collect();
        let (live, to_make) = (Arc::clone(live), changes.clone());
        let thread = std::thread::Builder::new().name("tables".into());
        let thread = thread.spawn(move || make(&live, to_make, &recent));
        self.build = Some(Build { changes, thread });
    }

    /// Makes room for a return to an earlier policy: the waiting policies are refused. The thread is left behind, because
    /// it may wait for a file for ever; the changes that it makes wait again, before the others.
    pub fn give_way(&mut self) {
        let build = self.build.take().map(|it| it.changes);
        let changes = build.into_iter().flatten().filter(|it| it.0 != SERVICE_CHANGE);
        let waiting = std::mem::take(&mut self.waiting);
        for (number, change) in changes.chain(waiting) {
            match change {
                Change::Apply { .. } => self.answer(number, failure(&overtaken())),
                change => self.waiting.push_back((number, change)),
            }
        }
    }

    /// Returns what was made, once it is complete. Then the waiting changes can start.
    pub fn take(&mut self) -> Option<BuildResult> {
        let is_finished = |it: &mut Build| it.thread.as_ref().map_or(true, JoinHandle::is_finished);
        let Build { changes, thread } = self.build.take_if(is_finished)?;
        let fail = |error: &dyn Fn() -> Error| {
            let refused: Vec<_> = changes.iter().map(|it| (it.0, error())).collect();
            let expiry = refused.is_empty().then(&error);
            BuildResult { refused, expiry, ..BuildResult::default() }
        };
        Some(match thread.map(JoinHandle::join) {
            Ok(Ok(made)) => made,
            Ok(Err(_)) => fail(&|| {
                Error::system("make", "the tables", io::Error::other("the thread panicked"))
                    .remedy("report this with the policy and the change")
            }),
            Err(error) => fail(&|| {
                let code = error.raw_os_error().unwrap_or(Errno::EAGAIN as i32);
                Error::start("the thread for tables", io::Error::from_raw_os_error(code))
            }),
        })
    }

    /// Keeps the answer to a change.
    pub fn answer(&mut self, number: u64, answer: Value) {
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((number, answer));
    }

    /// Returns the answer to a change; `{"change": …}` as long as it is being made.
    pub fn find(&self, number: u64) -> Result<Value> {
        if let Some((_, answer)) = self.answers.iter().find(|it| it.0 == number) {
            return Ok(answer.clone());
        }
        let built = self.build.iter().flat_map(|it| &it.changes);
        match number != SERVICE_CHANGE && built.chain(&self.waiting).any(|it| it.0 == number) {
            true => Ok(json!({"change": number})),
            false => Err(Error::Usage(format!(
                "no change {number}: its number is wrong, or its answer is older than the last {MAX_ANSWERS}, which are \
                 kept; send the request again"
            ))),
        }
    }
}

/// Returns the error of a policy whose earlier one was not confirmed.
fn overtaken() -> Error {
    let problem = "the present policy was not confirmed meanwhile, and the earlier one returns; apply it again";
    Error::Usage(problem.into())
}

/// Makes changes, and removes what has ended.
fn make(live: &EditedPolicy, changes: Vec<NumberedChange>, recent: &[TimedFrame]) -> BuildResult {
    let mut made = make_changes(live, changes, recent);
    let has_ended = live.next_end().is_some_and(|end| end <= Instant::now());
    if made.next.is_none() && has_ended {
        match next(live.clone(), Removed::default(), None) {
            Ok(next) => made.next = Some(next),
            Err(error) => made.expiry = Some(error),
        }
    }
    made
}

/// Makes changes together; if that fails, one after the other, so that only those at fault are refused.
fn make_changes(
    live: &EditedPolicy,
    changes: Vec<NumberedChange>,
    recent: &[TimedFrame],
) -> BuildResult {
    let mut made = BuildResult::default();
    let (mut edited, mut done, mut is_checked) = (live.clone(), Vec::new(), false);
    let mut removed = Removed::default();
    for (number, change) in &changes {
        match change.make(&mut edited, &mut removed) {
            Ok(answer) => {
                is_checked |= change.is_checked();
                done.push(((*number, change.clone()), answer));
            }
            Err(error) => made.refused.push((*number, error)),
        }
    }
    if done.is_empty() {
        return made;
    }
    match next(edited, removed, is_checked.then_some(recent)) {
        Ok(next) => (made.next, made.changes) = (Some(next), done),
        Err(error) if done.len() == 1 => made.refused.push((done[0].0.0, error)),
        Err(_) => {
            for (change, _) in done {
                let live = made.next.as_ref().map_or(live, |it| &it.edited);
                let one = make_changes(live, vec![change], recent);
                made.next = one.next.or(made.next);
                made.changes.extend(one.changes);
                made.refused.extend(one.refused);
            }
        }
    }
    made
}

/// Makes a policy's tables, and checks them.
fn next(
    mut edited: EditedPolicy,
    removed: Removed,
    check: Option<&[TimedFrame]>,
) -> Result<NextPolicy> {
    edited.expire(Instant::now());
    let candidate = Candidate::build(edited.policy())?;
    check.map_or(Ok(()), |recent| candidate.check(recent))?;
    Ok(NextPolicy { next_end: edited.next_end(), edited, removed, candidate })
}

impl Change {
    /// Returns true if another policy takes the place of the present one.
    fn replaces_policy(&self) -> bool {
        matches!(self, Self::Apply { .. } | Self::Return { .. })
    }

    /// Returns true if the tables are compared before they go live. They must not be refused when the scrubber returns
    /// to an earlier policy.
    fn is_checked(&self) -> bool {
        !matches!(self, Self::Return { .. } | Self::EndSession)
    }

    /// Makes the change. Returns the answer, and sets what a policy removed.
    fn make(&self, edited: &mut EditedPolicy, removed: &mut Removed) -> Result<Value> {
        let usage = |error: PolicyError| Error::Usage(error.to_string());
        match self {
            Self::Apply { path, confirm } => {
                let policy = read_policy(path)?;
                if confirm.is_none() {
                    edited.set_session(None);
                } else if edited.session().is_some() {
                    check_session_set(&policy.sets)?;
                }
                *removed = edited.replace(policy);
                let mut answer = json!({"applied": path, "removed": removed.texts()});
                if let Some(time) = confirm {
                    answer["confirm_within_s"] = time.as_secs_f64().into();
                }
                Ok(answer)
            }
            Self::Return { policy, removed: since } => {
                *removed = edited.return_to(policy, since, Instant::now());
                Ok(Value::Null)
            }
            Self::AddEntries { set, networks, until } => {
                edited.add(set, networks, *until)?;
                Ok(json!({"set": set, "added": networks.len()}))
            }
            Self::LoadEntries { set, path, until } => {
                let networks = read_networks(path).map_err(usage)?;
                edited.add(set, &networks, *until)?;
                Ok(json!({"set": set, "added": networks.len()}))
            }
            Self::ReplaceEntries { set, path } => {
                let networks = read_networks(path).map_err(usage)?;
                let count = networks.len();
                edited.replace_entries(set, networks)?;
                Ok(json!({"set": set, "networks": count}))
            }
            Self::DeleteEntries { set, networks } => {
                edited.delete(set, networks)?;
                Ok(json!({"set": set, "deleted": networks.len()}))
            }
            Self::AddRule { text, first, until } => {
                Ok(json!({"rule": edited.add_rule(text, *first, *until)?}))
            }
            Self::DeleteRule { name } => {
                edited.delete_rule(name)?;
                Ok(json!({"rule": name}))
            }
            Self::EndSession => {
                edited.set_session(None);
                Ok(Value::Null)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_scrub::policy::Policy;

    use super::*;

    fn made(changes: &mut Changes) -> BuildResult {
        loop {
            if let Some(made) = changes.take() {
                return made;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_refuses_the_changes_that_were_made() {
        let thread = std::thread::Builder::new().spawn(|| panic!("a test's"));
        let mut changes = Changes::default();
        let two = [1, 2].map(|it| (it, Change::EndSession)).to_vec();
        changes.build = Some(Build { changes: two, thread });
        let refused = made(&mut changes).refused;
        assert_eq!(refused.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2]);
        assert!(refused[0].1.to_string().contains("the thread panicked"), "{}", refused[0].1);
        assert!(changes.is_idle());
    }

    #[test]
    fn a_policy_is_made_alone() {
        let delete = || Change::DeleteRule { name: "none".into() };
        let mut changes = Changes::default();
        for change in
            [delete(), delete(), Change::Apply { path: "/nowhere".into(), confirm: None }, delete()]
        {
            changes.push(change).expect("room");
        }
        let live = Arc::new(EditedPolicy::default());
        for numbers in [&[1, 2][..], &[3], &[4]] {
            changes.start(&live, Vec::new());
            let refused = made(&mut changes).refused;
            assert_eq!(refused.iter().map(|it| it.0).collect::<Vec<_>>(), numbers);
        }
        assert!(!changes.are_waiting());
    }

    #[test]
    fn what_has_ended_is_removed_although_a_change_is_refused() {
        let policy = "[set.bad]\nnetworks = []\n";
        let mut live = EditedPolicy::new(Policy::parse(policy).expect("valid"));
        live.add("bad", &["192.0.2.1/32".parse().expect("a network")], Some(Instant::now()))
            .expect("a set");
        let change = Change::DeleteRule { name: "none".into() };
        let made = make(&live, vec![(1, change)], &[]);
        assert_eq!(made.refused.len(), 1);
        assert_eq!(made.next.expect("the entry has ended").edited.added("bad").len(), 0);
    }

    #[test]
    fn a_return_waits_for_no_thread_and_refuses_policies() {
        let mut changes = Changes::default();
        // Such as a file of a server that the policy cut off.
        let (_end, never) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().spawn(move || {
            let _ = never.recv();
            BuildResult::default()
        });
        let delete = || Change::DeleteRule { name: "none".into() };
        let apply = || Change::Apply { path: "/nowhere".into(), confirm: None };
        let mut push = |change| changes.push(change).expect("room");
        let building = [delete(), apply()].map(|it| (push(it.clone()), it)).to_vec();
        let applied = push(apply());
        push(delete());
        changes.waiting.drain(..2);
        changes.build = Some(Build { changes: building, thread });
        assert!(changes.take().is_none());
        changes.give_way();
        assert!(changes.is_idle());
        for number in [2, applied] {
            let answer = changes.find(number).expect("it was answered").to_string();
            assert!(answer.contains("not confirmed meanwhile"), "{answer}");
        }
        assert_eq!(changes.waiting.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 4]);
    }

    #[test]
    fn a_change_beyond_those_that_may_wait_is_refused() {
        let mut changes = Changes::default();
        let push = |changes: &mut Changes| changes.push(Change::DeleteRule { name: "none".into() });
        for number in 1..=MAX_WAITING as u64 {
            assert_eq!(push(&mut changes).expect("room"), number);
        }
        let error = push(&mut changes).expect_err("no room").to_string();
        assert_eq!(error, "too many changes wait; ask again later");
        for number in [SERVICE_CHANGE, MAX_WAITING as u64 + 1] {
            changes.find(number).expect_err("no change has it");
        }
        changes.find(1).expect("it waits");
    }

    #[test]
    fn a_change_without_a_kept_answer_is_refused() {
        let mut changes = Changes::default();
        // They are not answered in order: the oldest number stays.
        for number in (2..=MAX_ANSWERS as u64 + 1).chain([1]) {
            changes.answer(number, Value::Null);
        }
        changes.find(2).expect_err("its answer is not kept");
        for number in [1, 3] {
            assert_eq!(changes.find(number).expect("an answer"), Value::Null);
        }
    }

    #[test]
    fn of_changes_that_fail_together_each_is_made_alone() {
        // Neither has tables.
        let ports: Vec<_> = (0..65).map(|it| it * 2).collect();
        let rule = |name: &str| {
            let text = format!(
                "name = '{name}'\nmatch = {{ sport = {ports:?}, dport = {ports:?} }}\naction = 'drop'"
            );
            Change::AddRule { text, first: false, until: None }
        };
        let changes = vec![(1, rule("a")), (2, rule("b"))];
        let refused = make(&EditedPolicy::default(), changes, &[]).refused;
        assert_eq!(refused.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2]);
    }
}
