//! A capture that is set up or running, and the fate of its packets at the end.

use std::io::{IsTerminal, stderr};
use std::ops::{ControlFlow, Range};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{Encoder, EncoderConfig, Summary};
use sluicegate::port::{Kind, Port, Queue};
use sluicegate::ring::now_ns;

use super::are_live;
use super::chunks::{ChunkRoute, MergeOrder, Merging, Quiet, routes};
use super::keep::TriggerFilter;
use super::lines::{self, LineOutput, Lines};
use super::options::Options;
use super::post_rotate::PostRotate;
use super::recorder::{Capture, File, Numbers, Recorder, set_statistics};
use crate::counters::{Totals, WorkerCounters};
use crate::ledger::Section;
use crate::new_file::NewFile;
use crate::notice;
use crate::ports;
use crate::report::{FilesReport, Report};
use crate::run::{Outcomes, ReceiveCounts, RunControl, is_reader_left, receive};
use crate::signals::{self, Signals};
use crate::stats::{Counter, PacketCounts, SharedCounts, Stats, Tables};
use crate::status::Status;

/// Advice for packets that the pipe's reader did not read.
const READER_LEFT: &str = "the reader of the pipe exited before the end";
/// The remedy of a loss whose error is printed.
const SEE_ERROR: &str = "see the error, which names the cause and the remedy";

/// A port to capture from.
struct CapturePort {
    report: Report,
    /// The indices of its queues among the workers.
    queues: Range<usize>,
    /// The numbers of its interfaces in the file.
    numbers: Arc<Numbers>,
}

/// A capture, set up or running.
pub struct Session<'a> {
    options: &'a Options,
    ports: Vec<CapturePort>,
    /// Moves to the workers when these start.
    work: Vec<(Queue, Capture)>,
    file: Option<Arc<File>>,
    lines: Option<Arc<LineOutput>>,
    /// The counts of each queue, if they are wanted.
    stats: Vec<SharedCounts>,
    /// The memory for their sum.
    sum: Option<PacketCounts>,
    post_rotate: Option<PostRotate>,
    /// The threads that merge for the file, and for the lines.
    merging: [Merging; 2],
    /// The opening of the first queue, as a packet's time.
    started_ns: u64,
    /// The notice of a removed file has been printed.
    removed_reported: bool,
}

impl<'a> Session<'a> {
    pub fn set_up(
        options: &'a Options,
        ports: Vec<(Port, Report)>,
        numbers: Vec<Arc<Numbers>>,
        file: Option<Arc<File>>,
        tables: Option<Tables>,
    ) -> Result<Self> {
        // Called before the merging threads start.
        signals::hold()?;
        let post_rotate = options.args.post_rotate.clone().zip(file.as_ref());
        let ring = options.output.as_ref().is_some_and(|output| output.rotation.files.is_some());
        let post_rotate =
            post_rotate.map(|(program, file)| PostRotate::start(program, &mut file.output(), ring));
        let post_rotate = post_rotate.transpose()?;
        let sources = ports.iter().map(|(port, _)| port.queues.len()).sum();
        let live = are_live(&options.ports);
        let order = MergeOrder { sources, window: options.args.reorder_window, live };
        let lines = options.print.then(|| Arc::new(LineOutput::new(options.line_starts())));
        let chunk = || Encoder::new(&options.encoder).chunk();
        file.as_ref().map_or(Ok(()), |file| file.start_saving(chunk()))?;
        let to_file = file.as_ref().map(|file| routes(order, chunk(), file));
        let (merges_file, to_file) = to_file.transpose()?.unwrap_or_default();
        let to_lines = lines.as_ref().map(|lines| routes(order, lines::merged_chunk(), lines));
        let (merges_lines, to_lines) = to_lines.transpose()?.unwrap_or_default();
        let merging = [merges_file, merges_lines];
        let (now_ns, queues) = (now_ns(), ports.iter().flat_map(|(port, _)| &port.queues));
        let since = queues.map(|queue| queue.opened_at().elapsed()).max().unwrap_or_default();
        let started_ns = now_ns.saturating_sub(since.as_nanos() as u64);
        let (sum, counters) = tables.map(|tables| (tables.sum, tables.counters)).unzip();
        let mut session = Self {
            options,
            ports: Vec::new(),
            work: Vec::new(),
            file,
            lines,
            stats: Vec::new(),
            sum,
            post_rotate,
            merging,
            started_ns,
            removed_reported: false,
        };
        let (mut to_file, mut to_lines) = (to_file.into_iter(), to_lines.into_iter());
        let mut counters = counters.into_iter().flatten();
        for ((port, report), numbers) in ports.into_iter().zip(numbers) {
            session.add(port, report, numbers, &mut to_file, &mut to_lines, &mut counters)?;
        }
        Ok(session)
    }

