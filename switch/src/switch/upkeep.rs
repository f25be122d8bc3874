//! Upkeep of a switch's ports: waiting for packets, interfaces that go down or are removed, the end.

use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::link::LinkState;
use sluicegate::port::{Queue, wait_any};
use sluicegate::ring::{Readiness, Wait};

use super::{Event, Switch};
use crate::member::{Member, MemberState};
use crate::table::PortNumber;

/// Checks of the ports for each complete sweep of the table.
const SWEEPS: usize = 64;
/// While a port has packets that have not left, nobody sleeps for longer.
const UNSENT: Duration = Duration::from_millis(1);
/// A port that leaves gets so long to send what it was given.
const LAST_SENT: Duration = Duration::from_millis(1);
/// When the switch ends, all of them together get so long.
const LAST_OF_ALL: Duration = Duration::from_secs(1);

impl Switch {
    /// Waits until something comes, for `timeout` at most.
    pub fn wait(&mut self, wait: Wait, timeout: Duration) {
        let unsent = self.members.iter().flatten().any(|member| member.is_sending());
        let timeout = if unsent { timeout.min(UNSENT) } else { timeout };
        let waiting = self.members.iter_mut().flatten().filter(|member| member.receives);
        let mut queues: Vec<&mut Queue> = waiting.flat_map(|member| &mut member.queues).collect();
        if queues.is_empty() {
            std::thread::sleep(timeout);
            return;
        }
        match wait_any(&mut queues, wait, timeout) {
            Ok((_, Readiness::Ready | Readiness::TimedOut)) => {}
            Ok((_, Readiness::Down)) => self.check(),
            Err(_) => {
                self.check();
                self.find_failed();
            }
        }
    }

    /// Takes out the port that waiting failed for, if a look at its interface has not done so.
    #[cold]
    fn find_failed(&mut self) {
        for number in 0..self.members.len() {
            let Some(member) = self.members[number].as_deref_mut() else { continue };
            let mut queues = member.queues.iter_mut().filter(|_| member.receives);
            let failed = queues.find_map(|queue| queue.wait_rx(Wait::Sleep, Duration::ZERO).err());
            if let Some(error) = failed {
                self.fail(number as PortNumber, error);
            }
        }
    }

    /// Looks at what has become of each port, and at a part of the table.
    #[cold]
    pub(super) fn check(&mut self) {
        self.checked = Instant::now();
        self.table.sweep(self.now(), self.table.buckets() / SWEEPS + 1);
        for number in 0..self.members.len() {
            if let Err(error) = self.look_at(number as PortNumber) {
                self.fail(number as PortNumber, error);
            } else if let Some(member) = self.members[number].as_deref_mut() {
                // A file hands on what it holds back.
                member.unsent |= member.takes();
            }
        }
        // Where the others always have something, nobody else comes to it.
        self.part();
    }

    /// Looks at what has become of a port. The hosts behind one that went down may be elsewhere now.
    fn look_at(&mut self, number: PortNumber) -> Result<()> {
        let Some(member) = self.members[usize::from(number)].as_deref_mut() else { return Ok(()) };
        let was_down = member.down;
        look(member, &mut self.events)?;
        if member.down && !was_down {
            self.table.flush(Some(number));
        }
        Ok(())
    }

    /// Lets go of ports that were taken out, when their last packets have come.
    pub fn part(&mut self) {
        let now = Instant::now();
        for number in 0..self.members.len() {
            let left = self.members[number].as_mut().is_some_and(|member| member.has_left(now));
            if left && let Some(member) = self.members[number].take() {
                self.end(*member, LAST_SENT);
            }
        }
    }

    /// Ends the switch: nothing more is let in, what has come is forwarded, and what was given to
    /// ports is sent. The ports as they ended.
    pub fn finish(mut self) -> (Vec<MemberState>, Vec<Event>) {
        let now = Instant::now();
        for number in 0..self.members.len() {
            let Some(member) = self.members[number].as_mut() else { continue };
            // Not `leaving`: it still takes what the others bring.
            if let Err(error) = member.queues.iter_mut().try_for_each(Queue::stop_rx) {
                self.fail(number as PortNumber, error);
            }
        }
        let end = now + Duration::from_secs(3);
        loop {
            let came = self.turn();
            let mut members = self.members.iter_mut().flatten();
            let done = came == 0
                && members.all(|member| {
                    !member.receives || member.queues.iter_mut().all(Queue::is_finished)
                });
            if done || Instant::now() >= end {
                break;
            }
            if came == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.send_last(Instant::now() + LAST_OF_ALL);
        (self.removed, self.events)
    }

    /// Ends all ports: each has sent what it was given by `end`, or it is lost.
    fn send_last(&mut self, end: Instant) {
        while self.members.iter().flatten().any(|member| member.is_sending())
            && Instant::now() < end
        {
            std::thread::sleep(UNSENT);
            self.send(|member| member.unsent);
        }
        for number in 0..self.members.len() {
            if let Some(member) = self.members[number].take() {
                self.end(*member, end.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Takes a port out at once, unless it is but down.
    #[cold]
    pub(super) fn fail(&mut self, number: PortNumber, error: Error) {
        let looked = self.look_at(number);
        let is_down = self.members[usize::from(number)].as_ref().is_some_and(|member| member.down);
        if looked.is_ok() && is_down {
            return;
        }
        self.table.forget(number);
        if let Some(member) = self.members[usize::from(number)].take() {
            let name = member.name.clone();
            self.end(*member, Duration::ZERO);
            if let Some(state) = self.removed.last_mut() {
                state.failed = true;
            }
            self.events.push(Event::Failed(name, error));
        }
    }

    /// Sends what a port was given, and writes down how it ended.
    fn end(&mut self, mut member: Member, patience: Duration) {
        for &sender in &member.senders {
            // What it has not sent it counts as unsent.
            let _ = member.queues[sender].close_tx_within(patience);
        }
        let state = state(&mut member, 0);
        self.removed.push(state);
        drop(member);
        self.count_watchers();
    }
}

/// Looks at what has become of a port.
fn look(member: &mut Member, events: &mut Vec<Event>) -> Result<()> {
    let up = member.presence.as_ref().map(LinkState::look).transpose()?;
    let down = up.is_some_and(|state| !state.up);
    for queue in member.queues.iter_mut().filter(|_| !down) {
        queue.check()?;
        while let Some(notice) = queue.take_notice() {
            events.push(Event::Notice(member.name.clone(), notice));
        }
    }
    if std::mem::replace(&mut member.down, down) != down {
        let name = member.name.clone();
        events.push(if down { Event::Down(name) } else { Event::Up(name) });
    }
    Ok(())
}

pub(super) fn state(member: &mut Member, learned: u32) -> MemberState {
    MemberState {
        name: member.name.clone(),
        id: member.id,
        counts: member.counts,
        stats: member.stats(),
        learned,
        watchers: member.watchers.len(),
        watchers_lost: member.watchers.iter().map(|(_, writer)| writer.lost()).sum(),
        down: member.down,
        failed: false,
    }
}
