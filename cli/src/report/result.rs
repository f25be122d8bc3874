//! A command's result: the report on one port, or that of several together.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sluicegate::port::{Fallback, Kind, Port, PortName};
use sluicegate::xdp::resident::Owner;
use sluicegate_traffic::analyse::Analysis;

use super::json::{analysis_json, ledger_json, notices_json, recorded_json, stats_json};
use super::parts::{DirectionReport, FilesReport, MemoryReport, Thread, Traffic};
use crate::advice;
use crate::args::Common;
use crate::interface_counters::InterfaceCounters;
use crate::ledger::{Ledger, Section, remedies};
use crate::pacing::PacingResult;
use crate::ports::is_any;
use crate::recorded::Recorded;
use crate::stats::Stats;
use crate::streams::{Missing, StreamReport};
use crate::units::{show_count, show_percent};

/// Returns true if a port is one interface.
fn is_of_interface(port: &PortName) -> bool {
    use Kind::{Host, Live, Mirror, Packet, Tap, Xdp};
    matches!(port.kind(), Packet | Xdp | Mirror | Live | Host | Tap) && !is_any(port)
}

/// The result of a traffic command.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub command: &'static str,
    /// True while the command runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub so_far: bool,
    /// The port, or all ports separated by spaces.
    pub port: String,
    /// The other port of `forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    pub backend: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub method: &'static str,
    /// The mode of receiving from the card, if there is a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// `{from, to, reason}` each.
    pub fallbacks: Vec<Value>,
    /// Other messages that were printed on stderr during the run.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "notices_json")]
    pub notices: Vec<String>,
    pub elapsed_s: f64,
    /// The times of the packets, if all are read from files; the rates are theirs.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "recorded_json")]
    pub recorded: Option<Recorded>,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Counts that only one command has.
    #[serde(flatten)]
    pub details: Map<String, Value>,
    /// The timetable of commands that send, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pace: Option<PacingResult>,
    /// The directions of `forward`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directions: Vec<DirectionReport>,
    pub threads: Vec<Thread>,
    /// The streams of a specification.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamReport>,
    /// The packets that the receiver of a sender's run lacks, and where they were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// The receiver of a sender's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<Box<Report>>,
    #[serde(serialize_with = "ledger_json")]
    pub ledger: Ledger,
    /// The analysis of stamped packets, if requested.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "analysis_json")]
    pub analysis: Option<Analysis>,
    /// Counts by protocol, conversation and address, if requested.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "stats_json")]
    pub stats: Option<Stats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesReport>,
    /// Packets in memory that no file has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// The interface's own counters, until they are added to the ledger.
    #[serde(skip)]
    pub interface: Option<InterfaceCounters>,
    /// Packets that the host dropped during the run, on any interface, until they are added to the overall
    /// ledger.
    #[serde(skip)]
    pub host_dropped: u64,
    /// The claims that were seen on the port's interfaces, by which it may miss packets.
    #[serde(skip)]
    pub owners: Vec<Owner>,
    /// The reports of the ports, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Report>,
}

impl Report {
    /// Creates the report on one port.
    pub fn of_port(command: &'static str, port: &Port, common: &Common) -> Self {
        let fallback = |it: &Fallback| json!({"from": it.from, "to": it.to, "reason": advice::with_namespace(&it.reason)});
        Self {
            method: port.method,
            mode: port.mode,
            fallbacks: port.fallbacks.iter().map(fallback).collect(),
            ..Self::new(command, &port.name, common)
        }
    }

    /// Creates the report on an interface, or on a port with this name.
    pub fn new(command: &'static str, name: &PortName, common: &Common) -> Self {
        Self {
            command,
            port: name.to_string(),
            backend: name.kind().prefix().into(),
            ledger: if is_of_interface(name) { Ledger::of(name.name()) } else { Ledger::default() },
            interface: InterfaceCounters::watch(name, common.netns.as_deref()),
            ..Self::default()
        }
    }

    /// Creates a copy for the ledger so far. The interface's own counters stay with the final report.
    pub fn so_far(&self) -> Self {
        Self {
            command: self.command,
            so_far: true,
            port: self.port.clone(),
            to: self.to.clone(),
            backend: self.backend.clone(),
            method: self.method,
            mode: self.mode,
            fallbacks: self.fallbacks.clone(),
            notices: self.notices.clone(),
            ledger: self.ledger.emptied(),
            ..Self::default()
        }
    }