    /// Announces the capture on a terminal, because a capture to a file prints nothing until its end, and a
    /// link may be quiet.
    pub fn announce(&self) {
        let options = self.options;
        let is_live = options.ports.iter().any(|port| port.kind() != Kind::Pcap);
        if options.args.common.json || !stderr().is_terminal() {
            return;
        }
        let ports: Vec<String> =
            self.ports.iter().map(|port| port.report.port_and_method()).collect();
        let ports = ports.join(", ");
        let filter = options.filter.as_deref().map(|filter| format!(", '{filter}'"));
        let filter = filter.unwrap_or_default();
        match &options.output {
            Some(output) => {
                let path = shown(&output.path);
                notice::say(format_args!("capturing {ports}{filter} into {path}; ^C ends it"));
            }
            None if is_live => {
                notice::say(format_args!("listening on {ports}{filter}; ^C ends it"));
            }
            None => {}
        }
    }

    fn add(
        &mut self,
        port: Port,
        report: Report,
        numbers: Arc<Numbers>,
        to_file: &mut impl Iterator<Item = ChunkRoute>,
        to_lines: &mut impl Iterator<Item = ChunkRoute>,
        counters: &mut impl Iterator<Item = Counter>,
    ) -> Result<()> {
        let options = self.options;
        let Port { name, queues, .. } = port;
        let quiet = (name.kind() != Kind::Pcap).then(|| Quiet::of(&name)).transpose()?;
        let first = self.work.len();
        let count = queues.len() as u32;
        for queue in queues {
            let recorder = self.file.as_ref().zip(to_file.next()).map(|(file, route)| {
                let encoder = Encoder::new(&EncoderConfig {
                    queue: queue.number(),
                    queues: count,
                    ..options.encoder.clone()
                });
                // A queue passes its packets on well before the merger's wait for them ends.
                let hold_time = match route {
                    ChunkRoute::Merged { .. } => {
                        options.hold_time.min(options.args.reorder_window / 4)
                    }
                    ChunkRoute::Straight => options.hold_time,
                };
                let (file, numbers) = (Arc::clone(file), Arc::clone(&numbers));
                let mut recorder = Recorder::new(encoder, route, file, numbers, hold_time, quiet);
                let trigger = options.args.keep.trigger.clone();
                let reads_file = name.kind() == Kind::Pcap;
                recorder.trigger = trigger.map(|it| TriggerFilter::new(it, reads_file));
                recorder
            });
            let lines = self.lines.as_ref().zip(to_lines.next()).map(|(lines, route)| {
                Lines::new(options.printer(), route, Arc::clone(lines), quiet, numbers.several)
            });
            let counter = counters.next();
            self.stats.extend(counter.as_ref().map(Counter::shared));
            let mut capture = Capture { recorder, lines, counter };
            if let Some(recorder) = &mut capture.recorder {
                recorder.meet(queue.interfaces())?;
            }
            self.work.push((queue, capture));
        }
        self.ports.push(CapturePort { report, queues: first..self.work.len(), numbers });
        Ok(())
    }

