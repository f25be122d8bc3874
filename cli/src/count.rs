//! `sluice count`: receives and counts packets.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::Error;
use sluicegate::port::{Inspect, Kind, OpenOptions, Port, PortName};
use sluicegate_traffic::analyse::{Analysis, InKernel};

use crate::analysis::{analysis_of, visitors};
use crate::args::{Common, PortFlags, Receiving, options_for_kind};
use crate::counters::{Totals, WorkerCounters};
use crate::ledger::Section;
use crate::ports;
use crate::report::Report;
use crate::run::{Nothing, Outcomes, ReceiveCounts, RunControl, RunOptions, receive};
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
    /// Port to receive from: eth0, any, packet:eth0,method=recv, mirror:eth0, xdp:eth0, tap:tap0, pcap:FILE,
    /// null:
    port: PortName,

    /// Filter, as the rest of the line: udp port 53
    #[arg(value_name = "FILTER", conflicts_with = "filter")]
    words: Vec<String>,

    /// Count only packets that match a pcap-filter expression. Protocols and ports of packets with
    /// a VLAN tag match only after the word vlan: vlan and udp port 53
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
    ports::await_input(&port)?;
    let opened = Port::open(&port, &OpenOptions { inspect, ..options })?;
    let mut report = Report::of_port("count", &opened, &common);
    ports::announce(&opened, &common, &mut report);
    common.become_user()?;
    let options = RunOptions { common: &common, wait: receiving.wait, stdout_is_taken: false };
    let signals = Signals::catch()?;
    let queues = opened.queues;
    let ended = if analyze && in_kernel.is_none() {
        let (mut visitors, shown) = visitors(&queues);
        let so_far = || shown.analysis();
        let analysis: Option<&dyn Fn() -> Analysis> = Some(&so_far);
        let mut control =
            CountControl { report: &mut report, port: &opened.name, common: &common, analysis };
        let work = queues.into_iter().zip(&mut visitors).collect();
        let ended = receive(work, options, &signals, &mut control)?;
        report.analysis = Some(analysis_of(&visitors));
        ended
    } else {
        let so_far = in_kernel.map(|it| move || Analysis::of(&it.shares()));
        let analysis = so_far.as_ref().map(|so_far| so_far as &dyn Fn() -> Analysis);
        let mut control =
            CountControl { report: &mut report, port: &opened.name, common: &common, analysis };
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
pub fn counts_in_kernel(port: &PortName) -> bool {
    port.kind() == Kind::Xdp && matches!(port.option("action"), Some("drop" | "pass"))
}

/// Controls a count.
struct CountControl<'a> {
    report: &'a mut Report,
    port: &'a PortName,
    common: &'a Common,
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
        ports::announce_later(self.port, self.common.netns.as_deref(), self.report);
    }
}
