//! The ports of a switch: opening them, their reports, and the overall report.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use sluicegate::error::{Error, Result};
use sluicegate::memory::Pool;
use sluicegate::port::{Directions, Kind, OpenOptions};
use sluicegate_switch::{CAUSES, Event, Handle, MemberState, OpenedPort, SwitchOutcome};

use super::{NamedPort, PortSettings};
use crate::args::Common;
use crate::interface_counters::Transmission;
use crate::ledger::{Ledger, Section};
use crate::report::{Report, Thread, Traffic};
use crate::run::Run;
use crate::status::Status;
use crate::target::interface_to_send;
use crate::{notice, ports};

/// All ports that the switch has had, and the settings to open more.
pub struct Ports<'a> {
    pub common: &'a Common,
    pub allow_default_route: &'a [String],
    pub pool: Option<Arc<Pool>>,
    pub knows_vlans: bool,
    /// Indexed by the ports' numbers.
    pub reports: Vec<Report>,
}

impl Ports<'_> {
    /// Adds a port to a running switch.
    pub fn add(
        &mut self,
        named: &NamedPort,
        settings: &PortSettings,
        handle: &Handle,
    ) -> Result<()> {
        if settings.concern_vlans() && !self.knows_vlans {
            return Err(Error::Usage(
                "the switch has no VLANs; start it with --access, --trunk or --native".into(),
            ));
        }
        let config = settings.config(&named.name)?;
        let mut open = self.open(named, config.usage);
        if let (Err(Error::Privilege { remedy, .. }), Some(user)) = (&mut open, &self.common.user) {
            *remedy = format!("the switch runs as {user}; restart the switch with this port");
        }
        let (id, opened) = open?;
        let name = named.name.clone();
        let added = handle.ask(move |switch| switch.add(&name, id, opened, config));
        let added = added.unwrap_or_else(|| Err(Error::Usage("the switch is ending".into())));
        if added.is_err() {
            self.reports.pop();
        }
        added
    }

    /// Opens a port, and creates its report.
    pub fn open(
        &mut self,
        named: &NamedPort,
        usage: Option<Directions>,
    ) -> Result<(u64, OpenedPort)> {
        let port = &named.port;
        let netns = self.common.netns.as_deref();
        let receives_only = usage == Some(Directions::Receive) || port.kind() == Kind::Mirror;
        if !receives_only {
            interface_to_send(port, netns, self.allow_default_route)?;
        }
        let options = OpenOptions { pool: self.pool.clone(), ..self.common.forwarding() };
        let opened = OpenedPort::open(port, usage, &options)?;
        ports::say_fallbacks(&opened.port, self.common.verbose);
        ports::say_diverts(port);
        let id = self.reports.len() as u64;
        let mut report = Report::of_port("switch", &opened.port, self.common);
        if let Some(advice) = &opened.advice {
            notice::say(advice);
            report.notices.push(advice.clone());
        }
        self.reports.push(report);
        Ok((id, opened))
    }

    /// Returns the overall report, after the switch has ended.
    pub fn report(mut self, run: &Run<Option<SwitchOutcome>>) -> Report {
        let Some(outcome) = run.outcomes.first().and_then(Option::as_deref) else {
            return Report::default();
        };
        let states = outcome.counts.as_ref().map_or(&[][..], |ended| &ended.ports);
        let mut whole = whole(std::mem::take(&mut self.reports), states, run.elapsed);
        let packets = states.iter().map(|state| state.counts.packets).sum();
        whole.threads = vec![Thread { cpu: outcome.cpu, queue: 0, packets, busy: outcome.busy }];
        whole
    }

    /// Returns the overall report while the switch runs.
    pub fn report_so_far(&self, ports: &[MemberState], elapsed: Duration) -> Report {
        whole(self.reports.iter().map(Report::so_far).collect(), ports, elapsed)
    }

    /// Prints an event of a port, and adds it to the report.
    pub fn report_event(&mut self, event: Event, status: &Status) {
        let text = match event {
            Event::Failed(name, error) => format!("{name} left the switch: {error}"),
            Event::Down(name) => format!("{name} is down; waiting for it to come up"),
            Event::Up(name) => format!("{name} is up"),
            Event::Notice(_, text) => text,
        };
        status.say(&text);
        if let Some(report) = self.reports.first_mut() {
            report.notices.push(text);
        }
    }
}

/// The entry of packets that went to other ports of the switch.
const DELIVERED: &str = "delivered";

