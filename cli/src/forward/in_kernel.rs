//! `--in-kernel`: XDP redirects packets to the other interface; this process only counts them.

use std::time::Duration;

use sluicegate::error::Result;
use sluicegate::port::{Kind, OpenOptions, Port};

use super::Args;
use super::result::{Sides, redirected};
use crate::ports;
use crate::report::Report;
use crate::run::{Nothing, Outcomes, ReceiveCounts, RunControl, RunOptions, receive};
use crate::signals::Signals;

/// Rejects ports between which the kernel cannot redirect.
pub fn check(args: &Args) -> Result<()> {
    for port in [&args.from, &args.to] {
        if port.kind() != Kind::Xdp {
            return Err(port.error("--in-kernel is for two xdp: ports"));
        }
    }
    Ok(())
}

/// Forwards until the end.
pub fn forward(args: &Args) -> anyhow::Result<()> {
    let Args { from, to, common, receiving, .. } = args;
    let options = OpenOptions { queues: 0, ..common.options() };
    let mut ports = Vec::new();
    let mut open = |from, to| {
        let port = Port::redirect(from, to, &options)?;
        ports::say_fallbacks(&port, common.verbose);
        ports::say_diverts(from);
        let report = Report::of_port("forward", &port, common);
        ports.push(port);
        Ok::<_, anyhow::Error>(report)
    };
    // Both are watched, because the ledger needs the counters of the sending interface.
    let there = open(from, to)?;
    let back = if args.one_way { Report::new("forward", to, common) } else { open(to, from)? };
    common.become_user()?;
    let mut nothing: Vec<Nothing> = ports.iter().map(|_| Nothing).collect();
    let queues = ports.into_iter().flat_map(|port| port.queues);
    let work = queues.zip(&mut nothing).collect();
    let mut sides = Sides::new([there, back], args.sources());
    let options = RunOptions { common, wait: receiving.wait, stdout_is_taken: false };
    let ended = receive(work, options, &Signals::catch()?, &mut sides)?;
    let passed = redirected(&ended.outcomes);
    let report = sides.report(&passed, &ended.outcomes, ended.elapsed);
    report.publish(false, common.json)?;
    Ok(ended.result?)
}

impl RunControl<ReceiveCounts> for Sides {
    fn report_so_far(&mut self, outcomes: &Outcomes<ReceiveCounts>, elapsed: Duration) -> Report {
        self.so_far().report(&redirected(outcomes), outcomes, elapsed)
    }

    fn at_end(&mut self) {
        self.read_interfaces();
    }
}
