//! `sluice count`: receives, counts, and lets go.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::port::{Inspect, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Queue};
use sluicegate::ring::Packet;
use sluicegate::xdp::wall_ahead_ns;
use sluicegate_traffic::analyse::{Analyser, Analysis, InKernel, Share};

use crate::analysis::JsonAnalysis;
use crate::args::{Common, Receiving};
use crate::ledger::Role;
use crate::report::Report;
use crate::run::{Control, Nothing, Outcome, Run, Visitor, WorkerCounters, first_error, run};
use crate::signals::Signals;
use crate::status::{Missing, Status};
use crate::{hidden, notice};

const EXAMPLES: &str = "\
Examples:
  sluice count eth0 --duration 10s
  sluice count 'packet:eth0?method=recvmmsg' -f 'udp port 53'
  sluice count eth0 --threads 2 --cpus 0-1 --json
  sluice count 'xdp:eth0?action=drop'
  sluice count eth0 --analyze --duration 10s
  sluice count 'xdp:eth0?action=drop' --analyze
  sluice count pcap:trace.pcapng -f 'tcp[tcpflags] & tcp-syn != 0'";

/// Receive packets, count them and let them go
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port to receive from: eth0, any, packet:eth0?method=recv, mirror:eth0, xdp:eth0, tap:tap0, pcap:FILE,
    /// null:
    port: PortName,

    /// Count only what a pcap-filter expression lets pass
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// Say what became of packets with a stamp (`generate --stamp`): lost, twice, out of order,
    /// corrupt, and how long they took
    #[arg(long)]
    analyze: bool,

    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    receiving: Receiving,
}

/// Runs the command.
pub fn count(args: Args) -> anyhow::Result<()> {
    let Args { mut port, filter, analyze, common, receiving } = args;
    common.check()?;
    notice::apply_filter(&mut port, filter.as_deref())?;
    if matches!(port.kind(), Kind::Xdp | Kind::Mirror) && !analyze {
        // Nobody looks at the time here.
        port.set_default("timestamp", "off");
    }
    // Where packets stay in the kernel, that is where they are looked at.
    let in_kernel = match analyze && counts_in_kernel(&port) {
        true => Some(Arc::new(InKernel::new()?)),
        false => None,
    };
    let inspect = in_kernel.clone().map(|it| it as Arc<dyn Inspect>);
    let opened = Port::open(&port, &OpenOptions { inspect, ..common.recording() })?;
    let mut report = Report::of_port("count", &opened, &common);
    notice::fallbacks(&opened, common.verbose);
    notice::diverts(&port);
    hidden::warn(&port, &common, &mut report);
    common.become_user()?;
    let way = CountMethod { common: &common, receiving };
    let mut ended = if let Some(in_kernel) = in_kernel {
        let missing = || Some(Missing::of(&Analysis::of(&in_kernel.shares())));
        let ended = way.receive(opened, &mut [Nothing], missing, &mut report)?;
        report.analysis = Some(JsonAnalysis::from(&Analysis::of(&in_kernel.shares())));
        ended
    } else if analyze {
        let (mut visitors, progress) = visitors(&opened.queues);
        let missing = || Some(Missing::of(&progress.analysis()));
        let ended = way.receive(opened, &mut visitors, missing, &mut report)?;
        report.analysis = Some(JsonAnalysis::from(&analysis(&visitors)));
        ended
    } else {
        let mut visitors: Vec<Nothing> = opened.queues.iter().map(|_| Nothing).collect();
        way.receive(opened, &mut visitors, || None, &mut report)?
    };
    report.count(ended.outcomes.iter(), ended.elapsed);
    let mut report = Report::together(vec![report]);
    report.ledger.add(Role::Out, "counted", report.traffic.packets);
    report.publish(false, common.json)?;
    first_error(&mut ended.outcomes)
}

