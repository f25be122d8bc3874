//! `sluice count`: receives, counts, and lets go.

use std::io::stdout;

use sluicegate::ledger::Role;
use sluicegate::port::{Kind, PortName};
use sluicegate::ring::Packet;

use crate::args::{Common, Receiving};
use crate::report::Report;
use crate::run::{Counters, Visitor, run};
use crate::signals::Signals;
use crate::status::Status;
use crate::{exit, notice};

const EXAMPLES: &str = "\
Examples:
  sluice count eth0 --duration 10s
  sluice count 'packet:eth0?method=recvmmsg' -f 'udp port 53'
  sluice count eth0 --threads 4 --cpus 0-3 --json
  sluice count 'xdp:eth0?action=drop'
  sluice count pcap:trace.pcapng -f 'tcp[tcpflags] & tcp-syn != 0'";

/// Receive packets, count them and let them go
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to receive from: eth0, packet:eth0?method=recv, mirror:eth0, xdp:eth0, pcap:FILE, null:
    port: PortName,

    /// Count only what a pcap-filter expression lets pass
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    receiving: Receiving,
}

/// Looks at nothing: what remains is the cost of receiving.
struct Nothing;

impl Visitor for Nothing {
    #[inline]
    fn packet(&mut self, _packet: &Packet<'_>) {}
}

/// Runs the command.
pub fn count(args: Args) -> anyhow::Result<()> {
    let Args { mut port, filter, common, receiving } = args;
    notice::apply_filter(&mut port, filter.as_deref())?;
    if matches!(port.kind(), Kind::Xdp | Kind::Mirror) {
        // Nobody looks at the time here.
        port.set_default("timestamp", "off");
    }
    let opened = common.open(&port)?;
    let mut report = Report::of_port("count", &opened, &common);
    notice::fallbacks(&opened);
    notice::diverts(&port);
    common.become_user()?;
    let mut status = Status::new(&common, false);
    let mut visitors: Vec<Nothing> = opened.queues.iter().map(|_| Nothing).collect();
    let work = opened.queues.into_iter().zip(&mut visitors).collect();
    let limits = common.limits(receiving, status.interval());
    let watch = |counters: &[Counters], at| status.show(counters, at);
    let mut ended = run(work, &limits, &Signals::catch()?, watch, || report.look_at_card())?;
    status.done();
    report.count(&ended.outcomes, ended.elapsed);
    let mut report = Report::together(vec![report]);
    report.ledger.add(Role::Out, "counted", report.traffic.packets);
    report.print(&mut stdout().lock(), common.json)?;
    exit::first_error(&mut ended.outcomes)
}
