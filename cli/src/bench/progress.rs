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
        let style = style("{bar:20} {pos}/{len} {msg}");
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
        let left = turns.filter(|_| done > 0).map_or_else(String::new, |turns| {
            let rest = turns.saturating_sub(done) as f64 / done.max(1) as f64;
            let left = self.started.elapsed().as_secs_f64() * rest;
            format!("{} left  ", show_duration(Duration::from_secs(left.round() as u64)))
        });
        match &self.live {
            Some(bar) => {
                match turns {
                    Some(turns) => bar.set_length(turns as u64),
                    None => bar.set_style(style("{pos} {msg}")),
                }
                bar.set_position(done as u64);
                bar.set_message(format!("{left}{step}"));
            }
            None => {
                let all = turns.map_or_else(String::new, |turns| format!("/{turns}"));
                let _ = writeln!(stderr(), "{:>4}{all}  {left}{step}", done + 1);
            }
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(bar) = &self.live {
            bar.finish_and_clear();
        }
    }
}
