//! The report of a sender: packets attempted, submitted and sent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate::error::Result;
use sluicegate::port::{LINKTYPE_ETHERNET, PortName, Queue, QueueStats};
use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::rate::Gaps;
use sluicegate_traffic::source::SkippedPackets;

use super::steering::Steering;
use super::{Receiver, SendCounts, Sender, WorkerResult};
use crate::args::Common;
use crate::interface_counters::Transmission;
use crate::ledger::Section;
use crate::notice;
use crate::pacing::{PacingResult, TargetRate};
use crate::report::{Report, Thread, Traffic};
use crate::run::{Outcomes, Run};
use crate::signals::Signals;
use crate::streams;
use crate::units::{packets_word, show_count};

/// The report of a run.
pub struct SendReport<'a> {
    common: &'a Common,
    report: Report,
    /// True if it sends live frames, with a thread for each worker.
    live: bool,
    /// The name of packets with another link type.
    other_link_type: &'static str,
    /// Its workers among those of all targets.
    workers: Range<usize>,
    /// The number of its first thread among those of all targets, by which threads get their CPUs.
    first_thread: usize,
    /// The plan, if there are streams to report.
    plan: Option<Arc<Plan>>,
}

impl<'a> SendReport<'a> {
    /// Creates the report of a sender that has not started, with these workers among all, and the number of its
    /// first thread.
    pub fn of(
        command: &'static str,
        port: &PortName,
        common: &'a Common,
        sender: &Sender,
        workers: Range<usize>,
        first_thread: usize,
    ) -> Self {
        let (report, live, ethernet) = match sender {
            Sender::Live(_) => {
                let report = Report::new(command, port, common);
                (Report { method: "live", backend: "live".into(), ..report }, true, true)
            }
            Sender::Ring { port, .. } => {
                let live = port.queues.iter().any(Queue::sends_live);
                let ethernet = port.link_type() == LINKTYPE_ETHERNET;
                (Report::of_port(command, port, common), live, ethernet)
            }
        };
        Self {
            other_link_type: if ethernet { "not_ethernet" } else { "other_link_type" },
            live,
            report,
            common,
            workers,
            first_thread,
            plan: None,
        }
    }

    /// Adds the streams of a plan.
    pub fn with_streams(self, plan: Option<Arc<Plan>>) -> Self {
        Self { plan, ..self }
    }

    /// The report so far.
    pub fn so_far(&self, outcomes: &Outcomes<SendCounts>, elapsed: Duration) -> Report {
        let mut report = self.report.so_far();
        let outcomes = &outcomes[self.workers.clone()];
        let done = all_done(outcomes);
        self.count_made(&mut report, &done, elapsed);
        let stats = all_stats(&done);
        let named = stats.too_long + stats.unsent;
        report.ledger.add(Section::Out, "accepted", stats.sent);
        report.ledger.add(Section::Loss, "refused", stats.refused.saturating_sub(named));
        report.note_silent(outcomes);
        report
    }

