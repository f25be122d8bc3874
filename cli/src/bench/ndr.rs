//! `sluice bench ndr`: RFC 2544 tests of a device between two interfaces.

use std::cell::Cell;
use std::io::{self, Write, stdout};
use std::time::Duration;

use sluicegate::error::Error;
use sluicegate::link::Mac;
use sluicegate_bench::Failure;
use sluicegate_bench::measurement::of_share;
use sluicegate_bench::ndr::device_trial::DeviceTrial;
use sluicegate_bench::ndr::trial::{Goal, Latency, Offer};
use sluicegate_bench::ndr::{self, NdrResults, OfSize};
use sluicegate_bench::observer::{BenchObserver, Progress};
use sluicegate_bench::suite::forward;
use sluicegate_bench::testbed::{Testbed, TestbedConfig};

use super::options::{sides, turn_time};
use super::output::print_json;
use super::progress::Watcher;
use crate::units::{packets_word, show_bps, show_count, show_duration, show_pps};

/// Preamble, delimiter, check sequence and gap of a frame.
const AROUND_BYTES: u32 = 24;

#[derive(clap::Args)]
pub struct Args {
    /// Two interfaces with the device between them, instead of a lab: the first sends, the second receives
    #[arg(long, value_name = "[NETNS/]A,[NETNS/]B")]
    between: Option<String>,

    /// Device in the lab: `sluice forward`, or the kernel's bridge
    #[arg(
        long,
        default_value = "forward",
        value_parser = ["forward", "bridge"],
        conflicts_with = "between"
    )]
    device: String,

    /// Frame bytes without check sequence, 60 to 1514
    #[arg(long, default_value = "60", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(60..=1514))]
    sizes: Vec<u32>,

    /// Tolerated loss: 0%, 0.1%
    #[arg(long, default_value = "0%", value_name = "SHARE", value_parser = loss)]
    loss: f64,

    /// Precision of the throughput
    #[arg(long, default_value = "0.5%", value_name = "SHARE", value_parser = resolution)]
    resolution: f64,

    /// Sending time of a trial
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = turn_time)]
    seconds: Duration,

    /// How long the throughput must hold at the end [default: three trials]
    #[arg(long, value_name = "TIME", value_parser = turn_time)]
    confirm: Option<Duration>,

    /// How long to wait for packets after sending
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = turn_time)]
    drain: Duration,

    /// Destination MAC address, for a device that routes [default: the far interface's]
    #[arg(long, value_name = "MAC")]
    dmac: Option<Mac>,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses "0.1%" as a share.
fn loss(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if (0.0..100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("use a share from 0% to less than 100%: 0.1%".into()),
    }
}

