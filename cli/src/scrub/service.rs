//! A running scrubber behind its control socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate::control::{Answer, Service};
use sluicegate::error::{Error, Result};
use sluicegate_scrub::scrubber::{EditedPolicy, Removed, Report, Scrubber};

use super::changes::{BuildResult, Change, Changes, SERVICE_CHANGE};
use super::confirmation::{Confirmation, Earlier};
use super::control::Request;
use super::names_file::NamesFile;
use super::report::{self, State};
use super::subscribers::Subscribers;
use super::{rules, sets};
use crate::notice::{answer, failure, try_say};

/// Time between two readings of the counters, from which rates are computed.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks of the attachment.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a failed change is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A running scrubber.
pub struct ScrubService {
    scrubber: Scrubber,
    /// The present policy, as its file and the changes made it.
    edited: Arc<EditedPolicy>,
    /// When the first of what was added ends.
    next_end: Option<Instant>,
    /// When a failed change of the service, or the removal of what has ended, is tried again.
    next_try: Instant,
    /// The failure was printed.
    has_failed: bool,
    changes: Changes,
    subscribers: Subscribers,
    interfaces: Vec<String>,
    confirmation: Confirmation,
    /// The mode in which the program was to be attached.
    attach: &'static str,
    path: PathBuf,
    names: NamesFile,
    start: Instant,
    /// The last two readings.
    samples: [(Instant, Report); 2],
    next_check: Instant,
    done: bool,
}

/// Frees a policy: of a million networks, this takes too long for the thread of the socket.
fn drop_by_thread(policy: impl Send + 'static) {
    let _ = std::thread::Builder::new().spawn(move || drop(policy));
}

/// Prints what was added and does not fit the policy that returns.
fn say_removed(removed: &Removed) {
    for text in removed.texts() {
        try_say(format_args!("removed: {text}"));
    }
}

impl ScrubService {
    /// Serves a scrubber with the policy of this file.
    pub fn new(
        mut scrubber: Scrubber,
        edited: EditedPolicy,
        interfaces: Vec<String>,
        attach: &'static str,
        path: PathBuf,
        names: NamesFile,
    ) -> Self {
        let now = Instant::now();
        names.update(&scrubber);
        let subscribers = Subscribers::begin(&mut scrubber);
        let sample = || (now, scrubber.report());
        let samples = [sample(), sample()];
        Self {
            scrubber,
            edited: Arc::new(edited),
            next_end: None,
            next_try: now,
            has_failed: false,
            changes: Changes::default(),
            subscribers,
            interfaces,
            confirmation: Confirmation::default(),
            attach,
            path,
            names,
            start: now,
            samples,
            next_check: now,
            done: false,
        }
    }

    /// Returns the confirmation of policies.
    pub fn confirmation(&mut self) -> &mut Confirmation {
        &mut self.confirmation
    }

    /// Keeps the program if that was asked for. An unconfirmed one must not outlive its command.
    ///
    /// # Errors
    /// It cannot be pinned.
    pub fn keep(&mut self) -> Result<()> {
        let mode = self.scrubber.mode();
        if mode.resident || mode.fail_closed { self.scrubber.keep() } else { Ok(()) }
    }

    /// Ends the run: a scrubber that is not resident, or was stopped by a request, ends with it.
    pub fn end(&mut self) {
        match self.confirmation.take() {
            Some(Some(Earlier { policy, path, removed }))
                if !self.done && self.scrubber.mode().resident =>
            {
                try_say(format_args!("not confirmed: back to {}", path.display()));
                let (mut edited, now) = ((*self.edited).clone(), Instant::now());
                say_removed(&edited.return_to(&policy, &removed, now));
                edited.expire(now);
                let _ = self.names.remove();
                if let Err(error) = self.scrubber.apply(edited.policy()).and_then(|()| self.keep())
                {
                    try_say(format_args!("the scrubber stops: {error}"));
                    self.done = true;
                }
                self.names.update(&self.scrubber);
                self.path = path;
            }
            Some(None) => self.done = true,
            _ => {}
        }
        if self.done || !self.scrubber.mode().resident {
            self.scrubber.release();
            // A file that is left is only of use to a program that was kept.
            let _ = self.names.remove();
        }
    }

