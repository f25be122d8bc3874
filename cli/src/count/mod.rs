//! `sluice count`: receives, counts, and lets go.

mod analysis;

use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Role;
use sluicegate::port::{Inspect, Kind, OpenOptions, Port, PortName};
use sluicegate_traffic::analyse::{Analysis, InKernel};

use crate::analysis::JsonAnalysis;
use crate::args::{Common, Receiving};
use crate::report::Report;
use crate::run::{Attend, Counters, Nothing, Outcome, Run, Visitor, run};
use crate::signals::Signals;
use crate::status::{Missing, Status};
use crate::{exit, hidden, notice};

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
    /// What to receive from: eth0, any, packet:eth0?method=recv, mirror:eth0, xdp:eth0, tap:tap0, pcap:FILE,
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
    let way = Way { common: &common, receiving };
    let mut ended = if let Some(in_kernel) = in_kernel {
        let missing = || Some(Missing::of(&Analysis::of(&in_kernel.shares())));
        let ended = way.receive(opened, &mut [Nothing], missing, &mut report)?;
        report.analysis = Some(JsonAnalysis::from(&Analysis::of(&in_kernel.shares())));
        ended
    } else if analyze {
        let (mut visitors, progress) = analysis::visitors(&opened.queues);
        let missing = || Some(Missing::of(&progress.analysis()));
        let ended = way.receive(opened, &mut visitors, missing, &mut report)?;
        report.analysis = Some(JsonAnalysis::from(&analysis::analysis(&visitors)));
        ended
    } else {
        let mut visitors: Vec<Nothing> = opened.queues.iter().map(|_| Nothing).collect();
        way.receive(opened, &mut visitors, || None, &mut report)?
    };
    report.count(ended.outcomes.iter(), ended.elapsed);
    let mut report = Report::together(vec![report]);
    report.ledger.add(Role::Out, "counted", report.traffic.packets);
    report.publish(false, common.json)?;
    exit::first_error(&mut ended.outcomes)
}

/// Whether a port's packets never come to it.
fn counts_in_kernel(port: &PortName) -> bool {
    port.kind() == Kind::Xdp && matches!(port.option("action"), Some("drop" | "pass"))
}

/// How packets are received.
struct Way<'a> {
    common: &'a Common,
    receiving: Receiving,
}

impl Way<'_> {
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
        let mut attendant = Attendant { status: &mut status, missing, report, json };
        let ended = run(work, &limits, &Signals::catch()?, &mut attendant)?;
        status.done();
        Ok(ended)
    }
}

/// Attends a count.
struct Attendant<'a, M> {
    status: &'a mut Status,
    /// What the analysis says, if there is one.
    missing: M,
    report: &'a mut Report,
    json: bool,
}

impl<M: Fn() -> Option<Missing>> Attend<Outcome> for Attendant<'_, M> {
    fn watch(&mut self, counters: &[Counters], at: Duration) {
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
