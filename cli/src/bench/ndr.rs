//! `sluice bench ndr`: RFC 2544 tests of a device between two interfaces.

use std::cell::Cell;
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluicegate::error::Error;
use sluicegate::link::Mac;
use sluicegate_bench::Failure;
use sluicegate_bench::measurement::of_share;
use sluicegate_bench::ndr::device_trial::{DeviceTrial, Pair};
use sluicegate_bench::ndr::trial::{Goal, Latency, Offer};
use sluicegate_bench::ndr::{self, NdrResults, OfSize};
use sluicegate_bench::observer::{BenchObserver, Progress};
use sluicegate_bench::page;
use sluicegate_bench::step::Setting;
use sluicegate_bench::suite::forward;
use sluicegate_bench::testbed::{Testbed, TestbedConfig};

use super::options::{OutputOptions, sides, turn_time};
use super::output::{HeadedResult, write_and_print};
use super::progress::Watcher;
use crate::new_file::NewFile;
use crate::pacing::NEARLY;
use crate::units::{packets_word, show_bps, show_count, show_duration, show_pps};

/// Preamble, delimiter, check sequence and gap of a frame.
const AROUND_BYTES: f64 = 24.0;

/// The name of the command in its results.
const COMMAND: &str = "bench ndr";

#[derive(clap::Args)]
pub struct Args {
    /// Two interfaces with the device between them, instead of a lab: the first sends, the second receives;
    /// repeated, several pairs share the packets
    #[arg(long, value_name = "[NETNS/]A,[NETNS/]B")]
    between: Vec<String>,

    /// Device in the lab: `sluice forward`, or the kernel's bridge
    #[arg(
        long,
        default_value = "forward",
        value_parser = ["forward", "bridge"],
        conflicts_with = "between"
    )]
    device: String,

    /// Frame bytes without check sequence, 60 to 1514, or imix
    #[arg(long, default_value = "60", value_name = "LIST", value_delimiter = ',', value_parser = size)]
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

    /// Destination MAC address of each pair, for a device that routes [default: the far interface's]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    dmac: Vec<Mac>,

    /// Write a page for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u32, String> {
    match text.parse() {
        _ if text == "imix" => Ok(Setting::MIXED),
        Ok(bytes) if (60..=1514).contains(&bytes) => Ok(bytes),
        _ => Err("use 60 to 1514 bytes, or imix".into()),
    }
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
    let page = args.html.as_deref().map(|path| NewFile::create(path, None)).transpose()?;
    let watcher = Watcher::start()?;
    let results = measure(args, &watcher);
    drop(watcher);
    let results = results?;
    if results.are_none() {
        return Err(Failure::Stopped.into());
    }
    publish(&HeadedResult::of(COMMAND, results), page, args.json)
}

/// Shows an earlier result, whose text this is, again.
///
/// # Errors
/// It is invalid; a flag that belongs to suites.
pub fn show(path: &Path, text: &str, shown: &OutputOptions) -> anyhow::Result<()> {
    if shown.compare.is_some() || shown.svg.is_some() || shown.markdown.is_some() {
        let reason = "takes --html and --json only; omit --compare, --svg and --markdown";
        return Err(Error::Usage(format!("a result of `sluice {COMMAND}` {reason}")).into());
    }
    let headed = serde_json::from_str(text).map_err(|error| {
        let path = path.display();
        Error::Usage(format!("{path} is not a result of `sluice {COMMAND} --json`: {error}"))
    })?;
    let page = shown.html.as_deref().map(|path| NewFile::create(path, None)).transpose()?;
    publish(&headed, page, shown.json)
}

/// Reports whether this is the text of a result of this command.
pub fn is_result(text: &str) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
    value.is_some_and(|value| value["command"] == COMMAND)
}

/// Writes a result to its destinations.
fn publish(
    headed: &HeadedResult<NdrResults>,
    page: Option<NewFile>,
    json: bool,
) -> anyhow::Result<()> {
    let HeadedResult { version, date, machine, result, .. } = headed;
    let page = page.map(|file| (file, page::ndr(result, machine, version, date)));
    write_and_print(page, || match json {
        true => headed.print_json(),
        false => Ok(print(result, &mut stdout().lock())?),
    })
}

fn measure(args: &Args, watcher: &Watcher) -> Result<NdrResults, Failure> {
    let of_sides = |text: &String| {
        let (left, right) = sides(text)?;
        Testbed::of(left, right)
    };
    let mut testbeds = args.between.iter().map(of_sides).collect::<Result<Vec<_>, _>>()?;
    let mut device = None;
    if testbeds.is_empty() {
        let testbed = Testbed::make(TestbedConfig::LINE)?;
        match args.device.as_str() {
            "bridge" => forward::make_bridge(&testbed)?,
            _ => device = Some(forward::start_forwarder(&testbed, watcher)?),
        }
        testbeds.push(testbed);
    }
    let pairs = pairs(testbeds, &args.dmac)?;
    let confirm = args.confirm.unwrap_or(args.seconds * 3);
    let goal = Goal { loss: args.loss, resolution: args.resolution, time: args.seconds, confirm };
    let done = Cell::new(0);
    let begins = |offer: &Offer| {
        let rate =
            offer.rate.map_or_else(|| "at full speed".into(), |pps| show_pps(pps).to_string());
        let step = format!("{}, {rate}", size_words(offer.bytes));
        watcher.progress(&Progress { step: &step, done: done.get(), turns: None });
        done.set(done.get() + 1);
    };
    let (pairs, drain) = (&pairs, args.drain);
    let mut trial = DeviceTrial { pairs, device, drain, watch: watcher, begins: &begins };
    ndr::run(&mut trial, goal, &args.sizes)
}

/// Gives each pair its destination address.
fn pairs(testbeds: Vec<Testbed>, dmac: &[Mac]) -> Result<Vec<Pair>, Error> {
    if !dmac.is_empty() && dmac.len() != testbeds.len() {
        let (addresses, pairs) = (dmac.len(), testbeds.len());
        let text = format!(
            "--dmac: addresses: {addresses}, pairs of interfaces: {pairs}; give one for each pair"
        );
        return Err(Error::Usage(text));
    }
    let pair = |(index, testbed): (usize, Testbed)| {
        let to = dmac.get(index).copied().map_or_else(|| testbed.right.mac(), Ok)?;
        Ok(Pair { testbed, to })
    };
    testbeds.into_iter().enumerate().map(pair).collect()
}

fn size_words(bytes: u32) -> String {
    if bytes == Setting::MIXED { "IMIX".into() } else { format!("{bytes} bytes") }
}

fn print(results: &NdrResults, out: &mut impl Write) -> io::Result<()> {
    for of_size in &results.sizes {
        writeln!(out, "frames of {}", size_words(of_size.size))?;
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
    let bytes = if *size == Setting::MIXED { Setting::IMIX_MEAN } else { f64::from(*size) };
    let bps = |pps: f64| show_bps(pps * (bytes + AROUND_BYTES) * 8.0);
    match &found.throughput {
        Some(it) => {
            let kept = "; the sender kept no higher rate evenly, the device may do more";
            let why = if it.sender_limits { kept } else { "" };
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
        let (offered, asked) = (show_pps(it.offered_pps), it.of_most * of_size.found.most_pps);
        let missed = match it.offered_pps < NEARLY * asked {
            true => format!(" (asked for {})", show_pps(asked)),
            false => String::new(),
        };
        let lost = percent(it.lost);
        writeln!(out, "  frame loss    at {load:>3.0} %: {offered}{missed}, {lost} lost")?;
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
