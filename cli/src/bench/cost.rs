//! `sluice bench cost`: what waiting costs.

use std::io::{self, Write, stdout};
use std::time::Duration;

use serde::Serialize;
use sluicegate::units;
use sluicegate_bench::cost::{
    self, CostResults, CostSettings, ForwarderCost, ReceiverCost, RoundTrips,
};
use sluicegate_bench::machine::Machine;
use sluicegate_bench::statistics::of_share;

use super::options::turn;
use super::progress::Watcher;
use crate::signals::Signals;
use crate::units::show_count;

#[derive(clap::Args)]
pub struct Args {
    /// Packets a second that receivers get: 0 is nothing at all
    #[arg(long, default_value = "0,10k,100k,300k,1M", value_name = "LIST", value_delimiter = ',', value_parser = units::count)]
    rates: Vec<u64>,

    /// How long a receiver is measured at each rate, once packets have come for a second
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = turn)]
    seconds: Duration,

    /// Pings through each way of forwarding, 5 ms apart
    #[arg(long, default_value = "10000", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pings: u32,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The result as `--json` prints it.
#[derive(Serialize)]
struct CostReport<'a> {
    command: &'static str,
    version: &'static str,
    date: String,
    machine: Machine,
    seconds: f64,
    #[serde(flatten)]
    findings: &'a CostResults,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { rates, seconds, pings, json } = args;
    let settings = CostSettings { rates: rates.clone(), time: *seconds, pings: *pings };
    let watcher = Watcher::new(Signals::catch()?);
    let findings = cost::run(&settings, &watcher);
    drop(watcher);
    let findings = findings?;
    let mut out = stdout().lock();
    if *json {
        let report = CostReport {
            command: "bench cost",
            version: env!("CARGO_PKG_VERSION"),
            date: super::now(),
            machine: Machine::here(),
            seconds: seconds.as_secs_f64(),
            findings: &findings,
        };
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(rates, &findings, &mut out)?;
    }
    Ok(())
}

fn print(rates: &[u64], findings: &CostResults, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{:<38}", "receiving, share of a core")?;
    for &pps in rates {
        write!(out, "{:>17}", format!("{} pkt/s", show_count(pps)))?;
    }
    writeln!(out)?;
    for receiver in &findings.receiving {
        print_receiver(rates, receiver, out)?;
    }
    writeln!(
        out,
        "\n{:<38}{:>10}{:>10}{:>10}{:>8}",
        "round trip, ms", "median", "p99", "worst", "lost"
    )?;
    for forwarder in &findings.forwarding {
        print_forwarder(forwarder, out)?;
    }
    if !findings.complete {
        writeln!(out, "stopped before all was measured")?;
    }
    Ok(())
}

fn print_receiver(rates: &[u64], receiver: &ReceiverCost, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{:<38}", receiver.step)?;
    for pps in rates {
        let cpu = receiver.rates.iter().find(|it| it.pps == *pps).map(|it| of_share(it.cpu, 1));
        write!(out, "{:>17}", cpu.unwrap_or_else(|| "-".into()))?;
    }
    match &receiver.failed {
        Some(reason) => writeln!(out, "  {reason}"),
        None => writeln!(out),
    }
}

fn print_forwarder(forwarder: &ForwarderCost, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{:<38}", forwarder.step)?;
    match (&forwarder.round_trips, &forwarder.failed) {
        (Some(RoundTrips { lost, median_ms, p99_ms, max_ms, .. }), _) => {
            writeln!(out, "{median_ms:>10.3}{p99_ms:>10.3}{max_ms:>10.3}{lost:>8}")
        }
        (None, reason) => writeln!(out, "  {}", reason.as_deref().unwrap_or_default()),
    }
}