    /// Adds the number of threads that did not answer the request for the ledger so far.
    pub fn note_silent<T>(&mut self, outcomes: &[Option<Arc<T>>]) {
        let silent = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        self.ledger.add(Section::Note, "threads_without_answer", silent as u64);
    }

    /// Reads the interface's own counters for the last time. Call it when reception stops, so that they cover
    /// the same time.
    pub fn read_interface(&mut self) {
        if let Some(counters) = &mut self.interface {
            counters.read_last();
        }
    }

    /// Adds the interface's own counters to the ledger.
    pub fn account_interface(&mut self) {
        if let Some(mut counters) = self.interface.take() {
            self.host_dropped = counters.account(&mut self.ledger);
        }
    }

    /// Creates the overall report: that of the only port, or one that contains several ports' reports.
    pub fn together(mut reports: Vec<Self>) -> Self {
        let mut whole = match reports.len() {
            1 => reports.remove(0),
            _ => Self::over(reports),
        };
        whole.note_host_drops();
        whole
    }

    /// Adds the host's drops during the run, once for all ports.
    pub fn note_host_drops(&mut self) {
        // All ports counted the same drops; the port that was open longest counted most of them.
        let ports = self.ports.iter().map(|report| report.host_dropped);
        let dropped = ports.fold(self.host_dropped, u64::max);
        self.ledger.add(Section::Note, "softnet_dropped_all_interfaces", dropped);
    }

    /// Creates the report on several ports, which contains theirs.
    pub fn over(reports: Vec<Self>) -> Self {
        let join = |text: fn(&Self) -> &str| {
            let mut words: Vec<&str> = Vec::new();
            for word in reports.iter().map(text) {
                // A switch may have had a port twice.
                if !words.contains(&word) {
                    words.push(word);
                }
            }
            words.join(" ")
        };
        let (port, backend) = (join(|r| &r.port), join(|r| &r.backend));
        let mut ledger = Ledger::default();
        reports.iter().for_each(|report| ledger.merge(&report.ledger));
        let sum = |n: fn(&Self) -> u64| reports.iter().map(n).sum();
        let elapsed = reports.iter().map(|r| r.elapsed_s).fold(0.0, f64::max);
        let files = reports.iter().all(|r| r.backend == Kind::Pcap.prefix());
        let recorded = reports.iter().filter(|_| files).filter_map(|r| r.recorded);
        let recorded = recorded.reduce(Recorded::with);
        let traffic = Traffic::over(
            sum(|r| r.traffic.packets),
            sum(|r| r.traffic.bytes),
            recorded.map_or(Duration::from_secs_f64(elapsed), Recorded::duration),
        );
        let (method, mode) = reports.first().map_or(("", None), |r| (r.method, r.mode));
        let method = if reports.iter().all(|r| r.method == method) { method } else { "" };
        let mode = mode.filter(|_| reports.iter().all(|r| r.mode == mode));
        Self {
            command: reports.first().map_or("", |r| r.command),
            so_far: reports.iter().any(|r| r.so_far),
            port,
            backend,
            method,
            mode,
            fallbacks: reports.iter().flat_map(|r| r.fallbacks.clone()).collect(),
            notices: reports.iter().flat_map(|r| r.notices.clone()).collect(),
            elapsed_s: elapsed,
            recorded,
            traffic,
            threads: reports.iter().flat_map(|r| r.threads.clone()).collect(),
            ledger,
            ports: reports,
            ..Self::default()
        }
    }

    /// Returns the source and its method: "right0 (ring)".
    pub fn port_and_method(&self) -> String {
        let ports = match &self.to {
            None => self.port.clone(),
            Some(to) => format!("{} and {to}", self.port),
        };
        match (self.method, self.mode) {
            ("", _) => ports,
            (method, None) => format!("{ports} ({method})"),
            (method, Some(mode)) => format!("{ports} ({method}, {mode})"),
        }
    }