    pub fn run(mut self, summary: Option<NewFile>) -> anyhow::Result<()> {
        let options = self.options;
        let (queues, mut captures): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.work).into_iter().unzip();
        let pairs = queues.into_iter().zip(&mut captures).collect();
        let signals = Signals::catch()?;
        let ended = receive(pairs, options.run(), &signals, &mut self)?;
        if self.file.is_some() {
            // Without that thread signals wait until the files are complete.
            let _ = signals.end_at_second();
        }
        let stats = options.args.stats.zip(self.sum.take()).map(|(top, mut sum)| {
            SharedCounts::sum(&self.stats, &mut sum);
            Stats::of(sum, top)
        });
        let Self {
            mut ports, file, lines, post_rotate, merging, started_ns, removed_reported, ..
        } = self;
        for port in &mut ports {
            port.report.count(&ended.outcomes[port.queues.clone()], ended.elapsed);
        }
        let mut error = captures.iter_mut().find_map(|capture| {
            let error = capture.recorder.as_mut().and_then(Recorder::take_error);
            error.map(anyhow::Error::from)
        });
        let mut reader_left = ended.reader_left;
        // The merging threads end when the last queue has exited.
        drop(captures);
        let [late, _] = merging.map(|merging| {
            merging.map_or(0, |thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        for CapturePort { queues, numbers, .. } in &ports {
            if let Some(file) = &file {
                let totals = totals(&ended.outcomes[queues.clone()]);
                set_statistics(&mut file.output(), numbers, totals, started_ns);
            }
        }
        file.iter().for_each(|file| file.end_saving());
        let mut report = together(ports.into_iter().map(|port| port.report).collect());
        report.stats = stats;
        if file.is_none() && lines.is_none() {
            report.ledger.add(Section::Out, options.unwritten(), report.traffic.packets);
        }
        if let Some(lines) = lines {
            error = error.or(lines.take_error().map(anyhow::Error::from));
            account_for_lines(&mut report, &lines, options);
            reader_left |= lines.lost() > 0 && error.is_none();
        }
        file.iter().for_each(|file| file.account_for_memory(&mut report));
        if let Some(file) = file.and_then(Arc::into_inner) {
            let refused = file.refused();
            let output = file.into_output();
            let counts = Arc::clone(output.counts());
            let mut summary = output.finish();
            if let Some(text) = counts.removed().map(removed) {
                if !removed_reported {
                    notice::say(&text);
                }
                report.notices.push(text);
            }
            summary.lost += refused;
            account_for_files(&mut report, &summary, options, late);
            if refused > 0 {
                report.ledger.advise("not_written", SEE_ERROR);
            }
            if let Some(post_rotate) = &post_rotate {
                post_rotate.account(&mut report, &summary);
            }
            match summary.failure {
                Some(failure) if failure.errno() == Some(nix::libc::EPIPE) => reader_left = true,
                failure => error = error.or(failure.map(anyhow::Error::from)),
            }
        }
        drop(signals);
        let json = options.args.common.json;
        let published = match summary {
            Some(file) => {
                let mut text = Vec::new();
                report.print(&mut text, json)?;
                let is_stream = file.is_stream();
                let written = file.write(&text).inspect_err(|_| {
                    // The result is needed most where a disk is full.
                    let published = report.publish(options.stdout_is_taken, json);
                    published.err().iter().for_each(notice::say_error);
                });
                let left = is_stream && is_reader_left(&written);
                reader_left |= left;
                if left { Ok(()) } else { written.map_err(anyhow::Error::from) }
            }
            None => report.publish(options.stdout_is_taken, json),
        };
        if reader_left {
            notice::say("the reader closed the pipe");
        }
        // A program may take any time, or hang.
        let commands = post_rotate.map_or(Ok(()), PostRotate::finish);
        let captured = error.map_or_else(|| Ok(ended.result?), Err);
        if let (Err(_), Err(failure)) = (&captured, &published) {
            notice::say_error(failure);
        }
        captured.and(published).and(commands.map_err(Into::into))
    }
}

impl Session<'_> {
    /// Returns the counts so far, if they are wanted.
    fn stats_so_far(&self) -> Option<Stats> {
        let top = self.options.args.stats?;
        let counts = SharedCounts::so_far(&self.stats);
        Some(Stats::of(counts.inspect_err(|error| notice::say(error)).ok()?, top))
    }
}

impl RunControl<ReceiveCounts> for Session<'_> {
    fn report_so_far(&mut self, outcomes: &Outcomes<ReceiveCounts>, elapsed: Duration) -> Report {
        let of_port = |port: &mut CapturePort| {
            port.report.counted_so_far(&outcomes[port.queues.clone()], elapsed)
        };
        let mut whole = together(self.ports.iter_mut().map(of_port).collect());
        match &self.file {
            Some(file) => {
                let counts = file.counts();
                whole.ledger.add(Section::Out, "written", counts.written());
                whole.ledger.add(Section::Omitted, "after_last_file", counts.after_last_file());
                whole.ledger.add(Section::Loss, "not_written", file.lost());
                file.account_for_memory(&mut whole);
            }
            None => whole.ledger.add(Section::Out, self.options.unwritten(), whole.traffic.packets),
        }
        whole.stats = self.stats_so_far();
        whole
    }

