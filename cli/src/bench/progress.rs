//! Progress of a bench on stderr: a live line on a terminal, otherwise a plain line for each turn. A signal
//! stops the bench, which keeps what was measured.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use sluicegate::error::Result;
use sluicegate_bench::observer::{BenchObserver, Progress};

use crate::notice;
use crate::signals::Signals;
use crate::units::show_duration;

/// Shows progress, and stops the bench on a signal.
pub struct Watcher {
    signals: Signals,
    started: Instant,
    live: Option<ProgressBar>,
}

impl Watcher {
    /// Catches signals, and shows progress from now on.
    pub fn start() -> Result<Self> {
        let signals = Signals::catch()?;
        let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let live = stderr().is_terminal().then(|| ProgressBar::new(0).with_style(style));
        Ok(Self { signals, started: Instant::now(), live })
    }
}

impl BenchObserver for Watcher {
    fn wait(&self, time: Duration) -> bool {
        let stops = self.signals.wait(Instant::now() + time).unwrap_or_else(|_| {
            // Without signals only the time remains.
            std::thread::sleep(time);
            false
        });
        if stops {
            notice::say("stopped");
        }
        !stops
    }

    fn progress(&self, progress: &Progress<'_>) {
        let Progress { step, done, turns } = *progress;
        let rest = turns.saturating_sub(done) as f64 / done.max(1) as f64;
        let left = self.started.elapsed().as_secs_f64() * rest;
        let left = show_duration(Duration::from_secs(left.round() as u64));
        let left = if done > 0 { format!("{left} left  ") } else { String::new() };
        match &self.live {
            Some(bar) => {
                bar.set_length(turns as u64);
                bar.set_position(done as u64);
                bar.set_message(format!("{left}{step}"));
            }
            None => {
                let _ = writeln!(stderr(), "{:>4}/{turns}  {left}{step}", done + 1);
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(bar) = &self.live {
            bar.finish_and_clear();
        }
    }
}
