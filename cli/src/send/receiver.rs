//! The receiver of the packets that a run sends: it counts their stamps.

use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate::error::{Error, Result};
use sluicegate::port::{Kind, Port, PortName, Queue};
use sluicegate::ring::Wait;
use sluicegate_traffic::analyse::Analysis;

use crate::analysis::{AnalysisSoFar, AnalysisVisitor, analysis_of, visitors};
use crate::args::{Common, options_for_kind};
use crate::count::counts_in_kernel;
use crate::ledger::Section;
use crate::ports;
use crate::report::Report;
use crate::run::{ReceiveCounts, Receivers, Run};
use crate::signals::Signals;

/// Packets that follow the last missing one arrive within this time: duplicates.
const AFTER_LAST: Duration = Duration::from_millis(120);
/// Interval between two checks of the counts while the last packets arrive.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A port that receives what a run sends.
pub struct Receiver {
    report: Report,
    port: PortName,
    netns: Option<String>,
    queues: Vec<Queue>,
    drain: Duration,
    shown: AnalysisSoFar,
    threads: Option<Receivers<AnalysisVisitor>>,
}

impl Receiver {
    /// Opens a port, in the network namespace of `common`. After sending, the receiver waits for missing
    /// packets, at most for the time `drain`.
    ///
    /// # Errors
    /// A port without packets from a network; those of opening it.
    pub fn open(port: &PortName, common: &Common, drain: Duration) -> Result<Self> {
        if matches!(port.kind(), Kind::Pcap | Kind::Null | Kind::Live) || counts_in_kernel(port) {
            let problem = "--receive needs a port that receives packets from a network; name an interface, \
                           or use count --analyze";
            return Err(port.error(problem));
        }
        let opened = Port::open(port, &options_for_kind(common.recording(), port.kind()))?;
        let mut report = Report::of_port("generate", &opened, common);
        ports::announce(&opened, common, &mut report);
        Ok(Self {
            report,
            port: opened.name,
            netns: common.netns.clone(),
            queues: opened.queues,
            drain,
            shown: AnalysisSoFar::default(),
            threads: None,
        })
    }

    /// Starts to receive.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(&mut self) -> Result<()> {
        let queues = std::mem::take(&mut self.queues);
        let (visitors, shown) = visitors(&queues);
        self.shown = shown;
        let work = queues.into_iter().zip(visitors).collect();
        self.threads = Some(Receivers::start(work, Wait::default())?);
        Ok(())
    }

    /// Returns the analysis so far, without latencies.
    pub fn analysis(&self) -> Analysis {
        self.shown.analysis()
    }

    /// Reports whether it can receive nothing more.
    pub fn is_over(&self) -> bool {
        self.threads.as_ref().is_none_or(Receivers::is_over)
    }

    /// Waits until `sent` packets have arrived, or until the time is over, or a signal comes; then ends.
    /// Returns the report, the analysis and the first failure.
    pub fn end(mut self, sent: u64, signals: &Signals) -> (Report, Analysis, Result<()>) {
        let mut last = Instant::now();
        let (end, mut arrived) = (last + self.drain, different(&self.analysis()));
        while Instant::now() < end && !self.is_over() && !signals.take() {
            let now = different(&self.analysis());
            if now > arrived {
                (arrived, last) = (now, Instant::now());
            }
            if arrived >= sent {
                std::thread::sleep(AFTER_LAST.min(end.saturating_duration_since(Instant::now())));
                break;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        self.report.read_interface();
        let Some(threads) = self.threads.take() else {
            return (self.report, Analysis::default(), Ok(()));
        };
        let (run, visitors) = threads.end(last);
        ports::announce_later(&self.port, self.netns.as_deref(), &mut self.report);
        let analysis = analysis_of(&visitors);
        let report = count(self.report, &run, &analysis);
        (report, analysis, run.result)
    }
}

/// Completes the report of a receiver.
fn count(mut report: Report, run: &Run<ReceiveCounts>, analysis: &Analysis) -> Report {
    report.count(&run.outcomes, run.elapsed);
    report.note_host_drops();
    report.ledger.add(Section::Out, "counted", report.traffic.packets);
    let others = analysis.others;
    let details = json!({
        "unstamped": others.unstamped,
        "corrupt": others.corrupt,
        "untracked": others.untracked,
        "unchecked": others.unchecked,
    });
    report.details = details.as_object().cloned().unwrap_or_default();
    report
}

/// Returns the number of different packets that have arrived.
fn different(analysis: &Analysis) -> u64 {
    let workers = analysis.streams.iter().flat_map(|stream| &stream.workers);
    workers.map(|worker| worker.counts.received - worker.counts.duplicates).sum()
}

/// Rejects threads that stamps cannot tell apart.
///
/// # Errors
/// More than 256 threads.
pub fn check_workers(workers: usize) -> Result<()> {
    if workers <= 256 {
        return Ok(());
    }
    let problem =
        format!("--receive: stamps tell 256 threads apart, not {workers}; use --threads 256");
    Err(Error::Usage(problem))
}
