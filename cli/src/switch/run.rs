//! A switch from its first port to its report: one thread switches, this one watches.

use std::ops::ControlFlow;
use std::time::Duration;

use sluicegate::control::Server;
use sluicegate::error::{Error, ErrorKind, Result};
use sluicegate::link;
use sluicegate::port::Directions;
use sluicegate_switch::mac_table::{MacTableConfig, TICKS_PER_SECOND, Tick};
use sluicegate_switch::{
    Handle, MemberState, Rules, Switch, SwitchConfig, SwitchOutcome, SwitchRunner, shared_pool,
};

use super::control::ControlService;
use super::ports::Ports;
use super::{RunArgs, SocketArgs};
use crate::counters::{Totals, WorkerCounters};
use crate::notice;
use crate::ports::is_standard_output;
use crate::report::Report;
use crate::run::{Outcomes, RunControl, RunOptions, Work, WorkerThread, supervise};
use crate::signals::Signals;
use crate::status::Status;

/// Interval between two checks for events and requests.
const TICK: Duration = Duration::from_millis(20);

/// Runs the switch until its end.
pub fn run(args: RunArgs, socket: &SocketArgs) -> anyhow::Result<()> {
    let common = &args.common;
    common.check()?;
    if common.threads.is_some() {
        return Err(Error::Usage(
            "--threads: a switch has one thread; select a port's queues by its name: xdp:eth0/0-3"
                .into(),
        )
        .into());
    }
    args.settings.refuse_unknown(&args.ports)?;
    // One that is no member yet may be added later.
    for name in &args.allow_default_route {
        link::interface(common.netns.as_deref(), name)?;
    }
    let server = listen(socket)?;
    let names: Vec<_> = args.ports.iter().map(|named| named.port.clone()).collect();
    let mut ports = Ports {
        common,
        allow_default_route: &args.allow_default_route,
        pool: shared_pool(&names, &common.options())?,
        knows_vlans: args.ports.iter().any(|it| args.settings.of(&it.name).concern_vlans()),
        reports: Vec::new(),
    };
    let rules = Rules { vlans: ports.knows_vlans, link_local: args.forward_link_local };
    let mut switch = Switch::new(SwitchConfig { rules, table: table(&args) });
    let mut stdout_is_taken = false;
    for named in &args.ports {
        let config = args.settings.of(&named.name).config(&named.name)?;
        let sends = config.usage != Some(Directions::Receive);
        stdout_is_taken |= sends && is_standard_output(&named.port);
        let (id, opened) = ports.open(named, config.usage)?;
        switch.add(&named.name, id, opened, config)?;
    }
    if let Some(count) = common.count {
        switch.limit(count);
    }
    common.become_user()?;
    let (runner, handle) = SwitchRunner::new(switch);
    let mut control = SwitchControl { handle, ports, server, last_states: Vec::new() };
    let options = RunOptions { common, wait: args.receiving.wait, stdout_is_taken };
    let ended = supervise(vec![SwitchWork(runner)], options, &Signals::catch()?, &mut control)?;
    let SwitchControl { ports, server, .. } = control;
    // Dropped only now, because a watcher treats a lost connection as a killed switch.
    drop(server);
    ports.report(&ended).publish(stdout_is_taken, common.json)?;
    Ok(ended.end()?)
}

/// Opens the control socket. If no flag asked for it, a failure is only a notice.
fn listen(socket: &SocketArgs) -> Result<Option<Server>> {
    match Server::bind(&socket.path()?) {
        Err(error) if error.kind() != ErrorKind::Usage && socket.control.is_none() => {
            notice::say(format_args!("the switch runs without a control socket: {error}"));
            Ok(None)
        }
        bound => bound.map(Some),
    }
}

fn table(args: &RunArgs) -> MacTableConfig {
    let entries = args.table.table;
    MacTableConfig {
        entries,
        per_port: args.table.max_macs.unwrap_or((entries / 8) as u32),
        age: (args.table.age.as_secs_f64() * f64::from(TICKS_PER_SECOND)) as Tick,
    }
}

/// The thread that switches.
struct SwitchWork(SwitchRunner);

impl Work for SwitchWork {
    /// `None` while it runs: requests go to the switch itself then.
    type Counts = Option<SwitchOutcome>;

    fn name(&self) -> String {
        "switch".into()
    }

    fn run(self, thread: &mut WorkerThread<'_, Self::Counts>) -> (Self::Counts, Result<()>) {
        thread.publish_last(None);
        let ended = self.0.run(thread.run.wait);
        thread.ended_at(ended.at);
        (Some(ended), Ok(()))
    }
}

/// Controls a switch.
struct SwitchControl<'a> {
    handle: Handle,
    ports: Ports<'a>,
    server: Option<Server>,
    /// The ports' states when the end was requested.
    last_states: Vec<MemberState>,
}

impl RunControl<Option<SwitchOutcome>> for SwitchControl<'_> {
    const TICK: Duration = TICK;

    fn report_so_far(
        &mut self,
        outcomes: &Outcomes<Option<SwitchOutcome>>,
        elapsed: Duration,
    ) -> Report {
        let ended = outcomes.first().and_then(Option::as_deref);
        match ended.and_then(|outcome| outcome.counts.as_ref()) {
            Some(ended) => self.ports.report_so_far(&ended.ports, elapsed),
            None => {
                let states = self.handle.ask(all_states);
                self.ports.report_so_far(states.as_ref().unwrap_or(&self.last_states), elapsed)
            }
        }
    }

    fn watch(&mut self, status: &mut Status, _counters: &[WorkerCounters], elapsed: Duration) {
        if let Some(states) = self.handle.ask(all_states) {
            status.show(totals(&states), elapsed);
        }
    }

    fn tick(&mut self, status: &mut Status, _elapsed: Duration) -> ControlFlow<()> {
        while let Some(event) = self.handle.event() {
            self.ports.report_event(event, status);
        }
        if let Some(server) = &mut self.server {
            server.serve(&mut ControlService { handle: &self.handle, ports: &mut self.ports });
        }
        ControlFlow::Continue(())
    }

    fn at_end(&mut self) {
        self.ports.reports.iter_mut().for_each(Report::read_interface);
        self.last_states = self.handle.ask(all_states).unwrap_or_default();
        self.handle.stop();
    }
}

/// The states of present and removed ports.
fn all_states(switch: &mut Switch) -> Vec<MemberState> {
    let present = switch.states();
    [switch.removed(), &present].concat()
}

/// All ports' counts together.
fn totals(states: &[MemberState]) -> Totals {
    let mut totals = Totals::default();
    for MemberState { counts, stats, .. } in states {
        totals.packets += counts.packets;
        totals.bytes += counts.bytes;
        totals.received += stats.received;
        totals.lost += stats.dropped_ring_full + counts.lost();
    }
    totals
}
