//! `sluice capture`: packets into a file, a pipe, or lines on the terminal.
//!
//! ```text
//!   one queue:       ring → encoder → chunk ───────────────────────────→ file
//!   several:         ring → encoder → chunk ─┐
//!                    ring → encoder → chunk ─┴→ merge (order of time) ─→ file
//! ```

mod lines;
mod merge;
mod options;
mod recorder;

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{Encoder, EncoderConfig, InterfaceStats, Merger, Output, Summary};
use sluicegate::ledger::Role;
use sluicegate::link;
use sluicegate::port::{Kind, Port, Queue};
use sluicegate::ring::Direction;

use lines::Lines;
use merge::merge;
pub use options::Args;
use options::Options;
use recorder::{Capture, File, HandOn, Numbers, Recorder, now_ns};

use crate::report::{Files, Report};
use crate::run::{Counters, Limits, Outcome, Run, Totals, hold_signals, run};
use crate::status::Status;
use crate::{exit, notice};

/// Chunks on their way between recorders and the merging thread.
const IN_TRANSIT: usize = 256;

/// Runs the command.
pub fn capture(args: Args) -> anyhow::Result<()> {
    if args.ports.is_empty() {
        return list(&args);
    }
    let options = Options::of(args)?;
    let mut ports = Vec::new();
    for name in &options.ports {
        let port = options.common.open(name)?;
        notice::fallbacks(&port);
        ports.push(port);
    }
    let file = match &options.output {
        Some(config) => Some(Arc::new(File::new(Output::create(config.clone())?))),
        None => None,
    };
    let session = Session::set_up(&options, ports, file)?;
    session.run(&options)
}

/// Lists the interfaces one can capture from.
fn list(args: &Args) -> anyhow::Result<()> {
    let interfaces = link::interfaces(args.common.netns.as_deref())?;
    let mut out = stdout().lock();
    if args.common.json {
        let listed: Vec<_> = interfaces.iter().map(listed).collect();
        serde_json::to_writer(&mut out, &listed)?;
        writeln!(out)?;
        return Ok(());
    }
    for interface in interfaces {
        writeln!(out, "{interface}")?;
    }
    if stdout().is_terminal() {
        let example =
            args.common.netns.as_ref().map_or_else(String::new, |n| format!(" --netns {n}"));
        writeln!(out, "\nto see packets:  sluice capture IFACE{example}")?;
        writeln!(out, "into a file:     sluice capture IFACE{example} -w trace.pcapng")?;
    }
    Ok(())
}

/// An interface as `--json` lists it.
fn listed(interface: &link::Interface) -> serde_json::Value {
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    serde_json::json!({
        "name": interface.name,
        "kind": interface.kind,
        "state": interface.state(),
        "loopback": interface.loopback,
        "mac": interface.mac.map(|mac| mac.to_string()),
        "mtu": interface.mtu,
        "addresses": addresses,
    })
}

/// A capture, set up and not yet running.
struct Session {
    reports: Vec<Report>,
    /// For each port: its queues' places in `work`, and its numbers in the file.
    ports: Vec<(std::ops::Range<usize>, Arc<Numbers>)>,
    work: Vec<(Queue, Capture)>,
    file: Option<Arc<File>>,
    merging: Option<JoinHandle<u64>>,
}

impl Session {
    fn set_up(options: &Options, ports: Vec<Port>, file: Option<Arc<File>>) -> Result<Self> {
        // Before the merging thread is there.
        hold_signals()?;
        let recorders: usize = ports.iter().map(|port| port.queues.len()).sum();
        let live = ports.iter().any(|port| port.name.kind() != Kind::Pcap);
        let (merging, mut hand_ons) = match &file {
            Some(file) if recorders > 1 => merging(options, recorders, live, file)?,
            _ => (None, vec![HandOn::Write]),
        };
        let mut session =
            Self { reports: Vec::new(), ports: Vec::new(), work: Vec::new(), file, merging };
        hand_ons.reverse();
        for port in ports {
            session.add(options, port, &mut hand_ons)?;
        }
        Ok(session)
    }

