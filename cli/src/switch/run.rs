//! A switch from its first port to its report: one thread switches, this one watches.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluicegate::control::Server;
use sluicegate::error::{Error, Kind as Mends, Result};
use sluicegate::link::{ThreadCpuUsage, pin_thread};
use sluicegate::memory::Pool;
use sluicegate::port::{Kind, OpenOptions, Use};
use sluicegate_switch::table::{TICKS_PER_SECOND, TableConfig, Tick};
use sluicegate_switch::{
    Event, Handle, MemberState, Opened, Rules, Switch, SwitchConfig, SwitchOutcome, Worker,
    shared_pool,
};

use super::RunArgs;
use super::answer::Answering;
use super::ports::{Named, Settings};
use super::report;
use crate::args::Common;
use crate::notice;
use crate::report::{Report, Thread};
use crate::run::WorkerCounters;
use crate::send;
use crate::signals::Signals;
use crate::status::Status;

/// Between two looks at what has happened.
const TICK: Duration = Duration::from_millis(20);

/// Runs the switch until its end.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    let RunArgs { common, settings, .. } = &args;
    common.check()?;
    refuse(&args)?;
    let mut server = listen(&args)?;
    let names: Vec<_> = args.ports.iter().map(|named| named.port.clone()).collect();
    let mut ports = Ports {
        common,
        allow_default_route: &args.allow_default_route,
        pool: shared_pool(&names, &common.options())?,
        knows_vlans: settings.speak_of_vlans(),
        reports: Vec::new(),
    };
    let rules = Rules { vlans: ports.knows_vlans, link_local: args.forward_link_local };
    let mut switch = Switch::new(SwitchConfig { rules, table: table(&args) });
    for named in &args.ports {
        let (id, opened) = ports.open(named, settings)?;
        switch.add(&named.name, id, opened, settings.of(&named.name)?)?;
    }
    if let Some(count) = common.count {
        switch.limit(count);
    }
    common.become_user()?;
    let signals = Signals::catch()?;
    let (worker, handle) = Worker::new(switch);
    let running = RunningSwitch { handle, thread: start(worker, &args)?, started: Instant::now() };
    let mut status = Status::new(common, false);
    if running.watch(common, &signals, &mut status, &mut ports, server.as_mut())? {
        signals.end_at_second()?;
    }
    let ended = running.end(&mut status, &mut ports)?;
    // Only now, because a watcher takes a lost connection for a switch that was killed.
    drop(server);
    status.done();
    ports.report(&ended).publish(false, common.json)?;
    Ok(())
}

/// Where requests come. One that nobody asked for is left out, with a notice, where it cannot be
/// had.
fn listen(args: &RunArgs) -> Result<Option<Server>> {
    match Server::bind(&args.place.path()?) {
        Err(error) if error.kind() != Mends::Usage && args.place.control.is_none() => {
            notice::say(format_args!("the switch cannot be asked while it runs: {error}"));
            Ok(None)
        }
        bound => bound.map(Some),
    }
}

fn refuse(args: &RunArgs) -> Result<()> {
    if args.common.threads.is_some() {
        return Err(Error::Usage(
            "--threads: a switch has one thread; say which queues it serves in a port's name, as \
             in xdp:eth0/0-3"
                .into(),
        ));
    }
    args.settings.refuse_unknown(&args.ports)
}

fn table(args: &RunArgs) -> TableConfig {
    let entries = args.table.table;
    TableConfig {
        entries,
        per_port: args.table.max_macs.unwrap_or((entries / 8) as u32),
        age: (args.table.age.as_secs_f64() * f64::from(TICKS_PER_SECOND)) as Tick,
    }
}

/// Starts the thread that switches; it tells the share of the time it was on a CPU, too.
fn start(worker: Worker, args: &RunArgs) -> Result<JoinHandle<Result<(SwitchOutcome, f64)>>> {
    let wait = args.receiving.wait;
    let cpu = first_cpu(&args.common);
    let work = move || {
        cpu.map_or(Ok(()), pin_thread)?;
        let clocks = ThreadCpuUsage::begin();
        let ended = worker.run(wait);
        Ok((ended, clocks.share()))
    };
    let thread = std::thread::Builder::new().name("switch".into()).spawn(work);
    thread.map_err(|error| Error::system("start", "the thread that switches", error))
}

fn first_cpu(common: &Common) -> Option<usize> {
    common.cpus.as_ref().and_then(|list| list.0.first().copied())
}

/// The ports that the switch has had, and how to open more.
pub struct Ports<'a> {
    common: &'a Common,
    allow_default_route: &'a [String],
    pool: Option<Arc<Pool>>,
    knows_vlans: bool,
    /// By the numbers that they were given.
    reports: Vec<Report>,
}

