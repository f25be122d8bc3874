//! The switch: serves its ports in turn, a batch of each.
//!
//! ```text
//!   receive ring ── decide ──> decisions ── pass ──> transmit rings ── sync ──> the wire
//!                     |  ^
//!                     v  |
//!                     table
//! ```
//!
//! One thread owns the switch: there are no locks, and the packets of a flow keep their order. The
//! packet path allocates nothing. A port with a full transmit ring loses its own packets; the others
//! do not wait for it.

use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::link::LinkState;
use sluicegate::monitor::Writer;
use sluicegate::port::{Queue, wait_any};
use sluicegate::ring::{Direction, Readiness, Wait, now_ns};

use crate::forward::{self, Batch, Decider, Decision, Fate, Rules, form, tick};
use crate::mac_table::{MAX_PORTS, MacEntry, MacTable, MacTableConfig, PortNumber, Tick};
use crate::member::{Member, MemberConfig, MemberState, OpenedPort};
use crate::vlan::{Form, LAST};

/// Maximum of packets of a queue in one turn.
const BATCH: usize = 256;
/// The interval between two checks of the ports.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The configuration of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchConfig {
    /// The rules for packets.
    pub rules: Rules,
    /// The size of its table.
    pub table: MacTableConfig,
}

/// A change of a port's state.
#[derive(Debug)]
pub enum Event {
    /// The port failed, and was removed from the switch.
    Failed(String, Error),
    /// The interface went down. The port stays, and works again when the interface is up.
    Down(String),
    /// The interface is up again.
    Up(String),
    /// A notice from the port itself.
    Notice(String, String),
}

/// A learning Ethernet switch.
#[derive(Debug)]
pub struct Switch {
    members: Vec<Option<Box<Member>>>,
    table: MacTable,
    rules: Rules,
    decisions: Vec<Decision>,
    scratch: Vec<u8>,
    events: Vec<Event>,
    /// The final states of removed ports.
    removed: Vec<MemberState>,
    /// The packets that the switch may still receive.
    budget: u64,
    /// Batches so far.
    batches: u64,
    start: Instant,
    checked: Instant,
}

impl Switch {
    /// Creates a switch without ports.
    pub fn new(config: SwitchConfig) -> Self {
        let now = Instant::now();
        Self {
            members: Vec::new(),
            table: MacTable::new(config.table),
            rules: config.rules,
            decisions: Vec::with_capacity(BATCH),
            scratch: Vec::with_capacity(1 << 16),
            events: Vec::new(),
            removed: Vec::new(),
            budget: u64::MAX,
            batches: 0,
            start: now,
            checked: now,
        }
    }

    /// Receives at most `packets` more packets.
    pub fn limit(&mut self, packets: u64) {
        self.budget = packets;
    }

    /// Reports whether the limit of packets is reached.
    pub fn is_spent(&self) -> bool {
        self.budget == 0
    }

    /// Adds a port. Its [`MemberState`]s carry `id`.
    ///
    /// # Errors
    /// The name is taken; the switch is full; another port would send packets to the interface from which
    /// this port receives them, or the reverse.
    pub fn add(
        &mut self,
        name: &str,
        id: u64,
        opened: OpenedPort,
        config: MemberConfig,
    ) -> Result<()> {
        if self.number(name).is_some() {
            return Err(Error::Usage(format!(
                "the switch has a port '{name}' already: give this one another name, as in \
                 OTHER=PORT"
            )));
        }
        let member = Member::new((name.to_owned(), id), opened, config, Instant::now());
        for there in self.members.iter().flatten().filter(|there| there.leaving.is_none()) {
            if let Some(why) = there.echo(&member) {
                let there = &there.name;
                return Err(Error::Usage(format!(
                    "ports '{there}' and '{name}' are the same interface: {why}"
                )));
            }
        }
        let free = self.members.iter().position(Option::is_none);
        let place = free.unwrap_or(self.members.len());
        if place >= MAX_PORTS {
            return Err(Error::Usage(format!("a switch has {MAX_PORTS} ports at most")));
        }
        if place == self.members.len() {
            self.members.push(None);
        }
        self.members[place] = Some(Box::new(member));
        Ok(())
    }