/// Returns true if the kernel counts a port's packets and delivers none.
fn counts_in_kernel(port: &PortName) -> bool {
    port.kind() == Kind::Xdp && matches!(port.option("action"), Some("drop" | "pass"))
}

/// How packets are received.
struct CountMethod<'a> {
    common: &'a Common,
    receiving: Receiving,
}

impl CountMethod<'_> {
    /// Receives until the end, with a visitor at each queue; `missing` is what the status shows
    /// besides.
    fn receive<V: Visitor>(
        &self,
        port: Port,
        visitors: &mut [V],
        missing: impl Fn() -> Option<Missing>,
        report: &mut Report,
    ) -> anyhow::Result<Run> {
        let mut status = Status::new(self.common, false);
        let work = port.queues.into_iter().zip(visitors).collect();
        let limits = self.common.limits(self.receiving, status.interval());
        let json = self.common.json;
        let mut attendant = CountControl { status: &mut status, missing, report, json };
        let ended = run(work, &limits, &Signals::catch()?, &mut attendant)?;
        status.done();
        Ok(ended)
    }
}

/// Attends a count.
struct CountControl<'a, M> {
    status: &'a mut Status,
    /// The analysis' missing packets, if there is an analysis.
    missing: M,
    report: &'a mut Report,
    json: bool,
}

impl<M: Fn() -> Option<Missing>> Control<Outcome> for CountControl<'_, M> {
    fn watch(&mut self, counters: &[WorkerCounters], at: Duration) {
        self.status.analysed((self.missing)());
        self.status.show(counters, at);
    }

    fn ledger(&mut self, outcomes: &[Option<Arc<Outcome>>], at: Duration) {
        let report = self.report.counted_so_far(outcomes, at);
        let mut report = Report::together(vec![report]);
        report.ledger.add(Role::Out, "counted", report.traffic.packets);
        self.status.ledger(&report, self.json);
    }

    fn at_end(&mut self) {
        self.report.look_at_card();
    }
}

/// How often a worker lets others see what it has counted.
const SHOW: Duration = Duration::from_millis(100);

/// Analyses the packets of one queue.
pub struct Analysing {
    analyser: Analyser,
    /// For each interface of the queue, whether its packets begin with an Ethernet header.
    ethernet: Vec<bool>,
    shown: Arc<Mutex<Share>>,
    shown_at: Instant,
}

/// The latest counts of all queues.
pub struct CountProgress(Vec<Arc<Mutex<Share>>>);

/// A visitor for each queue, and what they show of their counts meanwhile.
pub fn visitors(queues: &[Queue]) -> (Vec<Analysing>, CountProgress) {
    let shown: Vec<_> = queues.iter().map(|_| Arc::new(Mutex::default())).collect();
    let visitors = shown.iter().map(|shown| Analysing {
        analyser: Analyser::new(wall_ahead_ns),
        ethernet: Vec::new(),
        shown: Arc::clone(shown),
        shown_at: Instant::now(),
    });
    (visitors.collect(), CountProgress(shown))
}

/// Merges the analyses of all visitors.
pub fn analysis(visitors: &[Analysing]) -> Analysis {
    let shares: Vec<Share> = visitors.iter().map(|visitor| visitor.analyser.share()).collect();
    Analysis::of(&shares)
}

impl CountProgress {
    /// The fate of packets so far, without latencies.
    pub fn analysis(&self) -> Analysis {
        let shares: Vec<Share> = self
            .0
            .iter()
            .map(|shown| shown.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .collect();
        Analysis::of(&shares)
    }
}

impl Analysing {
    fn show(&mut self) -> ControlFlow<()> {
        if self.shown_at.elapsed() >= SHOW {
            let counts = self.analyser.counts();
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = counts;
            self.shown_at = Instant::now();
        }
        ControlFlow::Continue(())
    }
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
        self.show()
    }

    fn idle(&mut self) -> ControlFlow<()> {
        self.show()
    }
}
