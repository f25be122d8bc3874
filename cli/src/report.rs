//! The final report of a traffic command: a result as JSON (the contract is docs/json.md), or
//! text for people.

use std::io::{self, Write, stderr, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::ledger::{Ledger, Section, remedies};
use anyhow::Context;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sluicegate::port::{Fallback, Port, PortName};
use sluicegate_traffic::analyse::Analysis;

use crate::analysis;
use crate::args::Common;
use crate::interface_counters::InterfaceCounters;
use crate::notice::reader_left;
use crate::pacing::PacingResult;
use crate::recorded::Recorded;
use crate::stats::Stats;
use crate::streams::{self, Missing, StreamReport};
use crate::units::{
    packets_word, show_bps, show_bytes, show_count, show_duration, show_percent, show_pps,
};

/// Bytes of a frame on the wire that are not counted here: preamble and start delimiter 8, frame check
/// sequence 4, gap between frames 12.
pub const L1_OVERHEAD_BYTES: u64 = 24;

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
    #[serde(skip_serializing_if = "Vec::is_empty")]
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
    /// The reports of the ports, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Report>,
}

/// Packets and their rates over a time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    pub packets: u64,
    /// Layer 2, without the frame check sequence.
    pub bytes: u64,
    pub pps: f64,
    pub bps_l1: f64,
    pub bps_l2: f64,
}

/// Packets that were forwarded from one port to the other.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    pub from: String,
    pub to: String,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Packets moved by exchange of buffers, and by copy.
    pub swapped: u64,
    pub copied: u64,
}

/// One thread's share.
#[derive(Clone, Debug, Serialize)]
pub struct Thread {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    pub queue: u32,
    pub packets: u64,
    /// The share of time on a CPU.
    pub busy: f64,
}

/// Files written.
#[derive(Debug, Serialize)]
pub struct FilesReport {
    pub path: String,
    pub count: u64,
    pub bytes: u64,
    pub deleted: u64,
    /// Files that are deleted once the program of `--post-rotate` has run.
    #[serde(skip_serializing_if = "is_zero")]
    pub to_delete: u64,
}

/// Packets in memory, of `capture --keep`.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    pub packets: u64,
    /// The time from the oldest to the newest.
    pub period_s: f64,
    /// Memory has been too small for the time to keep.
    pub short: bool,
}

impl Traffic {
    /// Rates over `elapsed`.
    pub fn over(packets: u64, bytes: u64, elapsed: Duration) -> Self {
        let per_second = |n: u64| match elapsed.as_secs_f64() {
            0.0 => 0.0,
            seconds => n as f64 / seconds,
        };
        Self {
            packets,
            bytes,
            pps: per_second(packets),
            bps_l1: per_second((bytes + packets * L1_OVERHEAD_BYTES) * 8),
            bps_l2: per_second(bytes * 8),
        }
    }
}

impl MemoryReport {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if self.packets > 0 {
            let period = show_duration(Duration::from_secs_f64(self.period_s));
            let (count, word) = (show_count(self.packets), packets_word(self.packets));
            writeln!(
                out,
                "  {count:>15} {word} of {period} in memory, not written (kill -USR2 or --trigger writes them)"
            )?;
        }
        if self.short {
            writeln!(out, "  memory was too small for the time to keep: raise --keep-bytes")?;
        }
        Ok(())
    }
}

impl DirectionReport {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Traffic { packets, pps, .. } = self.traffic;
        let how = match (self.swapped, self.copied) {
            (0, 0) => String::new(),
            (_, 0) => ", swapped".into(),
            (0, _) => ", copied".into(),
            (_, copied) => format!(", {} of them copied", show_count(copied)),
        };
        let (count, pps) = (show_count(packets), show_pps(pps));
        let (word, from, to) = (packets_word(packets), &self.from, &self.to);
        writeln!(out, "  {count:>15} {word:<7}  {pps:>12}   from {from} to {to}{how}")
    }
}