    fn add(&mut self, options: &Options, port: Port, hand_ons: &mut Vec<HandOn>) -> Result<()> {
        self.reports.push(Report::of_port("capture", &port, &options.common));
        let Port { name, queues, .. } = port;
        let numbers = Arc::new(Numbers::new(name.option("filter").map(str::to_owned)));
        // What one queue holds back is to be there well before the others stop waiting for it.
        let patience = match &self.merging {
            Some(_) => options.patience.min(options.order_window / 4),
            None => options.patience,
        };
        let first = self.work.len();
        let count = queues.len() as u32;
        for queue in queues {
            let encoder = Encoder::new(&EncoderConfig {
                directions: match name.kind() {
                    Kind::Pcap => &[Direction::In, Direction::Out],
                    _ => &[Direction::Out],
                },
                queue: queue.number(),
                queues: count,
                ..options.encoder.clone()
            });
            let recorder = match (&self.file, hand_ons.pop()) {
                (Some(file), Some(hand_on)) => Some(Recorder::new(
                    encoder,
                    hand_on,
                    Arc::clone(file),
                    Arc::clone(&numbers),
                    patience,
                    queue.interfaces(),
                )?),
                _ => None,
            };
            let lines = options.print.then(|| Lines::new(options.printer()));
            self.work.push((queue, Capture { recorder, lines }));
        }
        self.ports.push((first..self.work.len(), numbers));
        Ok(())
    }

    fn run(self, options: &Options) -> anyhow::Result<()> {
        let Self { mut reports, ports, work, file, merging } = self;
        let mut status = Status::new(&options.common);
        let limits = Limits {
            watch_reader: options.stdout_is_taken,
            ..options.common.limits(status.interval())
        };
        let (queues, mut captures): (Vec<_>, Vec<_>) = work.into_iter().unzip();
        let started_ns = now_ns();
        let pairs = queues.into_iter().zip(&mut captures).collect();
        let mut ended = run(pairs, &limits, |counters, at| {
            // The live line would cut the packets' lines to pieces.
            if !options.print {
                status.show(counters, at);
            }
            if let Some(file) = &file {
                note_statistics(file, &ports, counters, started_ns);
            }
        })?;
        status.done();
        let mut error = captures.iter_mut().find_map(take_error);
        let not_printed = captures.iter().filter_map(|c| c.lines.as_ref()).map(Lines::lost).sum();
        drop(captures);
        let late = merging.map_or(0, |thread| thread.join().unwrap_or_default());
        for (report, (range, _)) in reports.iter_mut().zip(&ports) {
            report.count(&ended.outcomes[range.clone()], ended.elapsed);
        }
        let summary = file.map(|file| {
            finish_statistics(&file, &ports, &ended, started_ns);
            Arc::into_inner(file).map(|file| file.into_output().finish())
        });
        let mut report = Report::together(reports);
        for port in &mut report.ports {
            // What became of them then is known of all ports together only.
            port.ledger.add(Role::Out, "handed_on", port.traffic.packets);
        }
        let mut reader_left = ended.reader_left || not_printed > 0 && error.is_none();
        match summary.flatten() {
            Some(summary) => {
                account(&mut report, &summary, options, late);
                reader_left |= summary.failure.as_ref().is_some_and(is_closed_pipe);
                error = error.or(summary.failure.map(anyhow::Error::from));
            }
            None => {
                let printed = report.traffic.packets - not_printed;
                report.ledger.add(Role::Out, "printed", printed);
                report.ledger.add(Role::Loss, "not_printed", not_printed);
            }
        }
        if options.stdout_is_taken {
            report.print(&mut stderr().lock(), options.common.json)?;
        } else {
            report.print(&mut stdout().lock(), options.common.json)?;
        }
        if reader_left {
            eprintln!("sluice: the reader closed the pipe");
            return exit::first_error(&mut ended.outcomes);
        }
        match error {
            Some(error) => Err(error),
            None => exit::first_error(&mut ended.outcomes),
        }
    }
}

