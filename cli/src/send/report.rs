//! What became of the packets: made, taken, sent.

use std::time::Duration;

use sluicegate::ledger::Role;
use sluicegate::port::PortName;
use sluicegate_traffic::rate::{Gaps, Pace};

use super::run::{Done, Sender};
use crate::args::Common;
use crate::card::Card;
use crate::report::{Paced, Report, Sending, Thread, Traffic};

/// The report of a run, and what it looks at.
pub struct Sent {
    report: Report,
    card: Option<Card>,
    cpus: Vec<usize>,
}

impl Sent {
    /// Of a sender that is about to begin.
    pub fn of(command: &'static str, port: &PortName, common: &Common, sender: &Sender) -> Self {
        let mut report = match sender {
            Sender::Live(_) => Report::of_sender(command, port, "live"),
            Sender::Ring(ring) => Report::of_port(command, ring.port(), common),
        };
        report.card = None;
        Self {
            report,
            card: Card::watch(port, common.netns.as_deref()),
            cpus: common.cpus.as_ref().map_or_else(Vec::new, |cpus| cpus.0.clone()),
        }
    }

    /// Fills in what the workers did.
    pub fn count(&mut self, sender: &Sender, elapsed: Duration, pace: Option<Pace>) {
        let gaps = sender.gaps();
        let done = sender.done();
        let sum = |n: fn(&Done) -> u64| done.iter().map(n).sum::<u64>();
        let (packets, refused) = (sum(|done| done.packets), sum(|done| done.refused));
        let report = &mut self.report;
        report.elapsed_s = elapsed.as_secs_f64();
        report.traffic = Traffic::over(packets, sum(|done| done.bytes), elapsed);
        let cpu = |index: usize| self.cpus.get(index % self.cpus.len().max(1)).copied();
        report.threads = done
            .iter()
            .enumerate()
            .map(|(index, done)| Thread {
                cpu: cpu(index),
                queue: index as u32,
                packets: done.packets,
                busy: done.busy,
            })
            .collect();
        let accepted = packets - refused.min(packets);
        let interface = self.card.as_mut().and_then(Card::sent);
        report.ledger.add(Role::In, "attempted", packets);
        report.ledger.add(Role::Loss, "refused", packets - accepted);
        match interface {
            // What leaves later than the interface is looked at, or is others', nobody can tell.
            Some((sent, dropped)) => {
                let out = accepted.min(sent);
                report.ledger.add(Role::Out, "sent_by_interface", out);
                report.ledger.add(Role::Loss, "interface_dropped", dropped.min(accepted - out));
                report.ledger.add(Role::Note, "interface_sent", sent);
            }
            None => report.ledger.add(Role::Out, "accepted", accepted),
        }
        report.sending = Some(Sending {
            attempted: packets,
            accepted,
            interface_sent: interface.map(|(sent, _)| sent),
            pace: (gaps.count() > 0).then(|| paced(pace, &gaps, sum(|done| done.restarts))),
        });
    }

    /// The report.
    pub fn into_report(self) -> Report {
        self.report
    }
}

fn paced(pace: Option<Pace>, gaps: &Gaps, restarts: u64) -> Paced {
    let late = |share| gaps.percentile(share).unwrap_or(0);
    Paced {
        asked_pps: pace.map(|pace| pace.pps),
        late_p50_ns: late(0.5),
        late_p99_ns: late(0.99),
        restarts,
    }
}
