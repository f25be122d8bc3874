//! `sluice count`: receives and counts packets.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::error::Error;
use sluicegate::port::{Inspect, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Queue};
use sluicegate::ring::Packet;
use sluicegate::xdp::wall_ahead_ns;
use sluicegate_traffic::analyse::{Analyser, Analysis, InKernel, Share};

use crate::args::{Common, PortFlags, Receiving, options_for_kind};
use crate::counters::{Totals, WorkerCounters};
use crate::ledger::Section;
use crate::ports;
use crate::report::Report;
use crate::run::{Nothing, Outcomes, ReceiveCounts, RunControl, RunOptions, Visitor, receive};
use crate::signals::Signals;
use crate::status::Status;

const EXAMPLES: &str = "\
Examples:
  sluice count eth0 --duration 10s
  sluice count packet:eth0,method=recvmmsg -f 'udp port 53'
  sluice count eth0 --threads 2 --cpus 0-1 --json
  sluice count xdp:eth0,action=drop
  sluice count eth0 --analyze --duration 10s
  sluice count xdp:eth0,action=drop --analyze
  sluice count pcap:trace.pcapng -f 'tcp[tcpflags] & tcp-syn != 0'";

/// Receive and count packets
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port to receive from: eth0, any, packet:eth0?method=recv, mirror:eth0, xdp:eth0, tap:tap0, pcap:FILE,
    /// null:
    port: PortName,

    /// Filter, as the rest of the line: udp port 53
    #[arg(value_name = "FILTER", conflicts_with = "filter")]
    words: Vec<String>,

    /// Count only packets that match a pcap-filter expression
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// Analyse stamped packets (`generate --stamp`): loss, duplicates, order, corruption, latency
    #[arg(long)]
    analyze: bool,

    #[command(flatten)]
    port_flags: PortFlags,

    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    receiving: Receiving,
}

/// Runs the command.
pub fn count(args: Args) -> anyhow::Result<()> {
    let Args { mut port, words, filter, analyze, port_flags, common, receiving } = args;
    let filter = filter.or_else(|| (!words.is_empty()).then(|| words.join(" ")));
    if let (Some(filter), Some(own)) = (words.first(), port.option("filter")) {
        return Err(Error::Usage(format!(
            "two filters: '{own}' and '{filter} ...'; join them with 'and'"
        ))
        .into());
    }
    common.check()?;
    ports::apply_filter(&mut port, filter.as_deref())?;
    ports::apply_flags(&mut port, &port_flags)?;
    if matches!(port.kind(), Kind::Xdp | Kind::Mirror) && !analyze {
        // The command does not use timestamps here.
        port.set_default("timestamp", "off");
    }
    // Packets that stay in the kernel are analysed there.
    let in_kernel = match analyze && counts_in_kernel(&port) {
        true => Some(Arc::new(InKernel::new()?)),
        false => None,
    };
    let inspect = in_kernel.clone().map(|it| it as Arc<dyn Inspect>);
    let options = options_for_kind(common.recording(), port.kind());
    let opened = Port::open(&port, &OpenOptions { inspect, ..options })?;
    let mut report = Report::of_port("count", &opened, &common);
    ports::announce(&opened, &common, &mut report);
    common.become_user()?;
    let options = RunOptions { common: &common, wait: receiving.wait, stdout_is_taken: false };
    let signals = Signals::catch()?;
    let queues = opened.queues;
    let ended = if analyze && in_kernel.is_none() {
        let (mut visitors, shown) = visitors(&queues);
        let so_far =
            || Analysis::of(&shown.iter().map(lock).map(|it| it.clone()).collect::<Vec<_>>());
        let mut control = CountControl { report: &mut report, analysis: Some(&so_far) };
        let work = queues.into_iter().zip(&mut visitors).collect();
        let ended = receive(work, options, &signals, &mut control)?;
        let shares: Vec<Share> = visitors.iter().map(|it| it.analyser.share()).collect();
        report.analysis = Some(Analysis::of(&shares));
        ended
    } else {
        let so_far = in_kernel.map(|it| move || Analysis::of(&it.shares()));
        let analysis = so_far.as_ref().map(|so_far| so_far as &dyn Fn() -> Analysis);
        let mut control = CountControl { report: &mut report, analysis };
        let mut visitors: Vec<Nothing> = queues.iter().map(|_| Nothing).collect();
        let work = queues.into_iter().zip(&mut visitors).collect();
        let ended = receive(work, options, &signals, &mut control)?;
        report.analysis = analysis.map(|analysis| analysis());
        ended
    };
    drop(signals);
    report.count(&ended.outcomes, ended.elapsed);
    CountControl::whole(report).publish(false, common.json)?;
    Ok(ended.result?)
}