/// A port's counts of switching, by their names in the JSON.
pub fn switching(state: &MemberState) -> Map<String, Value> {
    let counts = &state.counts;
    let fields = [
        ("forwarded", counts.forwarded),
        ("flooded", counts.flooded),
        ("flood_copies", counts.copies),
        ("to_port", counts.given),
        ("to_port_bytes", counts.queued_bytes),
        ("swapped", counts.swapped),
        ("copied", counts.copied),
        ("sent", state.stats.sent),
        ("learned", state.learned.into()),
        ("moved", counts.moved),
        ("unlearned", counts.unlearned),
        ("elsewhere", counts.elsewhere),
        ("watchers", state.watchers as u64),
        ("watchers_lost", state.watchers_lost),
    ];
    let name = [("name".to_owned(), state.name.clone().into())];
    let fields = fields.map(|(name, count)| (name.to_owned(), count.into()));
    name.into_iter().chain(fields).chain([("down".to_owned(), state.down.into())]).collect()
}

/// Returns the ledger of a port: packets received from it, and packets for it. Their fate at its interface is
/// known at the end.
pub fn port_ledger(state: &MemberState, transmission: Option<&Transmission>) -> Ledger {
    let mut ledger = Ledger::default();
    let (counts, stats) = (&state.counts, &state.stats);
    ledger.add_received(stats, counts.after_end);
    ledger.add(Section::In, "to_port", counts.given);
    ledger.add(Section::Out, DELIVERED, counts.forwarded + counts.flooded);
    match transmission {
        Some(transmission) => transmission.account(&mut ledger),
        None => ledger.add(Section::Out, "sent", stats.sent),
    }
    for (cause, name) in CAUSES {
        ledger.add(Section::Loss, name, counts.dropped[cause as usize]);
    }
    ledger.add(Section::Loss, "port_full", counts.full);
    ledger.add(Section::Loss, "port_down", counts.down);
    ledger.add(Section::Loss, "too_long", counts.too_long);
    ledger.add_unsent(stats);
    if state.failed {
        // A removed port loses the packets in its rings and in the kernel's.
        let left = ledger.unexplained().max(0).unsigned_abs();
        ledger.add(Section::Loss, "lost_with_port", left);
    }
    ledger
}

/// The ledger of the whole switch, without packets passed from port to port.
fn whole_ledger(states: &[MemberState], ports: &[Report]) -> Ledger {
    let sum = |n: fn(&MemberState) -> u64| states.iter().map(n).sum();
    let mut ledger = Ledger::default();
    ledger.add(
        Section::In,
        "received",
        sum(|s| s.stats.received.saturating_sub(s.counts.after_end)),
    );
    ledger.add(Section::In, "flood_copies", sum(|state| state.counts.copies));
    for port in ports {
        let sent = port.ledger.entries(Section::Out).filter(|entry| entry.name != DELIVERED);
        sent.for_each(|entry| ledger.add(Section::Out, entry.name, entry.packets));
        // The card's own losses also count as received.
        let missed = port.ledger.entries(Section::In).filter(|entry| entry.name == "rx_missed");
        missed.for_each(|entry| ledger.add(Section::In, entry.name, entry.packets));
        for role in [Section::Loss, Section::Uncertain, Section::Note] {
            let entries = port.ledger.entries(role);
            entries.for_each(|entry| ledger.add(role, entry.name, entry.packets));
        }
    }
    ledger
}

/// Fills in a port's report.
fn fill(report: &mut Report, state: &MemberState, elapsed: Duration) {
    report.elapsed_s = elapsed.as_secs_f64();
    report.traffic = Traffic::over(state.counts.packets, state.counts.bytes, elapsed);
    let transmission = Transmission::of(report.interface.as_mut(), &state.stats);
    report.ledger = port_ledger(state, transmission.as_ref());
    report.ledger.advise_unsent(&report.backend);
    report.account_interface();
    report.details = switching(state);
}

/// Fills in the ports' reports, and makes that of the whole switch.
fn whole(mut ports: Vec<Report>, states: &[MemberState], elapsed: Duration) -> Report {
    for state in states {
        if let Some(report) = ports.get_mut(state.id as usize) {
            fill(report, state, elapsed);
        }
    }
    let ledger = whole_ledger(states, &ports);
    let mut report = Report::over(ports);
    report.ledger = ledger;
    report.note_host_drops();
    report
}
