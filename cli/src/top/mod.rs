//! `sluice top`: the rates of interfaces, queues and CPUs.

mod history;
mod interfaces;
mod keys;
mod lines;
mod losses;
mod view;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use sluicegate::link::{Rates, Sample, Sampler};
use sluicegate::{Error, units};

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
    full_screen(&mut watch, &signals, args.netns).map_err(|error| match error.is::<Error>() {
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

/// The maximum delay of a signal's handling while no key is pressed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Shows the view until its end. The terminal is restored, even after a panic (ratatui's hook).
fn full_screen(watch: &mut Watch, signals: &Signals, netns: Option<String>) -> anyhow::Result<()> {
    end_with_terminal()?;
    let mut terminal = ratatui::try_init()?;
    let result = show(&mut terminal, watch, signals, netns);
    match result.and(ratatui::try_restore().map_err(anyhow::Error::from)) {
        // It has hung up while the screen was drawn.
        Err(error) if is_io_failure(&error) => Ok(()),
        result => result,
    }
}

fn is_io_failure(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.and_then(io::Error::raw_os_error) == Some(Errno::EIO as i32)
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

/// Ends the process when the terminal hangs up. A thread does it, because crossterm never returns from reading the
/// end of a terminal.
fn end_with_terminal() -> io::Result<()> {
    let terminal = io::stdout().as_fd().try_clone_to_owned()?;
    let watch = move || {
        // POLLHUP and POLLERR are always reported.
        let mut events = [PollFd::new(terminal.as_fd(), PollFlags::empty())];
        loop {
            match poll(&mut events, PollTimeout::NONE) {
                Ok(0) | Err(Errno::EINTR) => {}
                // A terminal that is lost is no failure, and cannot be restored.
                Ok(_) => std::process::exit(0),
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch).map(drop)
}

/// Stops the command until the shell continues it; meanwhile the terminal is restored.
fn suspend(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    // Signals the whole process group, as the terminal does, so that a parent `sudo` also stops.
    kill(Pid::from_raw(0), Signal::SIGTSTP)?;
    *terminal = ratatui::try_init()?;
    Ok(())
}