/// Returns true if the kernel counts a port's packets and delivers none.
fn counts_in_kernel(port: &PortName) -> bool {
    port.kind() == Kind::Xdp && matches!(port.option("action"), Some("drop" | "pass"))
}

/// Controls a count.
struct CountControl<'a> {
    report: &'a mut Report,
    /// The analysis so far, without latencies, if there is an analysis.
    analysis: Option<&'a dyn Fn() -> Analysis>,
}

impl CountControl<'_> {
    /// Makes the whole report from that of the only port.
    fn whole(report: Report) -> Report {
        let mut whole = Report::together(vec![report]);
        whole.ledger.add(Section::Out, "counted", whole.traffic.packets);
        whole
    }
}

impl RunControl<ReceiveCounts> for CountControl<'_> {
    fn report_so_far(&mut self, outcomes: &Outcomes<ReceiveCounts>, elapsed: Duration) -> Report {
        Self::whole(self.report.counted_so_far(outcomes, elapsed))
    }

    fn watch(&mut self, status: &mut Status, counters: &[WorkerCounters], elapsed: Duration) {
        if let Some(analysis) = self.analysis {
            status.analysed(&analysis());
        }
        status.show(Totals::sum(counters), elapsed);
    }

    fn at_end(&mut self) {
        self.report.read_interface();
    }
}

/// Interval between two updates of a worker's shared counts.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);

/// Analyses the packets of one queue.
struct Analysing {
    analyser: Analyser,
    /// For each interface of the queue, whether its packets begin with an Ethernet header.
    ethernet: Vec<bool>,
    shown: Arc<Mutex<Share>>,
    shown_at: Instant,
}

/// Creates a visitor for each queue, and the counts that they share meanwhile.
fn visitors(queues: &[Queue]) -> (Vec<Analysing>, Vec<Arc<Mutex<Share>>>) {
    let shown: Vec<_> = queues.iter().map(|_| Arc::new(Mutex::default())).collect();
    let visitors = shown.iter().map(|shown| Analysing {
        analyser: Analyser::new(wall_ahead_ns),
        ethernet: Vec::new(),
        shown: Arc::clone(shown),
        shown_at: Instant::now(),
    });
    (visitors.collect(), shown)
}

fn lock(share: &Arc<Mutex<Share>>) -> MutexGuard<'_, Share> {
    share.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Visitor for Analysing {
    fn prepare(&mut self, queue: &Queue) {
        self.analyser.begin_batch();
        let known = self.ethernet.len();
        let new = queue.interfaces().iter().skip(known);
        self.ethernet.extend(new.map(|interface| interface.link_type == LINKTYPE_ETHERNET));
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        match self.ethernet.get(packet.meta().interface as usize) {
            Some(false) => self.analyser.unstamped(),
            _ => self.analyser.packet(packet),
        }
    }

    fn batch_done(&mut self) -> ControlFlow<()> {
        if self.shown_at.elapsed() >= SHOW_INTERVAL {
            let counts = self.analyser.counts();
            *lock(&self.shown) = counts;
            self.shown_at = Instant::now();
        }
        ControlFlow::Continue(())
    }
}
