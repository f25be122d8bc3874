//! Destinations of a result: the terminal, files, a place in a document.

use std::io::{self, Write, stderr, stdout};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluicegate::error::{Error, Result};
use sluicegate_bench::compare::{ChangedResult, Metric, compare};
use sluicegate_bench::measurement::{Cause, Explanation, Figures, short};
use sluicegate_bench::page::chart::chart;
use sluicegate_bench::page::page;
use sluicegate_bench::report::{Machine, Report, StepReport, Suite};
use sluicegate_bench::suite::peers::{PeerState, Presence};
use sluicegate_bench::table::Document;

use super::options::OutputOptions;
use crate::new_file::NewFile;
use crate::ports;
use crate::text_file;

/// The destinations of a result.
pub struct ReportOutput {
    json: bool,
    /// An earlier result, to compare with.
    before: Option<Report>,
    files: Vec<(NewFile, Render)>,
}

/// Writes a report as the text of a file.
type Render = Box<dyn Fn(&Report) -> String>;

impl ReportOutput {
    /// Opens all files before the bench starts, so that an error is reported at once. They stay unchanged
    /// until the result is written; a created one is removed if it never is.
    pub fn prepare(options: &OutputOptions) -> anyhow::Result<Self> {
        let before = options.compare.as_deref().map(read).transpose()?;
        let mut files: Vec<(NewFile, Render)> = Vec::new();
        for (path, render) in
            [(&options.html, page as fn(&Report) -> String), (&options.svg, chart)]
        {
            if let Some(path) = path {
                files.push((distinct(path, &files)?, Box::new(render)));
            }
        }
        if let Some(path) = &options.markdown {
            let document = Document::of(&text_file::read(path)?).ok_or_else(|| {
                let path = path.display();
                Error::Usage(format!(
                    "{path} has no marks for a table; add the lines <!-- bench --> (or <!-- bench: all steps -->) \
                     and <!-- /bench -->"
                ))
            })?;
            let file = distinct(path, &files).map_err(|error| {
                error.remedy(
                    "write the table as its owner: sluice bench show RESULT --markdown FILE",
                )
            })?;
            files.push((file, Box::new(move |report| document.with(report))));
        }
        Ok(Self { json: options.json, before, files })
    }

    /// Writes all of it.
    pub fn write(self, report: &Report) -> anyhow::Result<()> {
        let files = self.files.into_iter().map(|(file, render)| (file, render(report)));
        write_and_print(files, || {
            match self.json {
                true => writeln!(stdout(), "{}", serde_json::to_string(report)?)?,
                false => print(report, &mut stdout().lock())?,
            }
            if let Some(before) = self.before {
                print_compared(&compare(&before, report), self.json)?;
            }
            Ok(())
        })
    }
}

/// Writes the texts of files, and prints the result although a file fails.
pub fn write_and_print(
    files: impl IntoIterator<Item = (NewFile, String)>,
    print: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut written = Ok(());
    for (file, text) in files {
        written = written.and(file.write(text.as_bytes()));
    }
    print()?;
    Ok(written?)
}

/// Opens a file, and rejects one of `files`: the later result would overwrite the earlier one.
fn distinct(path: &Path, files: &[(NewFile, Render)]) -> Result<NewFile> {
    let file = NewFile::create(path, None)?;
    if files.iter().any(|(other, _)| ports::is_one_output(path, other.path())) {
        let path = path.display();
        let problem = format!(
            "{path} is named twice; use another file for each of --html, --svg and --markdown"
        );
        return Err(Error::Usage(problem));
    }
    Ok(file)
}

/// Prints changes for people: to stderr if JSON is on standard output.
pub fn print_compared(moved: &[ChangedResult], json: bool) -> io::Result<()> {
    if json { print_changes(moved, &mut stderr()) } else { print_changes(moved, &mut stdout()) }
}

/// Reads an earlier result.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    parse(path, &text_file::read(path)?)
}

/// Parses an earlier result of suites or instructions.
pub fn parse(path: &Path, text: &str) -> anyhow::Result<Report> {
    serde_json::from_str(text).map_err(|error| {
        let path = path.display();
        let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
        let command = value.as_ref().and_then(|value| value["command"].as_str());
        let problem = match command.filter(|command| *command != "bench") {
            Some(command) => format!(
                "{path} is a result of `sluice {command}`: use one of rx, tx, drop, forward, pipe, all or \
                 instructions"
            ),
            None => format!("{path} is not a result of `sluice bench --json`: {error}"),
        };
        Error::Usage(problem).into()
    })
}

/// A result and its origin.
#[derive(Serialize, Deserialize)]
pub struct HeadedResult<T> {
    command: String,
    pub version: String,
    pub date: String,
    pub machine: Machine,
    #[serde(flatten)]
    pub result: T,
}

impl<T> HeadedResult<T> {
    /// Makes the result of this command, at this time.
    pub fn of(command: &str, result: T) -> Self {
        let (version, date) = (env!("CARGO_PKG_VERSION").into(), super::now());
        Self { command: command.into(), version, date, machine: Machine::here(), result }
    }
}

impl<T: Serialize> HeadedResult<T> {
    /// Prints it as one JSON object.
    pub fn print_json(&self) -> anyhow::Result<()> {
        Ok(writeln!(stdout(), "{}", serde_json::to_string(self)?)?)
    }
}

/// Length of the longest bar in characters.
const BAR: usize = 24;