    /// Returns true once the scrubber is to stop.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Does periodic work.
    ///
    /// # Errors
    /// The program was detached.
    pub fn tick(&mut self) -> Result<()> {
        let now = Instant::now();
        if now >= self.next_check {
            self.scrubber.check_attached().inspect_err(|_| {
                // A program that is attached nowhere cannot stay.
                self.done |= !self.scrubber.is_attached();
            })?;
            self.next_check = now + CHECK_INTERVAL;
        }
        if now >= self.samples[1].0 + SAMPLE_INTERVAL {
            self.samples.swap(0, 1);
            self.samples[1] = (now, self.scrubber.report());
        }
        if self.confirmation.expire(now) {
            self.return_to_earlier();
        }
        self.subscribers.read(&mut self.scrubber);
        self.make_changes(now);
        Ok(())
    }

    /// Starts to return to the earlier policy, because the present one was not confirmed.
    fn return_to_earlier(&mut self) {
        match self.confirmation.earlier() {
            Some(Earlier { path, .. }) => {
                try_say(format_args!("not confirmed: back to {}", path.display()));
                self.changes.give_way();
            }
            None => {
                try_say("not confirmed: the scrubber stops");
                self.done = true;
            }
        }
    }

    /// Installs what was made of changes, and starts to make the next ones.
    fn make_changes(&mut self, now: Instant) {
        if let Some(made) = self.changes.take() {
            self.install(made);
        }
        if !self.changes.is_idle() {
            return;
        }
        let tries = now >= self.next_try;
        if let Some(change) = self.own_change().filter(|_| tries || self.confirmation.is_overdue())
        {
            self.changes.push_own(change);
        }
        let has_ended = tries && self.next_end.is_some_and(|end| now >= end);
        if has_ended || self.changes.are_waiting() {
            self.changes.start(&self.edited, self.scrubber.recent_frames());
        }
    }

    /// Returns the change that a confirmation or its absence needs.
    fn own_change(&self) -> Option<Change> {
        match self.confirmation.is_missing() {
            true => self.confirmation.to_return(),
            false => self.edited.session().map(|_| Change::EndSession),
        }
    }

    /// Stops, because the earlier policy cannot return: the unconfirmed one must not stay.
    fn stop_without_earlier(&mut self, error: &Error) {
        try_say(format_args!(
            "the scrubber stops, because the earlier policy cannot return: {error}"
        ));
        self.done = true;
    }

    /// Tries the service's own work again later, and prints the first of its failures.
    fn try_again(&mut self, what: &str, error: &Error) {
        self.next_try = Instant::now() + RETRY_INTERVAL;
        if !std::mem::replace(&mut self.has_failed, true) {
            try_say(format_args!("{what}: {error}; trying again each second"));
        }
    }

    fn install(&mut self, made: BuildResult) {
        for (number, error) in made.refused {
            match number {
                SERVICE_CHANGE if self.confirmation.is_overdue() => {
                    self.stop_without_earlier(&error)
                }
                SERVICE_CHANGE => self.try_again("cannot end the pass of the SSH session", &error),
                _ => self.changes.answer(number, failure(&error)),
            }
        }
        if let Some(error) = &made.expiry {
            self.try_again("cannot remove expired entries", error);
        }
        let Some(next) = made.next else { return };
        // A policy is made alone.
        let refused = made.changes.first().and_then(|((number, change), _)| {
            self.confirmation.refusal(change).map(|error| (*number, failure(&error)))
        });
        if let Some((number, error)) = refused {
            self.changes.answer(number, error);
            return;
        }
        let is_tried =
            made.changes.iter().any(|it| matches!(it.0.1, Change::Apply { confirm: Some(_), .. }));
        if is_tried {
            self.scrubber.release();
        }
        // If the command is killed before the update below, the next run continues no counters by wrong names.
        let _ = self.names.remove();
        if let Err(error) = self.scrubber.install(next.candidate) {
            self.names.update(&self.scrubber);
            // The earlier policy stays.
            if is_tried && !self.confirmation.is_missing() {
                self.keep_again();
            }
            // Changes of clients do not postpone the service's own.
            if made.changes.iter().any(|it| matches!(it.0.1, Change::Return { .. })) {
                self.stop_without_earlier(&error);
            } else if made.changes.iter().all(|it| it.0.0 == SERVICE_CHANGE) {
                self.try_again("cannot replace the tables", &error);
            }
            for ((number, _), _) in made.changes.iter().filter(|it| it.0.0 != SERVICE_CHANGE) {
                self.changes.answer(*number, failure(&error));
            }
            return;
        }
        self.names.update(&self.scrubber);
        self.has_failed = false;
        self.next_end = next.next_end;
        let earlier = std::mem::replace(&mut self.edited, Arc::new(next.edited));
        // A policy is made alone.
        let mut removed = Some(next.removed);
        for ((number, change), answer) in made.changes {
            match change {
                Change::Apply { path, confirm } => {
                    let path = std::mem::replace(&mut self.path, path);
                    let policy = Arc::clone(&earlier);
                    let removed = Arc::new(removed.take().unwrap_or_default());
                    if let Some(time) = confirm {
                        self.confirmation.applied(Earlier { policy, path, removed }, time);
                    }
                }
                Change::Return { .. } => {
                    say_removed(&removed.take().unwrap_or_default());
                    if let Some(Some(Earlier { path, policy, removed })) = self.confirmation.take()
                    {
                        self.path = path;
                        drop_by_thread((policy, removed));
                    }
                    self.keep_again();
                }
                _ => {}
            }
            if number != SERVICE_CHANGE {
                self.changes.answer(number, answer);
            }
        }
        drop_by_thread(earlier);
    }

