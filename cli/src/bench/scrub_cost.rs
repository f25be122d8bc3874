//! `sluice bench scrub-cost`: nanoseconds of the scrubber's stages for a packet.

use std::io::{self, Write, stdout};

use sluicegate::units;
use sluicegate_bench::measurement::Spread;
use sluicegate_bench::scrub_cost::{self, NETWORKS, ScrubCosts};

use super::output::HeadedResult;
use super::progress::Watcher;

#[derive(clap::Args)]
pub struct Args {
    /// Rounds; every policy has a turn in each
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
    rounds: u32,

    /// Packets of a turn, 1k to 100M
    #[arg(long, default_value = "3M", value_name = "N", value_parser = packets)]
    packets: u32,

    /// Networks of IPv4 in the sets, and a fifth as many of IPv6; 10 to 4M
    #[arg(long, default_value_t = NETWORKS, value_name = "N", value_parser = networks)]
    networks: u32,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

fn packets(text: &str) -> Result<u32, String> {
    let packets = units::count(text).ok().filter(|n| (1_000..=100_000_000).contains(n));
    packets.map(|n| n as u32).ok_or_else(|| "use a number from 1k to 100M".into())
}

fn networks(text: &str) -> Result<u32, String> {
    let networks = units::count(text).ok().filter(|n| (10..=4_000_000).contains(n));
    networks.map(|n| n as u32).ok_or_else(|| "use a number from 10 to 4M".into())
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let watcher = Watcher::start()?;
    let costs = scrub_cost::run(args.rounds, args.packets, args.networks, &watcher);
    drop(watcher);
    let costs = costs?;
    match args.json {
        true => HeadedResult::of("bench scrub-cost", costs).print_json(),
        false => Ok(print(&costs, &mut stdout().lock())?),
    }
}

fn print(costs: &ScrubCosts, out: &mut impl Write) -> io::Result<()> {
    let cell = |Spread { median, min, max }: Spread| format!("{median:.0} ({min:.0}-{max:.0})");
    writeln!(out, "{:<46}{:>18}{:>22}", "ns per packet", "beyond the base", "beyond empty policy")?;
    for it in &costs.rows {
        let cells = [it.beyond_base_ns, it.beyond_empty_ns].map(cell);
        writeln!(out, "{:<46}{:>18}{:>22}", it.row, cells[0], cells[1])?;
    }
    if !costs.complete {
        writeln!(out, "stopped before the end")?;
    }
    Ok(())
}