    /// Removes a port. The switch still forwards packets that the port has received.
    ///
    /// # Errors
    /// There is no port of that name.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let number = self.known(name)?;
        self.table.forget(number);
        if let Some(member) = &mut self.members[usize::from(number)]
            && let Err(error) = member.stop_rx(Instant::now())
        {
            self.fail(number, error);
        }
        Ok(())
    }

    /// Adds a static entry: the port of an address.
    ///
    /// # Errors
    /// No such port; no room; a VLAN is missing in a switch with VLANs, or present in one without; the port is
    /// not a member of the VLAN.
    pub fn set_static(&mut self, vlan: u16, mac: u64, name: &str) -> Result<()> {
        let number = self.known(name)?;
        match self.rules.vlans {
            true if !(1..=LAST).contains(&vlan) => {
                return Err(Error::Usage(format!(
                    "a static entry in a switch with VLANs needs the VLAN of the address, from 1 to {LAST}"
                )));
            }
            false if vlan != 0 => {
                return Err(Error::Usage("the switch has no VLANs; omit the VLAN".into()));
            }
            _ => {}
        }
        let member = self.members.get(usize::from(number)).and_then(Option::as_deref);
        let vlans = member.filter(|_| self.rules.vlans).map(|member| &member.config.vlans);
        if let Some(vlans) = vlans.filter(|vlans| vlans.form(vlan, None).is_none()) {
            return Err(Error::Usage(format!(
                "{name} is not in VLAN {vlan}; its VLANs: {vlans}; use one of them, or a port of VLAN {vlan}"
            )));
        }
        match self.table.set_static(vlan, mac, number) {
            true => Ok(()),
            false => Err(Error::Usage(
                "no room for another static entry: they may take a quarter of the table, use a \
                 larger --table"
                    .into(),
            )),
        }
    }

    /// Removes an entry of the table, static or not. Returns false if there is none.
    pub fn forget(&mut self, vlan: u16, mac: u64) -> bool {
        self.table.remove(vlan, mac)
    }

    /// Removes the learned entries of one port or of all. Returns their number.
    ///
    /// # Errors
    /// No such port.
    pub fn flush(&mut self, name: Option<&str>) -> Result<usize> {
        let number = name.map(|name| self.known(name)).transpose()?;
        Ok(self.table.flush(number))
    }

    /// Returns entries of some buckets with the names of their ports, and the next bucket, if there is
    /// one.
    pub fn entries(&self, from: usize, buckets: usize) -> (Vec<(MacEntry, &str)>, Option<usize>) {
        let end = from.saturating_add(buckets);
        let entries = self.table.entries(from..end, self.now()).filter_map(|known| {
            let member = self.members.get(usize::from(known.port))?.as_deref()?;
            Some((known, member.name.as_str()))
        });
        (entries.collect(), (end < self.table.buckets()).then_some(end))
    }

    /// Returns the states of all ports.
    pub fn states(&mut self) -> Vec<MemberState> {
        let table = &self.table;
        let members = self.members.iter_mut().enumerate();
        let there = members.filter_map(|(number, member)| {
            let member = member.as_mut()?;
            let vlans = self.rules.vlans.then(|| member.config.vlans.clone());
            Some(MemberState { vlans, ..state(member, table.learned(number as PortNumber)) })
        });
        there.collect()
    }

    /// Returns the final states of removed ports.
    pub fn removed(&self) -> &[MemberState] {
        &self.removed
    }

    /// Copies a port's packets to a writer, until the port is removed or [`unwatch`](Self::unwatch) is called
    /// with this number.
    ///
    /// # Errors
    /// There is no port of that name; the number is in use.
    pub fn watch(&mut self, name: &str, number: u64, writer: Writer) -> Result<()> {
        let port = self.known(name)?;
        let mut watchers = self.members.iter().flatten().flat_map(|member| &member.watchers);
        if watchers.any(|(watcher, _)| *watcher == number) {
            return Err(Error::Usage(
                "this connection watches a port already: take another for each port".into(),
            ));
        }
        if let Some(member) = &mut self.members[usize::from(port)] {
            member.watchers.push((number, writer));
        }
        Ok(())
    }

    /// Ends the monitor of this number.
    pub fn unwatch(&mut self, number: u64) {
        for member in self.members.iter_mut().flatten() {
            member.watchers.retain(|(watcher, _)| *watcher != number);
        }
    }

    /// Takes the changes of the ports since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Serves one batch of each queue. Returns the number of packets received.
    pub fn run_once(&mut self) -> u64 {
        let now = Instant::now();
        let tick = tick(self.start, now);
        let is_watched = self.members.iter().flatten().any(|member| !member.watchers.is_empty());
        self.send(|member| member.unsent);
        let mut came = 0;
        for number in 0..self.members.len() {
            let Some(mut member) = self.members[number].take() else { continue };
            if let Some(storm) = &mut member.storm {
                storm.refill(now);
            }
            let (mut packets, mut failed) = (0, None);
            let queues = if member.receives { member.queues.len() } else { 0 };
            for queue in 0..queues {
                match self.serve(&mut member, number as PortNumber, queue, is_watched, tick) {
                    Ok(served) => packets += served,
                    Err(error) => failed = Some(error),
                }
            }
            self.members[number] = Some(member);
            if let Some(error) = failed {
                self.fail(number as PortNumber, error);
            }
            if packets > 0 {
                self.send(|member| member.given);
            }
            came += packets;
        }
        if is_watched {
            let members = self.members.iter_mut().flatten();
            members.flat_map(|m| &mut m.watchers).for_each(|(_, writer)| writer.publish());
        }
        if now.saturating_duration_since(self.checked) >= CHECK_INTERVAL {
            self.check();
        }
        came
    }

    /// Serves a batch of one queue. Its port is not among the members during this call.
    #[inline]
    fn serve(
        &mut self,
        from: &mut Member,
        number: PortNumber,
        queue: usize,
        is_watched: bool,
        now: Tick,
    ) -> Result<u64> {
        from.queues[queue].sync_rx()?;
        self.decide(from, number, queue, now);
        self.batches += 1;
        // A time for each batch, because an answer may arrive in the same round as its request.
        let now_ns = if is_watched && !self.decisions.is_empty() { now_ns() } else { 0 };
        let batch = Batch { queue, now_ns, number: self.batches };
        if !from.watchers.is_empty() {
            self.show(from, batch);
        }
        let mut at = 0;
        while let Some(&decision) = self.decisions.get(at) {
            let rest = &self.decisions[at..];
            let alike = rest.iter().take_while(|next| {
                (next.fate, next.vlan, next.tag) == (decision.fate, decision.vlan, decision.tag)
            });
            let run = &self.decisions[at..at + alike.count()];
            at += run.len();
            let members = &mut self.members;
            let source = &mut from.queues[queue];
            match decision.fate {
                Fate::To(port) => {
                    let place = &mut members[usize::from(port)];
                    let as_is = |to: &Member| {
                        form(self.rules, to, decision.vlan, decision.tag) == Some(Form::AsIs)
                    };
                    match place {
                        Some(to) if as_is(to) => forward::run(source, batch, to, run),
                        _ => {
                            let to = std::slice::from_mut(place);
                            flood_copy(self.rules, source, batch, to, run, &mut self.scratch);
                        }
                    }
                }
                Fate::Flood => {
                    let copies =
                        flood_copy(self.rules, source, batch, members, run, &mut self.scratch);
                    from.counts.copies += copies - run.len() as u64;
                }
                Fate::Nowhere | Fate::AfterEnd => {
                    let slots = run.iter().map(|decision| u32::from(decision.slots)).sum();
                    source.rx_mut().release(slots);
                }
            }
        }
        Ok(self.decisions.len() as u64)
    }

    /// Decides on a batch of received packets.
    #[inline]
    fn decide(&mut self, from: &mut Member, number: PortNumber, queue: usize, now: Tick) {
        let Self { members, table, rules, decisions, budget, scratch, .. } = self;
        decisions.clear();
        let mut decider = Decider { rules: *rules, table, members, now, scratch };
        // Separates the queues from the port, so that decisions may change its counters.
        let queues = std::mem::take(&mut from.queues);
        for packet in queues[queue].rx().packets().take(BATCH) {
            if *budget == 0 {
                from.counts.after_end += 1;
                let (slots, bytes) = (packet.slots() as u16, packet.meta().wire_bytes);
                let fate = Fate::AfterEnd;
                decisions.push(Decision { fate, slots, vlan: 0, tag: None, bytes });
                continue;
            }
            *budget -= 1;
            decisions.push(decider.decide(&packet, number, from));
        }
        from.queues = queues;
    }

    /// Copies a received batch to the monitors.
    #[cold]
    fn show(&self, from: &mut Member, batch: Batch) {
        let Member { queues, watchers, .. } = from;
        let packets = queues[batch.queue].rx().packets().zip(&self.decisions);
        for (packet, _) in packets.filter(|(_, decision)| decision.fate != Fate::AfterEnd) {
            for (_, writer) in watchers.iter_mut() {
                writer.offer(&packet, Direction::In, batch.now_ns);
            }
        }
    }

    /// Syncs these ports.
    #[inline]
    fn send(&mut self, which: impl Fn(&Member) -> bool) {
        self.each(|member| if which(member) && !member.down { member.flush() } else { Ok(()) });
    }

    /// Calls a function for each port, and removes those that fail.
    #[inline]
    fn each(&mut self, mut work: impl FnMut(&mut Member) -> Result<()>) {
        for number in 0..self.members.len() {
            let result = self.members[number].as_deref_mut().map_or(Ok(()), &mut work);
            if let Err(error) = result {
                self.fail(number as PortNumber, error);
            }
        }
    }

    fn number(&self, name: &str) -> Option<PortNumber> {
        let is = |member: &Option<Box<Member>>| {
            member.as_ref().is_some_and(|m| m.name == name && m.leaving.is_none())
        };
        self.members.iter().position(is).map(|number| number as PortNumber)
    }

    fn known(&self, name: &str) -> Result<PortNumber> {
        self.number(name).ok_or_else(|| {
            let there = self.members.iter().flatten().filter(|member| member.leaving.is_none());
            let names: Vec<&str> = there.map(|member| member.name.as_str()).collect();
            Error::Usage(match names.is_empty() {
                true => format!("no port '{name}'; the switch has no ports"),
                false => format!("no port '{name}'; available: {}", names.join(", ")),
            })
        })
    }

    fn now(&self) -> Tick {
        tick(self.start, Instant::now())
    }
}

