//! `sluice bench`: what each way of receiving, sending, dropping and passing on costs, step by step, in
//! a lab of its own or between two interfaces.

mod baseline;
mod check;
mod cost;
mod ndr;
mod options;
mod output;
mod progress;

use std::path::PathBuf;

use clap::Subcommand;
use sluicegate_bench::instructions;
use sluicegate_bench::report::Report;
use sluicegate_bench::suite::SuiteKind;

use crate::signals::Signals;

use options::{Options, OutputOptions};
use output::{Output, read};
use progress::Watcher;

const EXAMPLES: &str = "\
Examples:
  sluice bench rx
  sluice bench tx --peers --rounds 5
  sluice bench drop --rules 1,100
  sluice bench rx --sizes 60,512,1514 --json > rx.json
  sluice bench all --peers --html bench.html
  sluice bench tx --between lab-left/left0,lab-right/right0
  sluice bench check
  sluice bench instructions
  sluice bench ndr --sizes 60,512,1514
  sluice bench cost

Needs root. The first CPU sends, the others receive. ^C ends it and keeps what
was measured.";

/// Measure step by step what each way of handling packets costs, beside others' programs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Receiving: from a system call a packet to counting where it comes in.
    Rx(Options),
    /// Sending: from a system call a packet to frames made in the kernel.
    Tx(Options),
    /// Dropping: from a program that nobody needs to XDP.
    Drop(Options),
    /// Passing on: from packet sockets to a redirect in XDP, in a host between two others.
    Forward(Options),
    /// From one program to another: by sockets and pipes, and by memory that both have.
    Pipe(Options),
    /// All of these, and the instructions of hot loops.
    All(Options),
    /// How many instructions the hot loops take: what a busy machine does not change.
    Instructions(OutputOptions),
    /// Ratios and their thresholds; exits with 1 where a ratio is below its threshold.
    Check(check::Args),
    /// A result that --json has written, shown again: as a table, as a page.
    Show(ShowArgs),
    /// A device between two interfaces: throughput, latency, loss and bursts by RFC 2544.
    Ndr(ndr::Args),
    /// Measure CPU time at modest rates, and round trips through forwarders.
    Cost(cost::Args),
    /// The relay that forwarders are measured beside.
    #[command(hide = true)]
    Relay(baseline::RelayArgs),
    /// The step "listener in user space": reads a UDP socket, and forgets.
    #[command(hide = true)]
    Listener(baseline::ListenerArgs),
    /// Steps between two programs: an end that sends, or receives, a call a packet.
    #[command(hide = true)]
    End(baseline::EndArgs),
}

#[derive(clap::Args)]
struct ShowArgs {
    /// The result
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    shown: OutputOptions,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        BenchCommand::Rx(options) => climb(vec![SuiteKind::Rx], &options, false),
        BenchCommand::Tx(options) => climb(vec![SuiteKind::Tx], &options, false),
        BenchCommand::Drop(options) => climb(vec![SuiteKind::Drop], &options, false),
        BenchCommand::Forward(options) => climb(vec![SuiteKind::Forward], &options, false),
        BenchCommand::Pipe(options) => climb(vec![SuiteKind::Pipe], &options, false),
        BenchCommand::All(options) => climb(options.all(), &options, true),
        BenchCommand::Instructions(shown) => count(&shown),
        BenchCommand::Check(args) => check::run(&args),
        BenchCommand::Show(args) => show(&args),
        BenchCommand::Ndr(args) => ndr::run(&args),
        BenchCommand::Cost(args) => cost::run(&args),
        BenchCommand::Relay(args) => baseline::relay(&args),
        BenchCommand::Listener(args) => baseline::listener(&args),
        BenchCommand::End(args) => baseline::end(&args),
    }
}

/// The suites, and the hot loops where they are wanted and there is a lab.
fn climb(kinds: Vec<SuiteKind>, options: &Options, with_loops: bool) -> anyhow::Result<()> {
    let bench = options.bench(kinds)?;
    let output = Output::prepare(&options.shown)?;
    let watcher = Watcher::new(Signals::catch()?);
    let mut report = bench.run(&watcher, now())?;
    if with_loops && report.complete && bench.between.is_none() {
        match instructions::count(&watcher) {
            Ok(counted) => report.add(counted),
            Err(error) => report.notes.push(format!("no instructions: {error}")),
        }
    }
    drop(watcher);
    output.write(&report)
}

/// The hot loops alone.
fn count(shown: &OutputOptions) -> anyhow::Result<()> {
    let output = Output::prepare(shown)?;
    let mut report = Report::empty(now());
    report.add(instructions::count(&Watcher::new(Signals::catch()?))?);
    output.write(&report)
}

/// The time, as results have it.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let report = read(&args.file)?;
    Output::prepare(&args.shown)?.write(&report)
}
