//! `sluice top`: the rates of interfaces, queues and CPUs.

pub mod history;
mod interfaces;
mod keys;
mod lines;
mod losses;
pub mod view;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use sluicegate::link::{Rates, Sample, Sampler};
use sluicegate::{Error, units};

use crate::screen::{POLL_INTERVAL, full_screen, suspend};
use crate::signals::Signals;
use crate::units::interval;
use keys::{KeyAction, ViewState};

const NOTES: &str = "\
Bits are of layer 2, without preamble, gap and frame check sequence. Only --netns needs
a privilege.

Examples:
  sluice top                        full screen; h explains the keys
  sluice top eth0 --plain           lines, for a log
  sluice top --netns lab-right --json --count 1";

/// Show packets, bits and drops per interface, queue and CPU
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Interfaces to show [default: all]
    #[arg(value_name = "IFACE")]
    interfaces: Vec<String>,
    /// Network namespace of the interfaces: a name of `ip netns`, a path, or the PID of a process in it
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,
    /// Time between two readings: 500ms, 5s, 1m
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    interval: Duration,
    /// Print lines, on a terminal too; only queues and CPUs with traffic
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print a JSON object per interval, one a line
    #[arg(long)]
    json: bool,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// End after N intervals
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    count: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let sampler = Sampler::open(args.netns.as_deref(), &args.interfaces)?;
    let signals = Signals::catch()?;
    let mut watch = Watch::start(sampler, &args)?;
    if args.json {
        let netns = args.netns.as_deref();
        return lines(&mut watch, &signals, |rates| lines::json(rates, netns));
    }
    if args.plain || !io::stdout().is_terminal() {
        return lines(&mut watch, &signals, lines::text);
    }
    let shown = full_screen(|terminal| show(terminal, &mut watch, &signals, args.netns));
    shown.map_err(|error| match error.is::<Error>() {
        true => error,
        false => error.context("show the full screen (--plain needs no terminal)"),
    })
}

/// Readings at an even pace.
struct Watch {
    sampler: Sampler,
    interval: Duration,
    before: Sample,
    next: Instant,
    end: Option<Instant>,
    left: Option<u64>,
}

impl Watch {
    fn start(mut sampler: Sampler, args: &Args) -> Result<Self, Error> {
        let before = sampler.sample()?;
        let mut watch = Self {
            sampler,
            interval: args.interval,
            next: before.at,
            end: args.duration.map(|duration| before.at + duration),
            left: args.count,
            before,
        };
        watch.schedule();
        Ok(watch)
    }

    fn is_over(&self) -> bool {
        self.left == Some(0) || self.end.is_some_and(|end| self.before.at >= end)
    }

    /// Reads the counters, and returns the rates since the last reading.
    fn read(&mut self) -> Result<Rates, Error> {
        let now = self.sampler.sample()?;
        let rates = Rates::between(&self.before, &now);
        self.before = now;
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.schedule();
        Ok(rates)
    }

    /// Schedules the next reading an interval after this one was due; an interval from now if that time
    /// has passed (the machine slept, the interval was changed).
    fn schedule(&mut self) {
        let due = self.next + self.interval;
        let now = Instant::now();
        self.next = if due > now { due } else { now + self.interval };
        if let Some(end) = self.end {
            self.next = self.next.min(end);
        }
    }

    /// Changes the interval from now on.
    fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.next = Instant::now();
        self.schedule();
    }
}

/// Prints each interval's rates until the end or a signal.
fn lines(
    watch: &mut Watch,
    signals: &Signals,
    text: impl Fn(&Rates) -> String,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    while !watch.is_over() && !signals.wait(watch.next)? {
        let text = text(&watch.read()?);
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

fn show(
    terminal: &mut DefaultTerminal,
    watch: &mut Watch,
    signals: &Signals,
    netns: Option<String>,
) -> anyhow::Result<()> {
    let mut state = ViewState::new(netns, watch.interval);
    terminal.draw(|frame| view::draw(frame, &state))?;
    while !watch.is_over() && !signals.take() {
        let left = watch.next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            state.update(watch.read()?);
        } else if !event::poll(left.min(POLL_INTERVAL))? {
            continue;
        } else if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match state.key(key) {
                KeyAction::Quit => break,
                KeyAction::Interval(interval) => watch.set_interval(interval),
                KeyAction::Suspend => suspend(terminal)?,
                KeyAction::Nothing => {}
            }
        }
        // Also drawn after other events, because a resize needs it.
        terminal.draw(|frame| view::draw(frame, &state))?;
    }
    Ok(())
}
