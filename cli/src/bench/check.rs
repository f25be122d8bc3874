//! `sluice bench check`: the ratios that this project guarantees, compared with their thresholds.

use std::io::{Write, stdout};
use std::path::PathBuf;

use sluicegate_bench::check::{Checked, Verdict, check, is_needed, sweep};
use sluicegate_bench::compare::compare;
use sluicegate_bench::measurement::short;
use sluicegate_bench::report::Report;
use sluicegate_bench::rounds::BenchPlan;
use sluicegate_bench::suite::SuiteKind;

use super::options::Turns;
use super::output::{print_compared, read};
use super::progress::Watcher;

#[derive(clap::Args)]
pub struct Args {
    /// A --json result, instead of a new run
    #[arg(value_name = "FILE", conflicts_with_all = ["rounds", "seconds"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    turns: Turns,

    /// Also report changes since this --json result; exit status 1 if a ratio fell, a loop became longer, or
    /// a step that ran before fails
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Print the result as one JSON array
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let before = args.compare.as_deref().map(read).transpose()?;
    let report = match &args.file {
        Some(file) => read(file)?,
        None => measure(args)?,
    };
    let checked = check(&report);
    let mut out = stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string(&checked)?)?,
        false => checked.iter().try_for_each(|it| print(it, &mut out))?,
    }
    let moved = before.map_or_else(Vec::new, |before| compare(&before, &report));
    if args.compare.is_some() {
        print_compared(&moved, args.json)?;
    }
    let failed = checked.iter().filter(|it| it.verdict == Verdict::Fail).count();
    anyhow::ensure!(failed == 0, "{failed} of {} ratios are below their thresholds", checked.len());
    let worse = moved.iter().filter(|it| it.is_worse()).count();
    anyhow::ensure!(worse == 0, "{worse} became slower or longer, or fail now");
    anyhow::ensure!(report.complete, "stopped before all turns were complete");
    Ok(())
}

/// Measures the steps of thresholds and the references alone.
fn measure(args: &Args) -> anyhow::Result<Report> {
    let bench = BenchPlan {
        kinds: SuiteKind::ALL.into(),
        only: Some(is_needed),
        with_peers: true,
        rounds: args.turns.rounds,
        time: args.turns.seconds,
        sweep: sweep(),
        causes: false,
        between: None,
    };
    Ok(bench.run(&Watcher::start()?, super::now())?)
}

fn print(checked: &Checked, out: &mut impl Write) -> std::io::Result<()> {
    let Checked { threshold, verdict, ratio, reason } = checked;
    let verdict = match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "fail",
        Verdict::Unknown => "unknown",
    };
    let ratio = ratio.map_or_else(String::new, |it| {
        format!("{} ({}-{})", short(it.median), short(it.min), short(it.max))
    });
    let what = format!("{}: {}, to {}", threshold.suite, threshold.step, threshold.to);
    write!(out, "{verdict:<8} {ratio:>19}  threshold {}  {what}", short(threshold.at_least))?;
    match reason {
        Some(reason) => writeln!(out, ": {reason}"),
        None => writeln!(out),
    }
}