/// Prints a report for people: a table for each suite, with bars.
fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for suite in &report.suites {
        print_suite(suite, out)?;
    }
    print_loops(report, out)?;
    for Presence { name, state } in &report.peers {
        match state {
            PeerState::Version(version) => writeln!(out, "{name}: {version}")?,
            PeerState::Missing(remedy) => writeln!(out, "{name}: missing; {remedy}")?,
        }
    }
    write!(out, "{}", report.machine)?;
    if !report.suites.is_empty() {
        write!(out, "; median of {} turns of {} s", report.rounds, report.seconds)?;
    }
    writeln!(out, "; {}", report.date)?;
    for note in &report.notes {
        writeln!(out, "{note}")?;
    }
    if !report.complete {
        writeln!(out, "stopped before all turns were complete")?;
    }
    Ok(())
}

fn print_loops(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if report.loops.is_empty() {
        return Ok(());
    }
    let width = width(report.loops.iter().map(|it| it.name.as_str()), "");
    writeln!(out, "Instructions of hot loops")?;
    for it in &report.loops {
        writeln!(out, "  {:<width$}  {}", it.name, it.shown())?;
    }
    writeln!(out)
}

fn print_suite(suite: &Suite, out: &mut impl Write) -> io::Result<()> {
    let titles: Vec<String> = suite.steps.iter().map(StepReport::title).collect();
    let most =
        suite.steps.iter().filter_map(|step| Some(step.figures?.mpps.median)).fold(0.0, f64::max);
    let name = width(titles.iter().map(String::as_str), "step");
    let by = width(suite.steps.iter().map(|step| step.by.as_str()), "by");
    writeln!(out, "{} ({}); ratios are to {}", suite.title, suite.suite, suite.reference)?;
    writeln!(
        out,
        "  {:<name$}  {:<by$}  {:>7}  {:>13}  {:>6}  {:>7}  {:>6}",
        "step", "by", "Mpps", "min-max", "lost", "CPU ns", "ratio"
    )?;
    for (title, step) in titles.iter().zip(&suite.steps) {
        write!(out, "  {title:<name$}  {:<by$}  ", step.by)?;
        let Some(Figures { mpps, .. }) = step.figures else {
            writeln!(out, "{}", step.why_not())?;
            continue;
        };
        let [median, min, max] = [mpps.median, mpps.min, mpps.max].map(short);
        let (spread, [ratio, lost, cpu_ns]) = (format!("{min}-{max}"), step.cells("-"));
        let bar = bar(mpps.median, most);
        writeln!(out, "{median:>7}  {spread:>13}  {lost:>6}  {cpu_ns:>7}  {ratio:>6}  {bar}")?;
        if let Some(reason) = &step.failed {
            writeln!(out, "  {:name$}  {:by$}  not in every turn: {reason}", "", "")?;
        }
        let Explanation { causes, advice, doubt, .. } = &step.explanation;
        if !causes.is_empty() {
            writeln!(out, "  {:name$}  {:by$}  {}", "", "", largest(causes))?;
        }
        for sentence in [advice, doubt].into_iter().flatten() {
            writeln!(out, "  {:name$}  {:by$}  {sentence}", "", "")?;
        }
    }
    writeln!(out)
}

/// Prints the changes from an earlier result.
fn print_changes(moved: &[ChangedResult], out: &mut impl Write) -> io::Result<()> {
    if moved.is_empty() {
        return writeln!(out, "no change exceeds its spread");
    }
    writeln!(out, "changes that exceed their spreads:")?;
    for it in moved {
        let ChangedResult { kind, name, before, now, .. } = it;
        let what = match it.what {
            Metric::Ratio => "ratio",
            Metric::Rate => "Mpps",
            Metric::Instructions => "instructions",
        };
        let kind = kind.map_or_else(String::new, |kind| format!("{kind}: "));
        let before = short(before.median);
        write!(out, "  {kind}{name}: {what} {before} -> ")?;
        match now {
            Ok(now) => writeln!(out, "{} ({:+.0} %)", short(now.median), it.by() * 100.0)?,
            Err(reason) => writeln!(out, "none: {reason}")?,
        }
    }
    Ok(())
}

/// The largest causes, from 5 % up: "copying 40 %, wakeups 12 %".
fn largest(causes: &[Cause]) -> String {
    let large = causes.iter().filter(|cause| cause.share >= 0.05).take(4);
    let shown = large.map(|Cause { name, share, .. }| format!("{name} {:.0} %", share * 100.0));
    shown.collect::<Vec<_>>().join(", ")
}

/// Length of the longest text or of the heading, in characters.
fn width<'a>(texts: impl Iterator<Item = &'a str>, head: &str) -> usize {
    texts.map(|text| text.chars().count()).fold(head.len(), usize::max)
}

/// A bar in eighths of characters.
fn bar(value: f64, most: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (value / most.max(f64::MIN_POSITIVE) * (BAR * 8) as f64).round() as usize;
    let eighths = eighths.clamp(1, BAR * 8);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_proportional_and_never_empty() {
        assert_eq!(bar(4.0, 4.0), "█".repeat(BAR));
        assert_eq!(bar(2.0, 4.0), "█".repeat(BAR / 2));
        assert_eq!(bar(0.0, 4.0), "▏");
        assert_eq!(bar(4.0 * 9.0 / (BAR * 8) as f64, 4.0), "█▏");
    }
}