    /// Completes the report, and prints its notices.
    pub fn count(mut self, run: &Run<SendCounts>, steering: Option<&Steering>) -> Report {
        let outcomes = &run.outcomes[self.workers.clone()];
        let sent = || outcomes.iter().flatten().map(|outcome| &outcome.counts);
        let spans: Vec<_> = sent().filter_map(|sent| sent.span).collect();
        let begin = spans.iter().map(|(begin, _)| *begin).min();
        let end = spans.iter().map(|(_, end)| *end).max();
        // The control thread detects the end later than the workers.
        let elapsed = begin.zip(end).map_or(run.elapsed, |(begin, end)| end - begin);
        let mut gaps = Gaps::default();
        sent().for_each(|sent| gaps.merge(&sent.gaps));
        let done = all_done(outcomes);
        let stats = all_stats(&done);
        let transmission = Transmission::of(self.report.interface.take().as_mut(), &stats);
        let mut report = std::mem::take(&mut self.report);
        let skipped = self.count_made(&mut report, &done, elapsed);
        let attempted = report.traffic.packets + skipped.packets();
        let named = stats.sent + skipped.packets() + stats.unsent + stats.sent_or_lost;
        report.ledger.add(Section::Loss, "refused", attempted.saturating_sub(named));
        report.ledger.add(Section::Loss, "unsent", stats.unsent);
        report.ledger.add(Section::Note, "cut_in_file", skipped.cut_in_file);
        report.ledger.add(Section::Note, "cut_to_mtu", skipped.cut_to_mtu);
        // Others may redirect between the same interfaces, too.
        let mut accepted = stats.sent.saturating_sub(stats.redirects.refused());
        let mut details = json!({"attempted": attempted});
        match &transmission {
            Some(transmission) => {
                transmission.account(&mut report.ledger);
                accepted -= transmission.waiting();
                let interface_sent = transmission.interface_sent.unwrap_or_default();
                report.ledger.add(Section::Note, "interface_sent", interface_sent);
            }
            None => report.ledger.add(Section::Out, "accepted", accepted),
        }
        report.ledger.advise_unsent(&report.backend);
        // The interface may have refused some, too.
        let losses = report.ledger.entries(Section::Loss);
        let long = losses.filter(|loss| loss.name == "too_long").map(|loss| loss.packets).sum();
        if long > 0 {
            report.notices.push(too_long(long, &report, self.live));
        }
        if stats.sent_or_lost > 0 {
            report.notices.push(left_to_peer(stats.sent_or_lost, &report));
        }
        if skipped.too_short > 0 {
            let reason = "shorter than an Ethernet header";
            report.notices.push(not_sent(skipped.too_short, &report, reason));
        }
        details["accepted"] = accepted.into();
        if let Some(sent) = transmission.and_then(|it| it.interface_sent) {
            details["interface_sent"] = sent.into();
        }
        report.details = details.as_object().cloned().unwrap_or_default();
        let achieved_pps = Traffic::over(accepted, 0, elapsed).pps;
        let mean_bytes = report.traffic.bytes as f64 / report.traffic.packets.max(1) as f64;
        let achieved_bytes = achieved_pps * mean_bytes;
        let target = steering.map(|it| {
            let (rate, changes) = (it.asked(), it.changes());
            TargetRate { rate, changes, achieved_pps, achieved_bytes, elapsed }
        });
        let restarts = done.iter().map(|done| done.restarts).sum();
        let is_paced = target.is_some() || gaps.count() > 0;
        report.pace = is_paced.then_some(PacingResult { target, late: gaps, restarts });
        let thread = |(index, done): (usize, &WorkerResult)| Thread {
            cpu: self.common.cpu(self.first_thread + index),
            queue: index as u32,
            packets: done.packets,
            busy: done.busy,
        };
        report.threads = done.iter().enumerate().map(thread).collect();
        report.notices.iter().for_each(notice::say);
        // The workers' notices are already printed.
        let said = outcomes.iter().flatten().flat_map(|outcome| outcome.notices.clone());
        report.notices.splice(0..0, said);
        report
    }

    /// Fills in the packets that workers made, and those that the target cannot send.
    fn count_made(
        &self,
        report: &mut Report,
        done: &[WorkerResult],
        elapsed: Duration,
    ) -> SkippedPackets {
        let sum = |n: fn(&WorkerResult) -> u64| done.iter().map(n).sum::<u64>();
        let attempted = sum(|done| done.packets);
        let skipped =
            done.iter().fold(SkippedPackets::default(), |sum, done| sum.plus(done.skipped));
        report.elapsed_s = elapsed.as_secs_f64();
        // Without packets that the target cannot send, whose bytes are not counted.
        let made = attempted.saturating_sub(skipped.packets());
        report.traffic = Traffic::over(made, sum(|done| done.bytes), elapsed);
        if let Some(plan) = &self.plan {
            report.streams = streams::of(plan, done);
        }
        report.ledger.add(Section::In, "attempted", attempted);
        report.ledger.add(Section::Loss, "too_long", skipped.too_long);
        report.ledger.add(Section::Loss, "too_short", skipped.too_short);
        report.ledger.add(Section::Loss, self.other_link_type, skipped.other_link_type);
        let sent_or_lost = sum(|done| done.stats.sent_or_lost);
        report.ledger.add(Section::Uncertain, "sent_or_lost", sent_or_lost);
        skipped
    }
}

