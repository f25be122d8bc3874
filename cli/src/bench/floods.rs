//! `sluice bench floods`: what a server delivers while floods hit it.

use std::io::{self, Write, stdout};
use std::time::Duration;

use serde_json::json;
use sluicegate::error::Error;
use sluicegate_bench::floods::{self, FloodResults, FloodRow, FloodSettings, Turn};

use super::options::turn_time;
use super::output::HeadedResult;
use super::progress::Watcher;

#[derive(clap::Args)]
pub struct Args {
    /// Floods to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    floods: Vec<String>,

    /// Measuring time of HTTP, and that of iperf3, in each turn
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = turn_time)]
    seconds: Duration,

    /// Do not measure iperf3
    #[arg(long)]
    no_iperf: bool,

    /// Print the specification of a flood's packets instead
    #[arg(long, value_name = "FLOOD")]
    show: Option<String>,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let known = floods::names();
    let mut wanted = args.floods.iter().chain(&args.show);
    if let Some(name) = wanted.find(|name| !known.contains(&name.as_str())) {
        let text = format!("no flood '{name}'; available: {}", known.join(", "));
        return Err(Error::Usage(text).into());
    }
    if let Some(text) = args.show.as_deref().and_then(floods::spec) {
        return Ok(write!(stdout(), "{text}")?);
    }
    let settings =
        FloodSettings { time: args.seconds, floods: args.floods.clone(), iperf: !args.no_iperf };
    let watcher = Watcher::start()?;
    let results = floods::run(&settings, &watcher);
    drop(watcher);
    let results = results?;
    match args.json {
        true => print_json(&results),
        false => Ok(print(&results, &mut stdout().lock())?),
    }
}

/// Prints the results with the ratios of each row.
fn print_json(results: &FloodResults) -> anyhow::Result<()> {
    let mut value = serde_json::to_value(results)?;
    for (row, written) in
        results.rows.iter().zip(value["rows"].as_array_mut().into_iter().flatten())
    {
        let [http, iperf] = row.ratios();
        written["ratio"] = json!({ "http": http, "iperf": iperf });
    }
    HeadedResult::of("bench floods", value).print_json()
}

fn print(results: &FloodResults, out: &mut impl Write) -> io::Result<()> {
    if let Some(quiet) = &results.quiet {
        let [http, iperf] = cells(Some(quiet));
        writeln!(out, "without a flood: {http} requests/s, {iperf} Mbit/s")?;
    }
    let [ns, http, iperf] = ["ns/packet", "HTTP requests/s", "iperf3 Mbit/s"];
    writeln!(out, "{:<26}{:>6}{ns:>12}{http:>24}{iperf:>24}", "", "")?;
    let columns = |names: &[&str]| names.iter().map(|it| format!("{it:>6}")).collect::<String>();
    let (filters, all) = (columns(&["bare", "scrub"]), columns(&["no", "bare", "scrub", "ratio"]));
    writeln!(out, "{:<26}{:>6}{filters}{all}{all}", "flood", "Mpps")?;
    for row in &results.rows {
        print_row(row, out)?;
    }
    if !results.complete {
        writeln!(out, "stopped before the end")?;
    }
    Ok(())
}

fn print_row(row: &FloodRow, out: &mut impl Write) -> io::Result<()> {
    let turns = [&row.unfiltered, &row.bare, &row.scrub].map(Option::as_ref);
    let offered = turns.iter().flatten().filter_map(|turn| turn.offered_mpps);
    let offered = offered.reduce(f64::max).map_or_else(String::new, |mpps| format!("{mpps:.2}"));
    let rate = if row.rate_pps.is_some() { "1 Mpps" } else { "full speed" };
    write!(out, "{:<26}{offered:>6}", format!("{}, {rate}", row.flood))?;
    for turn in [&row.bare, &row.scrub] {
        let ns = turn.as_ref().and_then(|it| it.filter_ns);
        write!(out, "{:>6}", ns.map_or_else(|| "-".into(), |it| format!("{it:.0}")))?;
    }
    for (at, ratio) in row.ratios().into_iter().enumerate() {
        for turn in turns {
            write!(out, "{:>6}", cells(turn)[at])?;
        }
        let ratio = ratio.map_or_else(|| "-".into(), |it| format!("{it:.2}"));
        write!(out, "{ratio:>6}")?;
    }
    writeln!(out)?;
    row.failed.iter().try_for_each(|reason| writeln!(out, "  {reason}"))
}

/// HTTP and iperf3 of a turn.
fn cells(turn: Option<&Turn>) -> [String; 2] {
    let show = |figure: Option<f64>| figure.map_or_else(|| "-".into(), |it| format!("{it:.0}"));
    [show(turn.map(|it| it.http_rps)), show(turn.and_then(|it| it.iperf_mbps))]
}