    fn watch(&mut self, status: &mut Status, counters: &[WorkerCounters], elapsed: Duration) {
        if status.has_json_lines()
            && let Some(stats) = self.stats_so_far()
        {
            status.counted(&stats);
        }
        // The live line would cut the packets' lines to pieces.
        if !self.options.print {
            status.show(Totals::sum(counters), elapsed);
        }
        // Every file of a rotation ends with statistics. This thread does not wait for a write, because it
        // has to handle signals.
        if let Some(mut output) = self.file.as_ref().and_then(|file| file.idle_output()) {
            for CapturePort { queues, numbers, .. } in &self.ports {
                let totals = Totals::sum(&counters[queues.clone()]);
                set_statistics(&mut output, numbers, totals, self.started_ns);
            }
        }
    }

    fn tick(&mut self, status: &mut Status, _elapsed: Duration) -> ControlFlow<()> {
        let file = self.file.as_ref().filter(|_| !self.removed_reported);
        if let Some(path) = file.and_then(|file| file.counts().removed()) {
            status.say(removed(path));
            self.removed_reported = true;
        }
        self.file.iter().for_each(|file| file.save_silent());
        ControlFlow::Continue(())
    }

    fn save(&mut self) {
        self.file.iter().for_each(|file| file.save_now());
    }

    fn at_end(&mut self) {
        let netns = self.options.args.common.netns.as_deref();
        // First, because packets go on arriving.
        self.ports.iter_mut().for_each(|port| port.report.read_interface());
        for (port, name) in self.ports.iter_mut().zip(&self.options.ports) {
            ports::announce_later(name, netns, &mut port.report);
        }
    }
}

/// Creates the overall report, without the packets' fate.
fn together(reports: Vec<Report>) -> Report {
    let mut whole = Report::together(reports);
    for port in &mut whole.ports {
        // The later losses are counted for all ports together.
        port.ledger.add(Section::Out, "delivered", port.traffic.packets);
    }
    whole
}

/// Adds up the workers' counts, at the end.
fn totals(outcomes: &Outcomes<ReceiveCounts>) -> Totals {
    let mut totals = Totals::default();
    for ReceiveCounts { packets, stats, after_end, .. } in
        outcomes.iter().flatten().map(|outcome| outcome.counts)
    {
        totals.packets += packets;
        totals.received += stats.received.saturating_sub(after_end);
        totals.lost += stats.dropped_ring_full;
    }
    totals
}

/// Counts late lines and, if lines are the only output, the packets they stand for.
fn account_for_lines(report: &mut Report, lines: &LineOutput, options: &Options) {
    if options.output.is_none() {
        report.ledger.add(Section::Out, "printed", report.traffic.packets - lines.lost());
        report.ledger.add(Section::Loss, "not_printed", lines.lost());
    }
    // A line may be late although its record is not, or the reverse.
    let late = match options.output {
        Some(_) => "lines_out_of_order",
        None => "out_of_order",
    };
    report.ledger.add(Section::Note, late, lines.late());
}

/// Accounts for written, lost and deleted packets.
fn account_for_files(report: &mut Report, summary: &Summary, options: &Options, late: u64) {
    report.ledger.add(Section::Out, "written", summary.packets);
    report.ledger.add(Section::Omitted, "after_last_file", summary.after_last_file);
    report.ledger.add(Section::Loss, "not_written", summary.lost);
    let advice = match summary.failure.as_ref().map(Error::errno) {
        None | Some(Some(nix::libc::ENOSPC | nix::libc::EDQUOT)) => None,
        Some(Some(nix::libc::EPIPE)) => Some(READER_LEFT),
        Some(_) => Some(SEE_ERROR),
    };
    advice.into_iter().for_each(|advice| report.ledger.advise("not_written", advice));
    report.ledger.add(Section::Note, "out_of_order", late);
    report.ledger.add(Section::Note, "in_deleted_files", summary.packets_deleted);
    report.files = Some(FilesReport {
        path: options.output.as_ref().map_or_else(String::new, |output| shown(&output.path)),
        count: summary.files,
        bytes: summary.bytes,
        deleted: summary.files_deleted,
        to_delete: 0,
    });
}

/// Describes the loss of a file that was removed while it was written.
fn removed(path: &Path) -> String {
    format!(
        "{} was removed before it was complete, and its packets with it; to begin new files, use the flags of rotation",
        path.display()
    )
}

/// A file's name for people.
fn shown(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard output".into() } else { path.display().to_string() }
}
