//! How far a bench is, on stderr: a live line on a terminal, a plain line a turn elsewhere. A signal
//! stops it, and what was measured is kept.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use sluicegate_bench::observer::{BenchObserver, Progress};

use crate::notice;
use crate::signals::Signals;
use crate::units::show_duration;

/// Waits, shows, and takes signals.
pub struct Watcher {
    signals: Signals,
    live: Option<ProgressBar>,
}

impl Watcher {
    /// With these signals.
    pub fn new(signals: Signals) -> Self {
        let live = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { signals, live }
    }
}

impl BenchObserver for Watcher {
    fn wait(&self, time: Duration) -> bool {
        match self.signals.wait(Instant::now() + time) {
            Ok(true) => {
                notice::say("stopped");
                false
            }
            Ok(false) => true,
            // Without signals there is nothing to wait for but the time.
            Err(_) => {
                std::thread::sleep(time);
                true
            }
        }
    }

    fn progress(&self, progress: &Progress<'_>) {
        let Progress { step, done, turns, left } = *progress;
        // Seconds are all that can be known of it.
        let left = show_duration(Duration::from_secs(left.as_secs_f64().round() as u64));
        match &self.live {
            Some(bar) => {
                bar.set_length(turns as u64);
                bar.set_position(done as u64);
                bar.set_message(format!("{left} left  {step}"));
            }
            None => {
                let _ = writeln!(stderr(), "{:>4}/{turns}  {left} left  {step}", done + 1);
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