impl Report {
    /// Creates the report on one port.
    pub fn of_port(command: &'static str, port: &Port, common: &Common) -> Self {
        let fallback = |it: &Fallback| json!({"from": it.from, "to": it.to, "reason": it.reason});
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
        let files = reports.iter().all(|r| r.recorded.is_some() || r.traffic.packets == 0);
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

    /// Prints the report to standard output, or to stderr if packets go to standard output. A reader that left
    /// is no error.
    pub fn publish(&self, stdout_is_taken: bool, json: bool) -> anyhow::Result<()> {
        let unless_reader_left = |printed: io::Result<()>, output: BorrowedFd<'_>| {
            printed.or_else(|error| if reader_left(&error, output) { Ok(()) } else { Err(error) })
        };
        if stdout_is_taken {
            let printed = self.print(&mut stderr().lock(), json);
            return unless_reader_left(printed, stderr().as_fd()).context("write standard error");
        }
        let printed = self.print(&mut stdout().lock(), json).and_then(|()| stdout().flush());
        Ok(unless_reader_left(printed, stdout().as_fd())?)
    }

    /// Prints the report, as JSON or for people.
    pub fn print(&self, out: &mut impl Write, json: bool) -> io::Result<()> {
        if json {
            serde_json::to_writer(&mut *out, self)?;
            return writeln!(out);
        }
        let Traffic { packets, bytes, pps, bps_l2, .. } = self.traffic;
        let elapsed = show_duration(Duration::from_secs_f64(self.elapsed_s));
        let so_far = if self.so_far { "so far: " } else { "" };
        let read = if self.recorded.is_some() { "read in " } else { "" };
        writeln!(out, "{so_far}{}, {read}{elapsed}", self.port_and_method())?;
        let (count, word) = (show_count(packets), packets_word(packets));
        let bytes = show_count(bytes);
        if self.recorded.is_some_and(|recorded| recorded.duration().is_zero()) {
            writeln!(out, "  {count:>15} {word:<7}  {bytes} bytes")?;
        } else {
            let (pps, bps) = (show_pps(pps), show_bps(bps_l2));
            writeln!(out, "  {count:>15} {word:<7}  {pps:>12}   {bytes} bytes  {bps} (L2)")?;
        }
        if let Some(recorded) = self.recorded {
            writeln!(out, "  recorded {}", recorded.show())?;
        }
        for direction in &self.directions {
            direction.print(out)?;
        }
        for port in self.ports.iter().filter(|_| self.directions.is_empty()) {
            let count = show_count(port.traffic.packets);
            let way = if matches!(self.command, "generate" | "replay") { "to" } else { "from" };
            // A switch's ports have names.
            match port.details.get("name").and_then(Value::as_str) {
                Some(name) => writeln!(out, "  {count:>15} {way} {name} ({})", port.port)?,
                None => writeln!(out, "  {count:>15} {way} {}", port.port)?,
            }
        }
        let one = self.ports.is_empty() || !self.directions.is_empty();
        let threads = if one { self.threads.as_slice() } else { &[] };
        // Other ports make a queue for each thread.
        let has_queues = matches!(&self.backend[..], "xdp" | "mirror" | "memif");
        let unit = if has_queues { "queue" } else { "thread" };
        for thread in threads.iter().filter(|_| threads.len() > 1) {
            let cpu = thread.cpu.map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
            let busy = thread.busy * 100.0;
            let count = show_count(thread.packets);
            let number = thread.queue;
            writeln!(out, "  {count:>15} in {unit} {number}{cpu}, {busy:.0} % busy")?;
        }
        if let Some(files) = &self.files {
            let many = if files.count == 1 { "" } else { "s" };
            let deleted = match (files.deleted, files.to_delete) {
                (0, 0) => String::new(),
                (n, 0) => format!(", the oldest {n} deleted"),
                (0, more) => format!(", the oldest {more} to be deleted after their programs"),
                (n, more) => {
                    format!(", the oldest {n} deleted, {more} to be deleted after their programs")
                }
            };
            let (count, bytes) = (files.count, show_bytes(files.bytes));
            writeln!(out, "  {count} file{many}, {bytes}{deleted}: {}", files.path)?;
        }
        if let Some(memory) = &self.memory {
            memory.print(out)?;
        }
        streams::print(&self.streams, out)?;
        if let Some(missing) = &self.missing {
            missing.print(self.traffic.packets, out)?;
        }
        if let Some(pace) = &self.pace {
            pace.print(out)?;
        }
        if let Some(analysis) = &self.analysis {
            analysis::print(analysis, out)?;
        }
        if let Some(stats) = &self.stats {
            stats.print(out)?;
        }
        writeln!(out, "ledger")?;
        self.print_ledger(out)?;
        let Some(receiver) = &self.receiver else { return Ok(()) };
        writeln!(out, "ledger of {}", receiver.port_and_method())?;
        receiver.print_ledger(out)
    }

