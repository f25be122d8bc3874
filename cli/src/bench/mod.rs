//! `sluice bench`: the cost of each way of receiving, sending, dropping and forwarding, step by step, in a lab
//! or between two existing interfaces.

mod baseline;
mod check;
mod cost;
mod floods;
mod http;
mod ndr;
mod options;
mod output;
mod progress;
mod scrub_cost;

use std::path::PathBuf;

use clap::Subcommand;
use sluicegate_bench::instructions;
use sluicegate_bench::report::Report;
use sluicegate_bench::rounds::BenchPlan;
use sluicegate_bench::suite::SuiteKind;

use options::{Options, OutputOptions};
use output::{ReportOutput, parse};
use progress::Watcher;

use crate::text_file;

const EXAMPLES: &str = "\
Examples:
  sluice bench rx
  sluice bench tx --peers --rounds 5
  sluice bench drop --rules 1,100
  sluice bench scrub --rounds 3
  sluice bench rx --sizes 60,512,1514 --json > rx.json
  sluice bench all --peers --html bench.html
  sluice bench tx --between lab-left/left0,lab-right/right0
  sluice bench check
  sluice bench instructions
  sluice bench ndr --sizes 60,512,1514
  sluice bench cost
  sluice bench scrub-cost
  sluice bench floods --floods syn-random,mixed

Needs root. The first CPU sends, the others receive. ^C keeps the results so far and
removes the lab.";

const NETMAP_HELP: &str = "\
The folder NETMAP_BIN has pkt-gen and bridge; without it their steps are skipped. --peers is implied.";

/// Measure each way of handling packets, and devices by RFC 2544
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Receive, from recv to counting in XDP
    Rx(Options),
    /// Send, from sendto to live frames
    Tx(Options),
    /// Drop packets before the host, from a user-space listener to XDP
    Drop(Options),
    /// Forward on a host between two others, from packet sockets to XDP redirect
    Forward(Options),
    /// Move packets from one program to another, from Unix sockets to memif
    Pipe(Options),
    /// Drop a flood from random sources, by lists, rules, limits and cookies, beside the kernel's means
    Scrub(Options),
    /// Netmap's pkt-gen and bridge by `sluice netmap`, in the suites above, beside the same work of others
    #[command(after_help = NETMAP_HELP)]
    Netmap(Options),
    /// All of these, and the instructions of hot loops
    All(Options),
    /// Count instructions of hot loops, which do not depend on the machine's load
    Instructions(OutputOptions),
    /// Check ratios against thresholds; exit status 1 after a fail
    Check(check::Args),
    /// Show a --json result of suites or ndr again: as tables, a page or a chart
    Show(ShowArgs),
    /// Measure throughput, latency, loss and bursts of a device between two interfaces (RFC 2544)
    Ndr(ndr::Args),
    /// Measure CPU time at modest rates, and round trips through forwarders
    Cost(cost::Args),
    /// Measure what a server delivers while floods hit it: without a filter, behind a bare drop, behind the scrubber
    Floods(floods::Args),
    /// Measure nanoseconds of the scrubber's stages for a packet, without an interface
    ScrubCost(scrub_cost::Args),
    /// The minimal relay beside forwarders.
    #[command(hide = true)]
    Relay(baseline::RelayArgs),
    /// The step "listener in user space": reads and discards datagrams.
    #[command(hide = true)]
    Listener(baseline::ListenerArgs),
    /// The steps of pipes and sockets: one end, with a system call for each packet.
    #[command(hide = true)]
    End(baseline::EndArgs),
    /// The server of `floods`.
    #[command(hide = true)]
    HttpServer(http::ServerArgs),
    /// The clients of `floods`.
    #[command(hide = true)]
    HttpGet(http::GetArgs),
    /// Steps of `scrub`: the files of a policy.
    #[command(hide = true)]
    Policy(baseline::PolicyArgs),
    /// Steps of `scrub`: XDP programs that use maps of the kernel.
    #[command(hide = true)]
    BpfDrop(baseline::BpfDropArgs),
}

#[derive(clap::Args)]
struct ShowArgs {
    /// Result of --json, of suites, instructions or ndr
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    shown: OutputOptions,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        BenchCommand::Rx(options) => measure(vec![SuiteKind::Rx], &options, false),
        BenchCommand::Tx(options) => measure(vec![SuiteKind::Tx], &options, false),
        BenchCommand::Drop(options) => measure(vec![SuiteKind::Drop], &options, false),
        BenchCommand::Forward(options) => measure(vec![SuiteKind::Forward], &options, false),
        BenchCommand::Pipe(options) => measure(vec![SuiteKind::Pipe], &options, false),
        BenchCommand::Scrub(options) => measure(vec![SuiteKind::Scrub], &options, false),
        BenchCommand::Netmap(options) => measure_plan(options.netmap()?, &options, false),
        BenchCommand::All(options) => measure(options.all(), &options, true),
        BenchCommand::Instructions(shown) => count(&shown),
        BenchCommand::Check(args) => check::run(&args),
        BenchCommand::Show(args) => show(&args),
        BenchCommand::Ndr(args) => ndr::run(&args),
        BenchCommand::Cost(args) => cost::run(&args),
        BenchCommand::Floods(args) => floods::run(&args),
        BenchCommand::HttpServer(args) => http::serve(&args),
        BenchCommand::HttpGet(args) => http::get(&args),
        BenchCommand::ScrubCost(args) => scrub_cost::run(&args),
        BenchCommand::Relay(args) => baseline::relay(&args),
        BenchCommand::Listener(args) => baseline::listener(&args),
        BenchCommand::End(args) => baseline::end(&args),
        BenchCommand::Policy(args) => baseline::policy(&args),
        BenchCommand::BpfDrop(args) => baseline::bpf_drop(&args),
    }
}

/// Runs suites, and counts the hot loops if requested and in a lab.
fn measure(kinds: Vec<SuiteKind>, options: &Options, with_loops: bool) -> anyhow::Result<()> {
    measure_plan(options.bench(kinds)?, options, with_loops)
}

fn measure_plan(bench: BenchPlan, options: &Options, with_loops: bool) -> anyhow::Result<()> {
    let output = ReportOutput::prepare(&options.shown)?;
    let watcher = Watcher::start()?;
    let mut report = bench.run(&watcher, now())?;
    let with_loops = with_loops && report.complete && bench.between.is_none();
    let counted = with_loops.then(|| instructions::count(&watcher).map(|it| report.add(it)));
    drop(watcher);
    output.write(&report)?;
    Ok(counted.unwrap_or(Ok(()))?)
}

/// Counts the hot loops alone.
fn count(shown: &OutputOptions) -> anyhow::Result<()> {
    let output = ReportOutput::prepare(shown)?;
    let mut report = Report::empty(now());
    report.add(instructions::count(&Watcher::start()?)?);
    output.write(&report)
}

/// The time in the format of results.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let text = text_file::read(&args.file)?;
    if ndr::is_result(&text) {
        return ndr::show(&args.file, &text, &args.shown);
    }
    let report = parse(&args.file, &text)?;
    ReportOutput::prepare(&args.shown)?.write(&report)
}
