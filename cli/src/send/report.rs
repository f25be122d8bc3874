//! Reports the packets that a sender attempted, handed over and sent, and how closely it followed its
//! timetable.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sluicegate::port::{LINKTYPE_ETHERNET, PortName, Queue};
use sluicegate_traffic::rate::{Gaps, Unit};
use sluicegate_traffic::source::LeftOut;

use super::rate::show_rate;
use super::run::{Done, SendOutcome, Sender};
use super::steering::Steering;
use crate::args::Common;
use crate::card::{HandedOver, Wire};
use crate::ledger::Role;
use crate::report::{Report, SendingReport, Thread, Traffic};
use crate::units::{packets_word, show_count, show_duration, show_percent, show_pps};

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

/// How closely a sender followed the rate asked for, or the packets' times.
#[derive(Clone, Debug, Serialize)]
pub struct Paced {
    /// The rate asked for; `None` if packets have their own times.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub asked: Option<TargetRate>,
    /// How late the first packet of a burst was, against the timetable: half of them no later, and
    /// 99 of 100. In ns; 0 where no packet was due.
    pub late_p50_ns: u64,
    pub late_p99_ns: u64,
    /// How many were how late.
    pub histogram: Vec<Class>,
    /// Times it was too far behind to make up for it.
    pub restarts: u64,
}

/// A rate that was asked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TargetRate {
    /// The last that was asked for: packets a second, or bits of either layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_pps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bps_l1: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bps_l2: Option<f64>,
    /// How often another was asked for while it ran.
    pub target_changes: u64,
    /// Packets a second that were taken.
    pub achieved_pps: f64,
}

/// Packets of about the same lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Class {
    /// They were no later than this, in ns; later than those of the class before.
    pub le_ns: u64,
    pub packets: u64,
}

/// Where the lines of the text end: powers of two, at which classes end, too. What is behind the
/// last has its own line.
const LINES_NS: [u64; 7] = [1 << 7, 1 << 10, 1 << 13, 1 << 17, 1 << 20, 1 << 23, 1 << 27];
/// How long the longest bar is.
const BAR: u64 = 24;

impl fmt::Display for TargetRate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (rate, unit) = match (self.target_pps, self.target_bps_l1, self.target_bps_l2) {
            (Some(pps), ..) => (pps, Unit::Packet),
            (_, Some(bps), _) => (bps / 8.0, Unit::BYTE_OF_LAYER1),
            (.., bps) => (bps.unwrap_or(0.0) / 8.0, Unit::BYTE_OF_LAYER2),
        };
        f.write_str(&show_rate(rate, unit))
    }
}

impl Paced {
    /// Of what was asked for, and what came of it.
    pub fn of(steering: Option<&Steering>, achieved_pps: f64, gaps: &Gaps, restarts: u64) -> Self {
        let late = |share| gaps.percentile(share).unwrap_or(0);
        let asked = steering.map(|steering| {
            let (rate, unit) = steering.asked();
            let bits = |layer| (unit == layer).then_some(rate * 8.0);
            TargetRate {
                target_pps: (unit == Unit::Packet).then_some(rate),
                target_bps_l1: bits(Unit::BYTE_OF_LAYER1),
                target_bps_l2: bits(Unit::BYTE_OF_LAYER2),
                target_changes: steering.changes(),
                achieved_pps,
            }
        });
        let class = |(le_ns, packets)| Class { le_ns, packets };
        Self {
            asked,
            late_p50_ns: late(0.5),
            late_p99_ns: late(0.99),
            histogram: gaps.counts().map(class).collect(),
            restarts,
        }
    }

    /// Prints it for people.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(asked) = &self.asked {
            let changes = match asked.target_changes {
                0 => String::new(),
                1 => " at last, changed once".into(),
                times => format!(" at last, changed {} times", show_count(times)),
            };
            let achieved = show_pps(asked.achieved_pps);
            writeln!(out, "  asked for {asked}{changes}; sent {achieved}")?;
        }
        if self.histogram.is_empty() {
            return Ok(());
        }
        let late = |ns| show_duration(Duration::from_nanos(ns));
        let (half, most) = (late(self.late_p50_ns), late(self.late_p99_ns));
        let restarts = match self.restarts {
            0 => String::new(),
            times => format!(", begun anew {} times, too far behind", show_count(times)),
        };
        writeln!(out, "  late by {half} (p50), {most} (p99){restarts}")?;
        self.print_histogram(out)
    }

    fn print_histogram(&self, out: &mut impl Write) -> io::Result<()> {
        let lines = self.lines();
        let all = lines.iter().map(|(_, packets)| packets).sum::<u64>();
        let most = lines.iter().map(|(_, packets)| *packets).max().unwrap_or(0).max(1);
        for (end, packets) in lines {
            let label = match end {
                Some(ns) => format!("up to {}", show_duration(Duration::from_nanos(ns))),
                None => "later".into(),
            };
            // Every value above zero has a bar.
            let bar =
                "#".repeat(
                    (u128::from(packets) * u128::from(BAR)).div_ceil(u128::from(most)) as usize
                );
            let (count, share) = (show_count(packets).to_string(), show_percent(packets, all));
            let share = share.to_string();
            let line = format!("    {label:<14}{count:>15}{share:>10}  {bar}");
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// The histogram in few lines, from the first that has packets to the last.
    fn lines(&self) -> Vec<(Option<u64>, u64)> {
        let ends = LINES_NS.iter().map(|&ns| Some(ns)).chain([None]);
        let line_of = |class: &Class| LINES_NS.iter().take_while(|&&ns| class.le_ns >= ns).count();
        let mut lines: Vec<_> = ends.map(|end| (end, 0)).collect();
        for class in &self.histogram {
            lines[line_of(class)].1 += class.packets;
        }
        while lines.last().is_some_and(|(_, packets)| *packets == 0) {
            lines.pop();
        }
        let empty = lines.iter().take_while(|(_, packets)| *packets == 0).count();
        lines.split_off(empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histogram_is_a_few_lines_with_bars() {
        let mut gaps = Gaps::default();
        (0..90).for_each(|_| gaps.add(100));
        (0..9).for_each(|_| gaps.add(1023));
        gaps.add(1_000_000);
        let paced = Paced::of(None, 0.0, &gaps, 0);
        let mut out = Vec::new();
        paced.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "  late by 103 ns (p50), 1.02 µs (p99)
    up to 128 ns               90      90 %  ########################
    up to 1.02 µs               9       9 %  ###
    up to 8.19 µs               0       0 %
    up to 131 µs                0       0 %
    up to 1.05 ms               1       1 %  #
";
        assert_eq!(text, expected);
        let counted: u64 = paced.histogram.iter().map(|class| class.packets).sum();
        assert_eq!((counted, paced.histogram.len()), (100, 3));
    }
}