fn resolution(text: &str) -> Result<f64, String> {
    match loss(text)? {
        share if (0.0001..=0.2).contains(&share) => Ok(share),
        _ => Err("use a share from 0.01% to 20%".into()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let watcher = Watcher::start()?;
    let results = measure(args, &watcher);
    drop(watcher);
    let results = results?;
    if results.are_none() {
        return Err(Failure::Stopped.into());
    }
    if args.json {
        print_json("bench ndr", &results)
    } else {
        Ok(print(&results, &mut stdout().lock())?)
    }
}

fn measure(args: &Args, watcher: &Watcher) -> Result<NdrResults, Failure> {
    let (testbed, device) = match &args.between {
        Some(text) => {
            let (left, right) = sides(text)?;
            (Testbed::of(left, right)?, None)
        }
        None => {
            let testbed = Testbed::make(TestbedConfig::LINE)?;
            let device = match args.device.as_str() {
                "bridge" => forward::make_bridge(&testbed).map(|()| None),
                _ => forward::start_forwarder(&testbed, watcher).map(Some),
            };
            (testbed, device?)
        }
    };
    let confirm = args.confirm.unwrap_or(args.seconds * 3);
    let goal = Goal { loss: args.loss, resolution: args.resolution, time: args.seconds, confirm };
    let to = args.dmac.map_or_else(|| testbed.right.mac(), Ok::<_, Error>)?;
    let done = Cell::new(0);
    let begins = |offer: &Offer| {
        let turns = ndr::trials(goal, args.sizes.len()).max(done.get() + 1);
        let rate =
            offer.rate.map_or_else(|| "at full speed".into(), |pps| show_pps(pps).to_string());
        let step = format!("{} bytes, {rate}", offer.bytes);
        watcher.progress(&Progress { step: &step, done: done.get(), turns });
        done.set(done.get() + 1);
    };
    let (testbed, drain) = (&testbed, args.drain);
    let mut trial = DeviceTrial { testbed, device, to, drain, watch: watcher, begins: &begins };
    ndr::run(&mut trial, goal, &args.sizes)
}

fn print(results: &NdrResults, out: &mut impl Write) -> io::Result<()> {
    for of_size in &results.sizes {
        writeln!(out, "frames of {} bytes", of_size.size)?;
        print_found(results.goal, of_size, out)?;
        print_curves(of_size, out)?;
        writeln!(out)?;
    }
    if !results.complete {
        writeln!(out, "stopped before the end")?;
    }
    Ok(())
}

/// Prints the throughput, and the number of trials.
fn print_found(goal: Goal, of_size: &OfSize, out: &mut impl Write) -> io::Result<()> {
    let OfSize { size, found, loss, .. } = of_size;
    let bps = |pps: f64| show_bps(pps * f64::from(size + AROUND_BYTES) * 8.0);
    match &found.throughput {
        Some(it) => {
            let why =
                if it.sender_limits { "; the sender did no more, the device might" } else { "" };
            writeln!(
                out,
                "  throughput    {} packets a second, {} (layer 1), {} lost{why}",
                show_count(it.pps.round() as u64),
                bps(it.pps),
                percent(it.lost)
            )?;
        }
        // The loss is measured after the search.
        None if loss.is_empty() => writeln!(out, "  throughput    not known yet")?,
        None => {
            let allowed = percent(goal.loss);
            writeln!(out, "  throughput    none: more than {allowed} is lost at any rate")?;
        }
    }
    let most = show_pps(found.most_pps);
    writeln!(out, "  offered       {most} at most, {} trials", found.trials.len())?;
    Ok(())
}

/// Prints the results at other rates, and of bursts.
fn print_curves(of_size: &OfSize, out: &mut impl Write) -> io::Result<()> {
    for it in &of_size.latency {
        let Latency { p50_ns, p99_ns, p99_9_ns, max_ns } = it.latency;
        let [p50, p99, p99_9, max] = [p50_ns, p99_ns, p99_9_ns, max_ns].map(micros);
        let load = it.of_throughput * 100.0;
        writeln!(
            out,
            "  latency       at {load:>3.0} %: p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {max}"
        )?;
    }
    for it in &of_size.loss {
        let load = it.of_most * 100.0;
        let offered = show_pps(it.offered_pps).to_string();
        writeln!(out, "  frame loss    at {load:>3.0} %: {offered}, {} lost", percent(it.lost))?;
    }
    if let Some(it) = of_size.back_to_back {
        let more = if it.longest_tried { " or more" } else { "" };
        let (count, word) = (show_count(it.packets), packets_word(it.packets));
        writeln!(out, "  back-to-back  {count} {word}{more}")?;
    }
    Ok(())
}

fn micros(ns: u64) -> String {
    show_duration(Duration::from_nanos(ns)).to_string()
}

/// Formats a share as finely as a loss can be requested.
fn percent(share: f64) -> String {
    of_share(share, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_with_a_percent_sign() {
        assert_eq!(loss("0.1%"), Ok(0.001));
        assert_eq!(loss("0 %"), Ok(0.0));
        assert_eq!(resolution("0.5%"), Ok(0.005));
        for text in ["0.1", "-1%", "100%", "x%"] {
            assert!(loss(text).is_err(), "{text}");
        }
        assert!(resolution("0%").is_err() && resolution("50%").is_err());
    }
}
