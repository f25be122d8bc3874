//! `--in-kernel`: XDP has packets go out by the other interface; here they are only counted.

use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Role;
use sluicegate::error::Result;
use sluicegate::port::{Kind, OpenOptions, Port, PortName};

use super::Args;
use crate::card::{HandedOver, Wire};
use crate::notice;
use crate::report::{DirectionReport, Report, Traffic};
use crate::run::{Control, Nothing, Outcome, WorkerCounters, first_error, run};
use crate::signals::Signals;
use crate::status::Status;

/// Refuses what the kernel cannot do by itself.
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
    let ways = [(from, to), (to, from)];
    let ways = &ways[..args.sources().len()];
    // Of both, so that what the interfaces send is looked at, too.
    let mut ports = Vec::new();
    let mut reports = Vec::new();
    for &(from, to) in ways {
        let port = Port::redirect(from, to, &options)?;
        notice::fallbacks(&port, common.verbose);
        notice::diverts(from);
        reports.push(Report::of_port("forward", &port, common));
        ports.push(port);
    }
    if args.one_way {
        reports.push(Report::of_interface("forward", to, common));
    }
    common.become_user()?;
    let mut status = Status::new(common, false);
    let limits = common.limits(*receiving, status.interval());
    let mut nothing: Vec<Nothing> = ports.iter().map(|_| Nothing).collect();
    let queues = ports.into_iter().flat_map(|port| port.queues);
    let work = queues.zip(&mut nothing).collect();
    let mut attendant =
        RedirectControl { status: &mut status, reports: &mut reports, ways, json: common.json };
    let ended = run(work, &limits, &Signals::catch()?, &mut attendant);
    status.done();
    let mut ended = ended?;
    let outcomes: Vec<_> = ended.outcomes.iter().collect();
    let report = report(reports, &outcomes, ended.elapsed, ways);
    report.publish(false, common.json)?;
    first_error(&mut ended.outcomes)
}

/// Attends what the kernel forwards.
struct RedirectControl<'a> {
    status: &'a mut Status,
    /// Of both ports.
    reports: &'a mut [Report],
    ways: &'a [(&'a PortName, &'a PortName)],
    json: bool,
}

impl Control<Outcome> for RedirectControl<'_> {
    fn watch(&mut self, counters: &[WorkerCounters], at: Duration) {
        self.status.show(counters, at);
    }

    fn ledger(&mut self, outcomes: &[Option<Arc<Outcome>>], at: Duration) {
        // The threads only count: none is ever held up.
        let Some(known) = outcomes.iter().map(Option::as_deref).collect::<Option<Vec<_>>>() else {
            return;
        };
        let reports = self.reports.iter().map(Report::so_far).collect();
        self.status.ledger(&report(reports, &known, at, self.ways), self.json);
    }

    fn at_end(&mut self) {
        self.reports.iter_mut().for_each(Report::look_at_card);
    }
}

/// The report on the whole; `reports` are of both ports.
fn report(
    mut reports: Vec<Report>,
    outcomes: &[&Outcome],
    elapsed: Duration,
    ways: &[(&PortName, &PortName)],
) -> Report {
    let mut directions = Vec::new();
    for (side, (outcome, (from, to))) in outcomes.iter().zip(ways).enumerate() {
        let Outcome { packets, bytes, stats, .. } = **outcome;
        let card = reports[1 - side].card.as_mut();
        let wire = Wire::of(card, HandedOver::from(&stats));
        let report = &mut reports[side];
        report.traffic = Traffic::over(packets, bytes, elapsed);
        report.ledger.add(Role::In, "received", stats.received);
        match wire {
            Some(wire) => wire.account(&mut report.ledger),
            None => report.ledger.add(Role::Uncertain, "redirected", stats.received),
        }
        let (from, to) = (from.to_string(), to.to_string());
        directions.push(DirectionReport {
            from,
            to,
            traffic: report.traffic,
            swapped: 0,
            copied: 0,
        });
    }
    for (side, report) in reports.iter_mut().enumerate() {
        report.elapsed_s = elapsed.as_secs_f64();
        match side < ways.len() {
            true => report.account_card(),
            false => report.card = None,
        }
    }
    let mut whole = Report::together(reports);
    whole.port = ways[0].0.to_string();
    whole.to = Some(ways[0].1.to_string());
    whole.directions = directions;
    whole.notices = outcomes.iter().flat_map(|outcome| outcome.notices.clone()).collect();
    whole
}