impl Ports<'_> {
    /// Adds a port to a switch that runs.
    pub fn add(&mut self, named: &Named, settings: &Settings, handle: &Handle) -> Result<()> {
        if settings.speak_of_vlans() && !self.knows_vlans {
            return Err(Error::Usage(
                "the switch knows no VLANs: it has to be started with --access, --trunk or --native"
                    .into(),
            ));
        }
        let config = settings.of(&named.name)?;
        let (id, opened) = self.open(named, settings)?;
        let name = named.name.clone();
        let added = handle.ask(move |switch| switch.add(&name, id, opened, config));
        let added = added.unwrap_or_else(|| Err(Error::Usage("the switch is ending".into())));
        if added.is_err() {
            self.reports.pop();
        }
        added
    }

    /// A port as it was named when it was opened.
    pub fn name_of(&self, state: &MemberState) -> &str {
        self.reports.get(state.id as usize).map_or("", |report| &report.port)
    }

    /// Opens a port, and begins its report.
    fn open(&mut self, named: &Named, settings: &Settings) -> Result<(u64, Opened)> {
        let Named { name, port } = named;
        let config = settings.of(name)?;
        let netns = self.common.netns.as_deref();
        let receives_only = config.usage == Some(Use::Receive) || port.kind() == Kind::Mirror;
        if !receives_only {
            let yes = self.allow_default_route.iter().find(|yes| *yes == port.name());
            send::target(port, netns, yes.map(String::as_str))?;
        }
        let options = OpenOptions { pool: self.pool.clone(), ..self.common.forwarding() };
        let opened = Opened::open(port, config.usage, &options)?;
        notice::fallbacks(&opened.port, self.common.verbose);
        notice::diverts(port);
        let id = self.reports.len() as u64;
        let mut report = Report::of_port("switch", &opened.port, self.common);
        if let Some(advice) = &opened.advice {
            notice::say(advice);
            report.notices.push(advice.clone());
        }
        self.reports.push(report);
        Ok((id, opened))
    }

    /// The report of the whole, when the switch has ended.
    fn report(mut self, over: &Over) -> Report {
        let reports = std::mem::take(&mut self.reports);
        let mut whole = report::whole(reports, &over.ports, over.elapsed);
        let packets = over.ports.iter().map(|state| state.counts.packets).sum();
        let cpu = first_cpu(self.common);
        whole.threads = vec![Thread { cpu, queue: 0, packets, busy: over.busy }];
        whole
    }

    /// The report of the whole as its ports stand, while the switch runs.
    fn report_so_far(&self, ports: &[MemberState], elapsed: Duration) -> Report {
        report::whole(self.reports.iter().map(Report::so_far).collect(), ports, elapsed)
    }

    /// Says what has happened to a port.
    fn tell(&mut self, event: Event, status: &Status) {
        let text = match event {
            Event::Failed(name, error) => format!("{name} is out of the switch: {error}"),
            Event::Down(name) => format!("{name} is down; waiting for it to come up"),
            Event::Up(name) => format!("{name} is up"),
            Event::Notice(_, text) => text,
        };
        status.say(&text);
        if let Some(report) = self.reports.first_mut() {
            report.notices.push(text);
        }
    }
}

/// A switch at work.
struct RunningSwitch {
    handle: Handle,
    thread: JoinHandle<Result<(SwitchOutcome, f64)>>,
    started: Instant,
}

/// A switch that has ended.
struct Over {
    ports: Vec<MemberState>,
    elapsed: Duration,
    busy: f64,
}

impl RunningSwitch {
    /// Watches until the end is near: a signal, which is said, the time, or the count.
    fn watch(
        &self,
        common: &Common,
        signals: &Signals,
        status: &mut Status,
        ports: &mut Ports<'_>,
        mut server: Option<&mut Server>,
    ) -> Result<bool> {
        let end = common.duration.map(|duration| self.started + duration);
        let mut shown = self.started;
        loop {
            while let Some(event) = self.handle.event() {
                ports.tell(event, status);
            }
            if let Some(server) = &mut server {
                server.serve(&mut Answering { handle: &self.handle, ports });
            }
            let now = Instant::now();
            if self.thread.is_finished() || end.is_some_and(|end| now >= end) {
                return Ok(false);
            }
            if signals.take_ledger_request() {
                let states = |switch: &mut Switch| {
                    let there = switch.states();
                    [switch.removed(), &there].concat()
                };
                if let Some(states) = self.handle.ask(states) {
                    let report = ports.report_so_far(&states, now - self.started);
                    status.ledger(&report, common.json);
                }
            }
            if now.duration_since(shown) >= status.interval() {
                shown = now;
                if let Some(states) = self.handle.ask(Switch::states) {
                    status.show(&[counters(&states)], now - self.started);
                }
            }
            let next = (shown + status.interval()).min(now + TICK);
            if signals.wait(end.map_or(next, |end| end.min(next)))? {
                return Ok(true);
            }
        }
    }

    /// Ends it, and waits until it has.
    fn end(self, status: &mut Status, ports: &mut Ports<'_>) -> Result<Over> {
        for report in &mut ports.reports {
            report.look_at_card();
        }
        self.handle.stop();
        let (ended, busy) = match self.thread.join() {
            Ok(ended) => ended?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        while let Some(event) = self.handle.event() {
            ports.tell(event, status);
        }
        let elapsed = ended.at.saturating_duration_since(self.started);
        Ok(Over { ports: ended.ports, elapsed, busy })
    }
}

/// All ports' counts together.
fn counters(states: &[MemberState]) -> WorkerCounters {
    let counters = WorkerCounters::default();
    let (mut received, mut lost) = (0, 0);
    for state in states {
        counters.add(state.counts.packets, state.counts.bytes);
        received += state.stats.received;
        lost += state.stats.dropped_ring_full + state.counts.full;
    }
    counters.note(received, lost);
    counters
}
