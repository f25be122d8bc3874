//! `sluice bench cost`: the cost of waiting.

use std::io::{self, Write, stdout};
use std::time::Duration;

use sluicegate::units;
use sluicegate_bench::cost::{
    self, CostResults, CostSettings, ForwarderCost, ReceiverCost, RoundTrips,
};
use sluicegate_bench::measurement::{Spread, of_share};

use super::options::turn_time;
use super::output::HeadedResult;
use super::progress::Watcher;
use crate::units::show_count;

#[derive(clap::Args)]
pub struct Args {
    /// Packets per second to receive; 0 sends none
    #[arg(long, default_value = "0,10k,100k,300k,1M", value_name = "LIST", value_delimiter = ',', value_parser = units::count)]
    rates: Vec<u64>,

    /// Measuring time at each rate, after a second of packets
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = turn_time)]
    seconds: Duration,

    /// Rounds; every way of forwarding has a turn in each
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
    rounds: u32,

    /// Pings through each way of forwarding in a round, 5 ms apart
    #[arg(long, default_value = "10000", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pings: u32,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let &Args { seconds: time, rounds, pings, .. } = args;
    let settings = CostSettings { rates: args.rates.clone(), time, rounds, pings };
    let watcher = Watcher::start()?;
    let results = cost::run(&settings, &watcher);
    drop(watcher);
    let results = results?;
    if args.json {
        HeadedResult::of("bench cost", results).print_json()
    } else {
        Ok(print(&args.rates, &results, &mut stdout().lock())?)
    }
}

fn print(rates: &[u64], results: &CostResults, out: &mut impl Write) -> io::Result<()> {
    if !results.receiving.is_empty() {
        print_receiving(rates, &results.receiving, out)?;
    }
    if !results.forwarding.is_empty() {
        print_forwarding(&results.forwarding, out)?;
    }
    if !results.complete {
        writeln!(out, "stopped before the end")?;
    }
    Ok(())
}

fn print_receiving(
    rates: &[u64],
    receiving: &[ReceiverCost],
    out: &mut impl Write,
) -> io::Result<()> {
    write!(out, "{:<38}", "receiving, share of a core")?;
    for &pps in rates {
        write!(out, "{:>17}", format!("{} pkt/s", show_count(pps)))?;
    }
    writeln!(out)?;
    for it in receiving {
        write!(out, "{:<38}", it.step)?;
        for pps in rates {
            let cpu = it.rates.iter().find(|at| at.pps == *pps).map(|at| of_share(at.cpu, 1));
            write!(out, "{:>17}", cpu.unwrap_or_else(|| "-".into()))?;
        }
        let failed = it.failed.as_ref().map(|reason| format!("  {reason}"));
        writeln!(out, "{}", failed.unwrap_or_default())?;
    }
    Ok(())
}

fn print_forwarding(forwarding: &[ForwarderCost], out: &mut impl Write) -> io::Result<()> {
    let [median, p99, worst, lost] = ["median", "p99", "worst", "lost"];
    writeln!(out, "\n{:<38}{median:>10}{p99:>10}{worst:>24}{lost:>8}", "round trip, ms")?;
    for it in forwarding {
        write!(out, "{:<38}", it.step)?;
        if let Some(RoundTrips { lost, median_ms, p99_ms, max_ms, .. }) = it.round_trips {
            let [median, p99] = [median_ms.median, p99_ms.median];
            let Spread { median: worst, min, max } = max_ms;
            let worst = format!("{worst:.3} ({min:.2}-{max:.2})");
            write!(out, "{median:>10.3}{p99:>10.3}{worst:>24}{lost:>8}")?;
        }
        let failed = it.failed.as_ref().map(|reason| format!("  {reason}"));
        writeln!(out, "{}", failed.unwrap_or_default())?;
    }
    Ok(())
}