impl Report {
    /// Prints and notes that the requested rate was missed by far.
    pub fn note_missed_rate(&mut self) {
        if let Some(missed) = self.pace.as_ref().and_then(PacingResult::missed) {
            notice::say(&missed);
            self.notices.push(missed);
        }
    }

    /// Ends the receiver of what was sent, and adds its results. Fails if the receiver has failed.
    pub fn receive(&mut self, receiver: Receiver, signals: &Signals) -> Result<()> {
        let (receiver, analysis, result) = receiver.end(self.ledger.max_out(), signals);
        streams::arrive(self, &analysis);
        self.missing = Some(streams::missing(self, &receiver));
        self.receiver = Some(Box::new(receiver));
        result
    }
}

/// Combines the reports of targets that share a timetable.
pub fn together(mut reports: Vec<Report>) -> Report {
    if reports.len() == 1 {
        return reports.remove(0);
    }
    let mut pace: Option<PacingResult> = None;
    let mut details = serde_json::Map::new();
    let streams = streams::together(reports.iter().map(|report| &report.streams));
    for report in &mut reports {
        for (name, count) in &report.details {
            let sum = details.get(name).and_then(Value::as_u64).unwrap_or(0);
            details.insert(name.clone(), (sum + count.as_u64().unwrap_or(0)).into());
        }
        let Some(of_port) = &mut report.pace else { continue };
        match &mut pace {
            None => pace = Some(of_port.clone()),
            Some(all) => all.add(of_port),
        }
        // It is the rate of all targets together.
        of_port.target = None;
    }
    Report { pace, details, streams, ..Report::over(reports) }
}

fn all_stats(done: &[WorkerResult]) -> QueueStats {
    done.iter().fold(QueueStats::default(), |sum, done| sum.plus(done.stats))
}

fn all_done(outcomes: &Outcomes<SendCounts>) -> Vec<WorkerResult> {
    outcomes.iter().flatten().flat_map(|outcome| outcome.counts.workers.iter().cloned()).collect()
}

/// Describes packets that were too long, with a remedy.
fn too_long(packets: u64, report: &Report, live: bool) -> String {
    let remedy = match report.backend.as_str() {
        _ if live => "raise the interface's MTU; for more than 3368 bytes, use packet: as well",
        "memif" | "pcap" | "null" => "use more slots=",
        _ if report.command == "replay" => "raise the interface's MTU, or add --cut-to-mtu",
        _ => "raise the interface's MTU",
    };
    format!("{}: {remedy}", not_sent(packets, report, "too long"))
}

/// Describes packets that a `memif:` peer had not taken.
fn left_to_peer(packets: u64, report: &Report) -> String {
    let (count, word, port) = (show_count(packets), packets_word(packets), &report.port);
    let were = if packets == 1 { "was" } else { "were" };
    format!("{port}: {count} {word} {were} in the ring of a peer that was busy or disconnected")
}

/// Describes packets that were not sent, for a reason.
fn not_sent(packets: u64, report: &Report, reason: &str) -> String {
    let (count, port) = (show_count(packets), &report.port);
    let (word, was) = (packets_word(packets), if packets == 1 { "was" } else { "were" });
    format!("{port}: {count} {word} {was} {reason} and {was} not sent")
}