    fn print_ledger(&self, out: &mut impl Write) -> io::Result<()> {
        let ledger = &self.ledger;
        let share = |packets| show_percent(packets, ledger.total(Section::In));
        for (section, sign) in [
            (Section::In, "in"),
            (Section::Out, "out"),
            (Section::Omitted, "omit"),
            (Section::Loss, "lost"),
        ] {
            let always = matches!(section, Section::In | Section::Out);
            for entry in ledger.entries(section).filter(|entry| entry.packets > 0 || always) {
                let share =
                    if section == Section::In { String::new() } else { share(entry.packets) };
                print_row(out, sign, &show_count(entry.packets), &share, entry.name)?;
            }
        }
        let (lost, unexplained) = (ledger.total(Section::Loss), ledger.unexplained());
        if (lost, unexplained) == (0, 0) {
            print_row(out, "lost", "0", "", "nothing")?;
        }
        let uncertain = ledger.total(Section::Uncertain);
        if uncertain > 0 {
            let count = show_count(uncertain);
            print_row(out, "", &count, &share(uncertain), "uncertain: sent or lost")?;
        }
        let name = if self.so_far { "on its way, or unexplained" } else { "unexplained" };
        print_row(out, "", &unexplained.to_string(), "", name)?;
        for (loss, remedy) in remedies(ledger) {
            writeln!(out, "  advice {}: {remedy}", loss.replace('_', " "))?;
        }
        // The interface's own count includes other senders' packets. It helps only if packets are
        // unexplained.
        let helps = |name| name != "card_received" || unexplained != 0;
        let notes = ledger.entries(Section::Note);
        for entry in notes.filter(|entry| entry.packets > 0 && helps(entry.name)) {
            print_row(out, "note", &show_count(entry.packets), "", entry.name)?;
        }
        Ok(())
    }
}

/// Prints a line of the ledger.
fn print_row(
    out: &mut impl Write,
    sign: &str,
    count: &str,
    share: &str,
    name: &str,
) -> io::Result<()> {
    writeln!(out, "  {sign:<5}{count:>17}{share:>9}  {}", name.replace('_', " "))
}

/// `{in, out, omitted {name: count}, losses {name: count}, remedies {name: text}, uncertain {min, max},
/// unexplained, notes {name: count}}`. At least `min` and at most `max` of the uncertain packets are out.
pub fn ledger_value(ledger: &Ledger) -> Value {
    let names = |section| -> Map<String, Value> {
        let entries = ledger.entries(section).filter(|entry| entry.packets > 0);
        entries.map(|entry| (entry.name.to_owned(), entry.packets.into())).collect()
    };
    let mut object = json!({
        "in": ledger.total(Section::In),
        "out": ledger.total(Section::Out),
        "losses": names(Section::Loss),
    });
    if ledger.total(Section::Omitted) > 0 {
        object["omitted"] = names(Section::Omitted).into();
    }
    let remedies = remedies(ledger);
    if !remedies.is_empty() {
        object["remedies"] = remedies.into_iter().collect();
    }
    let uncertain = ledger.total(Section::Uncertain);
    if uncertain > 0 {
        object["uncertain"] = json!({"min": 0, "max": uncertain});
    }
    object["unexplained"] = ledger.unexplained().into();
    object["notes"] = names(Section::Note).into();
    object
}

fn recorded_json<S: serde::Serializer>(
    recorded: &Option<Recorded>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    recorded.map(Recorded::to_json).serialize(serializer)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn analysis_json<S: serde::Serializer>(
    analysis: &Option<Analysis>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    analysis.as_ref().map(analysis::to_json).serialize(serializer)
}

fn stats_json<S: serde::Serializer>(
    stats: &Option<Stats>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    stats.as_ref().map(Stats::to_json).serialize(serializer)
}

fn ledger_json<S: serde::Serializer>(ledger: &Ledger, serializer: S) -> Result<S::Ok, S::Error> {
    ledger_value(ledger).serialize(serializer)
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
    fn packets_in_memory_are_printed_if_there_are_any() {
        let text = |packets, short| {
            let mut text = Vec::new();
            MemoryReport { packets, period_s: 2.0, short }.print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(text(10, false).contains("10 packets of 2 s in memory"), "{}", text(10, false));
        assert_eq!(text(0, false), "");
        assert!(text(0, true).contains("--keep-bytes"));
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