    /// Fails if less than 1 % of the attempted packets can be out. Packets that still waited when the user
    /// ended the run do not count if others were sent, or in the first second: the end may have come before
    /// the first one could leave.
    pub fn check_sent(&self, ended_by_user: bool) -> anyhow::Result<()> {
        let sent = self.ledger.max_out();
        let may_wait = ended_by_user && (sent > 0 || self.elapsed_s < 1.0);
        let counts = |loss: &str| !(may_wait && loss == "unsent");
        let losses = self.ledger.entries(Section::Loss);
        let waiting: u64 = losses.filter(|loss| !counts(loss.name)).map(|loss| loss.packets).sum();
        let attempted = self.ledger.total(Section::In).saturating_sub(waiting);
        if attempted == 0 || sent >= attempted.div_ceil(100) {
            return Ok(());
        }
        let port = self.to.as_ref().unwrap_or(&self.port);
        let share = show_percent(sent, attempted);
        let reason = match remedies(&self.ledger).iter().find(|(loss, _)| counts(loss)) {
            Some((loss, remedy)) => format!("{}; {remedy}", loss.replace('_', " ")),
            None => "for no known reason; see whether other programs use the interface".into(),
        };
        anyhow::bail!("{port}: {share} of {} packets were sent: {reason}", show_count(attempted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_port(port: &str, host_dropped: u64) -> Report {
        let mut ledger = Ledger::default();
        ledger.add(Section::In, "received", 10);
        ledger.add(Section::Note, "card_received", 20);
        Report {
            command: "capture",
            port: port.into(),
            backend: "packet".into(),
            method: "ring",
            elapsed_s: 1.0,
            traffic: Traffic::over(10, 600, Duration::from_secs(1)),
            ledger,
            host_dropped,
            ..Report::default()
        }
    }

    #[test]
    fn a_run_that_sent_nearly_nothing_fails_except_where_its_user_ended_it_early() {
        let (early, late) = (0.1, 1.5);
        for (sentence, sent, refused, elapsed_s, ended_by_user, reason) in [
            ("all waited at the end of the run", 0, 0, early, false, Some("unsent")),
            ("all waited when the user ended it early", 0, 0, early, true, None),
            ("none could leave for longer", 0, 0, late, true, Some("unsent")),
            ("some left before the user ended it", 1, 0, late, true, None),
            (
                "the kernel refused some, others waited",
                0,
                5,
                early,
                true,
                Some("of 5 packets were sent: refused"),
            ),
        ] {
            let mut report = Report { elapsed_s, ..of_port("left0", 0) };
            report.ledger = Ledger::default();
            report.ledger.add(Section::In, "attempted", 1000);
            report.ledger.add(Section::Out, "accepted", sent);
            report.ledger.add(Section::Loss, "refused", refused);
            report.ledger.add(Section::Loss, "unsent", 1000 - sent - refused);
            let checked = report.check_sent(ended_by_user).map_err(|error| error.to_string());
            match reason {
                None => assert_eq!(checked, Ok(()), "{sentence}"),
                Some(reason) => assert!(checked.is_err_and(|e| e.contains(reason)), "{sentence}"),
            }
        }
    }

    #[test]
    fn only_files_have_times_of_recorded_packets() {
        let file = |packets: u64| {
            let mut recorded = None;
            (0..packets).for_each(|ns| Recorded::add(&mut recorded, ns));
            let traffic = Traffic { packets, ..Traffic::default() };
            Report { backend: "pcap".into(), recorded, traffic, ..of_port("a.pcap", 0) }
        };
        let quiet = Report { traffic: Traffic::default(), ..of_port("left0", 0) };
        for (sentence, ports, has_times) in [
            ("two files", vec![file(2), file(3)], true),
            ("a file and one without packets", vec![file(2), file(0)], true),
            ("a file and a live port", vec![file(2), of_port("left0", 0)], false),
            ("a file and a quiet live port", vec![file(2), quiet], false),
        ] {
            let whole = Report::over(ports);
            assert_eq!(whole.recorded.is_some(), has_times, "{sentence}");
        }
    }

    #[test]
    fn host_drops_are_noted_once_for_all_ports() {
        let rows = [
            ("one port", vec![of_port("left0", 7)]),
            ("two ports", vec![of_port("left0", 6), of_port("right0", 7)]),
        ];
        for (sentence, ports) in rows {
            let count = ports.len() as u64;
            let whole = Report::together(ports);
            let note = |report: &Report, name| -> u64 {
                let notes = report.ledger.entries(Section::Note);
                notes.filter(|entry| entry.name == name).map(|entry| entry.packets).sum()
            };
            assert_eq!(note(&whole, "softnet_dropped_all_interfaces"), 7, "{sentence}");
            assert_eq!(note(&whole, "card_received"), 20 * count, "{sentence}: each its own");
            for port in &whole.ports {
                assert_eq!(note(port, "softnet_dropped_all_interfaces"), 0, "{sentence}");
            }
        }
    }
}
