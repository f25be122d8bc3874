//! The results of a switch: a report for each port, and one of the whole.

use std::time::Duration;

use crate::ledger::{Ledger, Section};
use serde_json::{Map, Value};
use sluicegate_switch::{CAUSES, MemberState};

use crate::card::Transmission;
use crate::report::{Report, Traffic};

/// The loss name of packets that went on to other ports of the switch, and so did not leave it here.
const DELIVERED: &str = "delivered";

/// A port's counts besides those of reception, by their names in the JSON.
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

/// Where a port's packets went, those that came from it and those for it. What its interface made of
/// these is known at the end.
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
        // What the port had when it went, its own rings and the kernel's.
        let left = ledger.unexplained().max(0).unsigned_abs();
        ledger.add(Section::Loss, "lost_with_port", left);
    }
    ledger
}

/// Where the packets of the whole switch went. What passed from port to port is no more in it.
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
        // The card's own losses came in, too.
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
    let transmission = Transmission::of(report.card.as_mut(), &state.stats);
    report.ledger = port_ledger(state, transmission.as_ref());
    report.account_card();
    report.details = switching(state);
}

/// The report of the whole switch over those of its ports, which it fills in.
pub fn whole(mut ports: Vec<Report>, states: &[MemberState], elapsed: Duration) -> Report {
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