/// Starts the thread that merges, and makes each recorder's end of the channels.
fn merging(
    options: &Options,
    recorders: usize,
    live: bool,
    file: &Arc<File>,
) -> Result<(Option<JoinHandle<u64>>, Vec<HandOn>)> {
    let (to, incoming) = sync_channel(IN_TRANSIT);
    let (back, empties): (Vec<_>, Vec<_>) = (0..recorders).map(|_| channel()).unzip();
    let hand_ons = empties.into_iter().enumerate();
    let hand_ons = hand_ons
        .map(|(source, back)| HandOn::Merge { source, to: to.clone(), back, made: 1 })
        .collect();
    let merger = Merger::with_window(recorders, options.order_window);
    let out = Encoder::new(&options.encoder).chunk();
    let file = Arc::clone(file);
    let thread = std::thread::Builder::new()
        .name("merge".into())
        .spawn(move || merge(&incoming, &back, merger, live, out, &file))
        .map_err(|e| Error::system("start", "the merging thread", e))?;
    Ok((Some(thread), hand_ons))
}

fn take_error(capture: &mut Capture) -> Option<anyhow::Error> {
    let recorder = capture.recorder.as_mut().and_then(Recorder::take_error);
    let lines = capture.lines.as_mut().and_then(Lines::take_error);
    recorder.map(anyhow::Error::from).or(lines.map(anyhow::Error::from))
}

/// Where the packets went that were to be written.
fn account(report: &mut Report, summary: &Summary, options: &Options, late: u64) {
    report.ledger.add(Role::Out, "written", summary.packets);
    report.ledger.add(Role::Loss, "not_written", summary.lost);
    report.ledger.add(Role::Note, "out_of_order", late);
    report.ledger.add(Role::Note, "in_deleted_files", summary.packets_deleted);
    let path = options.output.as_ref().map_or_else(String::new, |o| o.path.display().to_string());
    report.files = Some(Files {
        path: if path == "-" { "standard output".into() } else { path },
        count: summary.files,
        bytes: summary.bytes,
        deleted: summary.files_deleted,
    });
}

fn is_closed_pipe(error: &Error) -> bool {
    error.errno() == Some(nix::libc::EPIPE)
}

/// Notes each interface's statistics so far, so that every file of a rotation ends with some.
fn note_statistics(
    file: &File,
    ports: &[(std::ops::Range<usize>, Arc<Numbers>)],
    counters: &[Counters],
    started_ns: u64,
) {
    for (range, numbers) in ports {
        set_statistics(file, numbers, Totals::sum(&counters[range.clone()]), started_ns);
    }
}

/// Notes the final statistics.
fn finish_statistics(
    file: &File,
    ports: &[(std::ops::Range<usize>, Arc<Numbers>)],
    ended: &Run,
    started_ns: u64,
) {
    for (range, numbers) in ports {
        let outcomes = &ended.outcomes[range.clone()];
        let sum = |n: fn(&Outcome) -> u64| outcomes.iter().map(n).sum();
        let totals = Totals {
            packets: sum(|o| o.packets),
            bytes: 0,
            offered: sum(|o| o.stats.offered.saturating_sub(o.after_end)),
            lost: sum(|o| o.stats.lost_full),
        };
        set_statistics(file, numbers, totals, started_ns);
    }
}

/// A port's statistics; they are those of its only interface, so a file's several have none.
fn set_statistics(file: &File, numbers: &Numbers, totals: Totals, started_ns: u64) {
    let Ok(in_file) = numbers.of(&[], file) else { return };
    let &[number] = in_file.as_slice() else { return };
    let taken_ns = now_ns();
    let stats = InterfaceStats {
        taken_ns,
        start_ns: Some(started_ns),
        end_ns: Some(taken_ns),
        received: Some(totals.offered),
        dropped: None,
        filter_accepted: Some(totals.offered),
        os_dropped: Some(totals.lost),
        delivered: Some(totals.packets),
        losses: match totals.lost {
            0 => Vec::new(),
            lost => vec![("ring full".into(), lost)],
        },
    };
    // The number came from the same output.
    let _ = file.output().set_statistics(number, stats);
}