    /// Keeps the program as [`keep`](Self::keep) does, and prints a failure.
    fn keep_again(&mut self) {
        if let Err(error) = self.keep() {
            try_say(format_args!("the scrubber ends with its command: {error}"));
        }
    }

    /// Returns the state at this moment.
    pub fn state(&self) -> State<'_> {
        let [(before, earlier), (last, later)] = &self.samples;
        let recent = (last > before).then(|| (*last - *before, later.since(earlier)));
        State {
            interfaces: &self.interfaces,
            policy: &self.path,
            mode: self.scrubber.mode(),
            attach: self.attach,
            fallbacks: self.scrubber.fallbacks(),
            memory: self.scrubber.memory(),
            handed_over: self.scrubber.handed_over(),
            cookies: self.scrubber.cookies(),
            handover_obstacle: self.scrubber.handover_obstacle(),
            elapsed: self.start.elapsed(),
            report: self.scrubber.report(),
            recent,
            unconfirmed: self.confirmation.left(),
        }
    }

    fn change(&mut self, change: Change) -> Result<Value> {
        Ok(json!({"change": self.changes.push(change)?}))
    }

    fn act(&mut self, client: u64, request: Request) -> Result<Value> {
        match request {
            Request::Status { .. } => Ok(report::to_json(&self.state())),
            Request::Apply { policy: path, confirm, .. } => {
                self.change(Change::Apply { path, confirm })
            }
            Request::Sets(action) => match action {
                sets::SetsAction::List { set, .. } => sets::list(&self.edited, set.as_deref()),
                action => action.change().map_or(Ok(Value::Null), |it| self.change(it)),
            },
            Request::Rules(action) => match action.change() {
                Some(change) => self.change(change),
                None => Ok(rules::list(&self.edited)),
            },
            Request::Change { number } => self.changes.find(number),
            Request::Samples(choice) => {
                choice.rule.as_ref().map_or(Ok(()), |it| self.edited.find_rule(it).map(drop))?;
                Ok(self.subscribers.take(client, choice, &mut self.scrubber))
            }
            Request::Confirm { .. } => match self.confirmation.left() {
                Some(left) => {
                    self.keep()?;
                    drop_by_thread(self.confirmation.take());
                    let path = self.path.display().to_string();
                    Ok(json!({"confirmed": path, "left_s": left.as_secs_f64()}))
                }
                None if self.confirmation.is_missing() => Err(Error::Usage(
                    "the time to confirm is over, and the earlier policy returns; apply the new one again".into(),
                )),
                None => Err(Error::Usage(
                    "nothing to confirm; `sluice scrub apply FILE --confirm 60s` applies a policy that needs it".into(),
                )),
            },
            Request::Stop { .. } => {
                self.done = true;
                Ok(json!({"stopped": true}))
            }
        }
    }
}

impl Service for ScrubService {
    fn answer(&mut self, client: u64, request: &str) -> Answer {
        let understood = serde_json::from_str(request)
            .map_err(|error| Error::Usage(format!("invalid request: {error}")));
        // The service learns when a reader of samples leaves.
        let keep = matches!(understood, Ok(Request::Samples(_)));
        let value = understood.and_then(|request| self.act(client, request));
        Answer { keep, ..answer(value.unwrap_or_else(|error| failure(&error))) }
    }

    fn left(&mut self, client: u64) {
        self.subscribers.remove(client, &mut self.scrubber);
    }
}
