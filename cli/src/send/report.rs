//! Reports the packets that a sender attempted, handed over and sent.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::port::{LINKTYPE_ETHERNET, PortName, Queue};
use sluicegate_traffic::source::LeftOut;

use super::paced::Paced;
use super::run::{Done, SendOutcome, Sender};
use super::steering::Steering;
use crate::args::Common;
use crate::ledger::Role;
use crate::report::{Report, SendingReport, Thread, Traffic};
use crate::units::{packets_word, show_count};
use crate::wire::{HandedOver, Wire};

/// The report of a run.
pub struct SendReport {
    pub(super) report: Report,
    /// It sends live frames, a thread for each worker.
    live: bool,
    cpus: Vec<usize>,
    /// The name of packets with another link type.
    pub(super) other_link_type: &'static str,
}

impl SendReport {
    /// Creates the report of a sender that has not started.
    pub fn of(command: &'static str, port: &PortName, common: &Common, sender: &Sender) -> Self {
        let report = match sender {
            Sender::Live(_) => Report::of_live(command, port, common),
            Sender::Ring(ring) => Report::of_port(command, ring.port(), common),
        };
        let (ethernet, live) = match sender {
            Sender::Live(_) => (true, true),
            Sender::Ring(ring) => {
                let port = ring.port();
                let live = port.queues.iter().any(Queue::sends_live);
                (port.link_type() == LINKTYPE_ETHERNET, live)
            }
        };
        Self {
            other_link_type: if ethernet { "not_ethernet" } else { "other_link_type" },
            live,
            report,
            cpus: common.cpus.as_ref().map_or_else(Vec::new, |cpus| cpus.0.clone()),
        }
    }

    /// Fills in what the workers did.
    pub fn count(
        mut self,
        sender: &Sender,
        ended: &SendOutcome,
        steering: Option<&Steering>,
    ) -> Report {
        let elapsed = ended.elapsed;
        let gaps = sender.gaps();
        let done = sender.done();
        let sum = |n: fn(&Done) -> u64| done.iter().map(n).sum::<u64>();
        let (attempted, mut accepted) = (sum(|done| done.packets), sum(|done| done.accepted));
        let left_out = done.iter().fold(LeftOut::default(), |sum, done| sum.plus(done.left_out));
        let (unsent, disconnected) = (sum(|done| done.unsent), sum(|done| done.disconnected));
        let named = accepted + left_out.packets() + unsent + disconnected;
        let refused = attempted.saturating_sub(named);
        let report = &mut self.report;
        let handed = HandedOver {
            packets: accepted,
            rejected: sum(|done| done.rejected),
            redirects: done.iter().fold(<_>::default(), |all, done| done.redirects.plus(all)),
            untraced: sum(|done| done.untraced),
        };
        let wire = Wire::of(report.card.take().as_mut(), handed);
        report.elapsed_s = elapsed.as_secs_f64();
        report.traffic = Traffic::over(attempted, sum(|done| done.bytes), elapsed);
        let cpu = |index: usize| self.cpus.get(index % self.cpus.len().max(1)).copied();
        let thread = |(index, done): (usize, &Done)| Thread {
            cpu: cpu(index),
            queue: index as u32,
            packets: done.packets,
            busy: done.busy,
        };
        report.threads = done.iter().enumerate().map(thread).collect();
        report.ledger.add(Role::In, "attempted", attempted);
        report.ledger.add(Role::Loss, "refused", refused);
        report.ledger.add(Role::Loss, "too_long", left_out.too_long);
        if left_out.too_long > 0 {
            report.notices.push(too_long(left_out.too_long, report, self.live));
        }
        report.ledger.add(Role::Loss, "too_short", left_out.too_short);
        if left_out.too_short > 0 {
            report.notices.push(too_short(left_out.too_short, report));
        }
        report.ledger.add(Role::Loss, self.other_link_type, left_out.other_link_type);
        report.ledger.add(Role::Loss, "unsent", unsent);
        report.ledger.add(Role::Loss, "disconnected", disconnected);
        report.ledger.add(Role::Note, "cut_in_file", left_out.cut_in_file);
        match &wire {
            Some(wire) => {
                wire.account(&mut report.ledger);
                accepted -= wire.waiting();
                let interface_sent = wire.interface_sent.unwrap_or_default();
                report.ledger.add(Role::Note, "interface_sent", interface_sent);
            }
            None => report.ledger.add(Role::Out, "accepted", accepted),
        }
        report.sending = Some(SendingReport {
            attempted,
            accepted,
            interface_sent: wire.and_then(|wire| wire.interface_sent),
            pace: (steering.is_some() || gaps.count() > 0).then(|| {
                let achieved_pps = Traffic::over(accepted, 0, elapsed).pps;
                Paced::of(steering, achieved_pps, &gaps, sum(|done| done.restarts))
            }),
        });
        self.report
    }
}

/// Describes packets too short for an interface.
fn too_short(packets: u64, report: &Report) -> String {
    let (count, port) = (show_count(packets), &report.port);
    let (word, was) = (packets_word(packets), if packets == 1 { "was" } else { "were" });
    format!("{port}: {count} {word} {was} shorter than an Ethernet header and {was} not sent")
}

/// Describes packets that are too long, with a remedy.
fn too_long(packets: u64, report: &Report, live: bool) -> String {
    let remedy = match report.backend.as_str() {
        _ if live => "raise the interface's MTU; for more than 3368 bytes, use packet: as well",
        "memif" | "pcap" | "null" => "use more slots=",
        _ => "raise the interface's MTU",
    };
    let (count, port) = (show_count(packets), &report.port);
    let (word, was) = (packets_word(packets), if packets == 1 { "was" } else { "were" });
    format!("{port}: {count} {word} {was} too long and {was} not sent: {remedy}")
}

impl SendReport {
    /// The report so far.
    pub fn so_far(&self, workers: &[Option<Arc<Done>>], elapsed: Duration) -> Report {
        let mut report = self.report.so_far();
        let done = || workers.iter().flatten();
        let sum = |n: fn(&Done) -> u64| done().map(|done| n(done)).sum::<u64>();
        let packets = sum(|done| done.packets);
        report.elapsed_s = elapsed.as_secs_f64();
        report.traffic = Traffic::over(packets, sum(|done| done.bytes), elapsed);
        report.ledger.add(Role::In, "attempted", packets);
        report.ledger.add(Role::Out, "accepted", sum(|done| done.accepted));
        let left_out = done().fold(LeftOut::default(), |sum, done| sum.plus(done.left_out));
        report.ledger.add(Role::Loss, "refused", sum(|done| done.refused));
        report.ledger.add(Role::Loss, "too_long", left_out.too_long);
        report.ledger.add(Role::Loss, "too_short", left_out.too_short);
        report.ledger.add(Role::Loss, self.other_link_type, left_out.other_link_type);
        report.ledger.add(Role::Loss, "disconnected", sum(|done| done.disconnected));
        report.note_silent(workers);
        report
    }
}