/// Copies packets at the head of a receive ring to those of these ports that accept them, and releases them.
/// Returns the number of copies.
fn flood_copy(
    rules: Rules,
    from: &mut Queue,
    batch: Batch,
    members: &mut [Option<Box<Member>>],
    run: &[Decision],
    scratch: &mut Vec<u8>,
) -> u64 {
    let mut copies = 0;
    for decision in run {
        let Some(packet) = from.rx().packets().next() else { return copies };
        for to in members.iter_mut().flatten() {
            let Some(form) = form(rules, to, decision.vlan, decision.tag) else { continue };
            let (packet, bytes) = forward::formed(packet, decision, form, scratch);
            forward::copy(to, batch, &packet, bytes);
            copies += 1;
        }
        from.rx_mut().release(decision.slots.into());
    }
    copies
}

/// Checks of the ports for each complete sweep of the table.
const SWEEPS: usize = 64;
/// The longest sleep while a port has unsent packets.
const UNSENT_INTERVAL: Duration = Duration::from_millis(1);
/// The time for a removed port to send its last packets.
const REMOVED_TX_TIMEOUT: Duration = Duration::from_millis(1);
/// The time for all ports to send their last packets when the switch ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

impl Switch {
    /// Waits for packets, for `timeout` at most.
    pub fn wait(&mut self, wait: Wait, timeout: Duration) {
        let unsent = self.members.iter().flatten().any(|member| member.is_sending());
        let timeout = if unsent { timeout.min(UNSENT_INTERVAL) } else { timeout };
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
                self.remove_failed();
            }
        }
    }

    /// Removes the port for which waiting failed, if the check of its interface has not done so.
    #[cold]
    fn remove_failed(&mut self) {
        self.each(|member| {
            let mut queues = member.queues.iter_mut().filter(|_| member.receives);
            queues.try_for_each(|queue| queue.wait_rx(Wait::Sleep, Duration::ZERO).map(|_| ()))
        });
    }

    /// Checks all ports, and sweeps a part of the table.
    #[cold]
    fn check(&mut self) {
        self.checked = Instant::now();
        self.table.sweep(self.now(), self.table.buckets() / SWEEPS + 1);
        for number in 0..self.members.len() {
            if let Err(error) = self.check_port(number as PortNumber) {
                self.fail(number as PortNumber, error);
            } else if let Some(member) = self.members[number].as_deref_mut() {
                // A sync makes a file write its buffered packets.
                member.unsent |= member.takes();
            }
        }
        // When no packets arrive, the runner calls `drop_removed`; on a busy switch this is the only call.
        self.drop_removed();
    }

    /// Checks the queues and the link of a port. When the link goes down, removes the port's hosts from the
    /// table, because they may appear at another port.
    fn check_port(&mut self, number: PortNumber) -> Result<()> {
        let Some(member) = self.members[usize::from(number)].as_deref_mut() else { return Ok(()) };
        let up = member.link.as_ref().map(LinkState::query).transpose()?;
        let down = up.is_some_and(|state| !state.up);
        for queue in member.queues.iter_mut().filter(|_| !down) {
            queue.check()?;
            while let Some(notice) = queue.take_notice() {
                self.events.push(Event::Notice(member.name.clone(), notice));
            }
        }
        if std::mem::replace(&mut member.down, down) != down {
            let name = member.name.clone();
            self.events.push(if down { Event::Down(name) } else { Event::Up(name) });
            if down {
                self.table.flush(Some(number));
            }
        }
        Ok(())
    }

    /// Drops removed ports whose last packets have been forwarded.
    pub fn drop_removed(&mut self) {
        let now = Instant::now();
        for number in 0..self.members.len() {
            if let Some(member) = self.members[number].take_if(|member| member.has_left(now)) {
                self.end(*member, REMOVED_TX_TIMEOUT);
            }
        }
    }

    /// Ends the switch: stops reception, forwards received packets, and sends those in transmit rings.
    /// Returns the final states of the ports.
    pub fn finish(mut self) -> (Vec<MemberState>, Vec<Event>) {
        let now = Instant::now();
        // The ports are not `leaving`: they still send packets of the others.
        self.each(|member| member.queues.iter_mut().try_for_each(Queue::stop_rx));
        let end = now + Duration::from_secs(3);
        loop {
            let came = self.run_once();
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
        self.send_last(Instant::now() + FINISH_TIMEOUT);
        (self.removed, self.events)
    }

    /// Ends all ports. Packets not sent by `end` are lost.
    fn send_last(&mut self, end: Instant) {
        while self.members.iter().flatten().any(|member| member.is_sending())
            && Instant::now() < end
        {
            std::thread::sleep(UNSENT_INTERVAL);
            self.send(|member| member.unsent);
        }
        for member in std::mem::take(&mut self.members).into_iter().flatten() {
            self.end(*member, end.saturating_duration_since(Instant::now()));
        }
    }

    /// Removes a failed port at once; a port that is only down stays.
    #[cold]
    fn fail(&mut self, number: PortNumber, error: Error) {
        let checked = self.check_port(number);
        let is_down = self.members[usize::from(number)].as_ref().is_some_and(|member| member.down);
        if checked.is_ok() && is_down {
            return;
        }
        self.table.forget(number);
        if let Some(member) = self.members[usize::from(number)].take() {
            let name = member.name.clone();
            self.end(*member, Duration::ZERO).failed = true;
            self.events.push(Event::Failed(name, error));
        }
    }

    /// Sends the last packets of a port, and stores its final state.
    fn end(&mut self, mut member: Member, timeout: Duration) -> &mut MemberState {
        for &sender in &member.senders {
            // The queue counts the rest as unsent.
            let _ = member.queues[sender].close_tx_within(timeout);
        }
        self.removed.push_mut(state(&mut member, 0))
    }
}

fn state(member: &mut Member, learned: u32) -> MemberState {
    MemberState {
        name: member.name.clone(),
        id: member.id,
        vlans: None,
        counts: member.counts,
        stats: member.stats(),
        learned,
        watchers: member.watchers.len(),
        watchers_lost: member.watchers.iter().map(|(_, writer)| writer.lost()).sum(),
        down: member.down,
        failed: false,
    }
}
