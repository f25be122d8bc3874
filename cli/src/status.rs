//! Progress on stderr: a live line on a terminal, plain lines elsewhere; on stdout, a line of JSON for each
//! interval if requested.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sluicegate_traffic::analyse::Analysis;

use crate::args::Common;
use crate::counters::Totals;
use crate::notice;
use crate::report::{Report, Traffic};
use crate::stats::Stats;
use crate::units::{packets_word, show_bps, show_count, show_duration, show_pps};

const ON_TERMINAL: Duration = Duration::from_secs(1);
const ELSEWHERE: Duration = Duration::from_secs(10);

/// The status of a run: the changes since the last line, and their destination.
#[derive(Default)]
pub struct Status {
    live: Option<ProgressBar>,
    /// The result is JSON, with a line for each interval if requested.
    json: bool,
    json_lines: bool,
    stdout_is_taken: bool,
    interval: Duration,
    before: Totals,
    before_at: Duration,
    /// Stamped packets lost and reordered so far, if the run analyses them.
    missing: Option<(u64, u64)>,
    /// Counts so far for lines of JSON, if the run counts.
    stats: Option<Value>,
    /// The live line, and its end: the losses, or a note.
    line: String,
    lost: String,
    note: Option<String>,
}

/// Returns true if the status of a run with these flags is a live line.
pub fn is_live(common: &Common) -> bool {
    stderr().is_terminal() && !common.json
}

impl Status {
    /// Creates the status of a run with these flags. If packets go to standard output, lines of JSON go to
    /// stderr.
    pub fn new(common: &Common, stdout_is_taken: bool) -> Self {
        let terminal = stderr().is_terminal();
        let live = is_live(common).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::default_spinner());
            bar
        });
        Self {
            live,
            json: common.json,
            json_lines: common.json && common.interval.is_some(),
            stdout_is_taken,
            interval: common.interval.unwrap_or(if terminal { ON_TERMINAL } else { ELSEWHERE }),
            ..Self::default()
        }
    }

    /// Starts to show an analysis' missing packets.
    pub fn analysed(&mut self, analysis: &Analysis) {
        self.missing = Some(analysis.lost_and_reordered());
    }

    /// Returns true if each interval has a line of JSON.
    pub fn has_json_lines(&self) -> bool {
        self.json_lines
    }

    /// Adds counts so far to the next line of JSON.
    pub fn counted(&mut self, stats: &Stats) {
        self.stats = Some(stats.to_json());
    }

    /// Time between two lines.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Shows a note at the end of the live line, in place of the losses.
    pub fn note(&mut self, text: String) {
        self.note = Some(text);
        self.draw();
    }

    fn draw(&self) {
        if let Some(bar) = &self.live {
            bar.set_message(format!("{}  {}", self.line, self.note.as_ref().unwrap_or(&self.lost)));
            bar.tick();
        }
    }

    /// Shows the counts at a moment of the run.
    pub fn show(&mut self, now: Totals, at: Duration) {
        let time = at.saturating_sub(self.before_at);
        let before = std::mem::replace(&mut self.before, now);
        self.before_at = at;
        let traffic = Traffic::over(now.packets - before.packets, now.bytes - before.bytes, time);
        if self.json_lines {
            let mut line = json!({
                "time_s": at.as_secs_f64(),
                "interval_s": time.as_secs_f64(),
                "packets": traffic.packets,
                "bytes": traffic.bytes,
                "pps": traffic.pps,
                "bps_l1": traffic.bps_l1,
                "bps_l2": traffic.bps_l2,
                "lost": now.lost.saturating_sub(before.lost),
            });
            if let Some((lost, reordered)) = self.missing {
                line["stamped_lost"] = lost.into();
                line["stamped_reordered"] = reordered.into();
            }
            if let Some(stats) = self.stats.take() {
                line["stats"] = stats;
            }
            // The exit of a reader does not stop reception.
            let _ = match self.stdout_is_taken {
                true => writeln!(stderr(), "{line}"),
                false => writeln!(stdout(), "{line}"),
            };
            return;
        }
        let seconds = Duration::from_millis(at.as_millis() as u64 / 100 * 100);
        let missing = self.missing.map_or_else(String::new, |(lost, reordered)| {
            let (lost, reordered) = (show_count(lost), show_count(reordered));
            format!("  stamped: {lost} lost, {reordered} reordered")
        });
        let text = format!(
            "{:>11}  {:>10}  {:>12}  {:>15} {:<7}",
            show_duration(seconds),
            show_pps(traffic.pps),
            show_bps(traffic.bps_l2),
            show_count(now.packets),
            packets_word(now.packets),
        );
        let lost = format!("{} lost{missing}", show_count(now.lost));
        if self.live.is_some() {
            (self.line, self.lost) = (text, lost);
            self.draw();
        } else {
            let _ = writeln!(stderr(), "{text}  {lost}");
        }
    }

    /// Prints a message above the live line.
    pub fn say(&self, text: impl Display) {
        match &self.live {
            Some(bar) => bar.suspend(|| notice::say(text)),
            None => notice::say(text),
        }
    }

    /// Prints the ledger so far on stderr, above the live line.
    pub fn ledger(&self, report: &Report) {
        let mut text = Vec::new();
        // A write to memory cannot fail; a closed terminal does not end the run.
        let _ = report.print(&mut text, self.json);
        let print = || drop(stderr().lock().write_all(&text));
        match &self.live {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Clears the live line.
    pub fn done(&self) {
        if let Some(bar) = &self.live {
            bar.finish_and_clear();
        }
    }
}
