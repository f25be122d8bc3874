//! `sluice bench`: what each way of receiving, sending, dropping and passing on costs, step by step, in
//! a lab of its own or between two interfaces.

mod end;
mod listener;
mod ndr;
mod options;
mod progress;
mod table;

use std::io::{Write, stderr, stdout};
use std::path::Path;

use clap::Subcommand;
use sluicegate::error::Error;
use sluicegate_bench::compare::compare;
use sluicegate_bench::ladder::Kind;
use sluicegate_bench::peers;
use sluicegate_bench::report::Report;

use crate::signals::Signals;

use options::Options;
use progress::Watcher;

const EXAMPLES: &str = "\
Examples:
  sluice bench rx
  sluice bench tx --peers --rounds 5
  sluice bench drop --rules 1,100
  sluice bench rx --sizes 60,512,1514 --json > rx.json
  sluice bench tx --between lab-left/left0,lab-right/right0
  sluice bench ndr --sizes 60,512,1514

Needs root. The first CPU sends, the others receive. ^C ends it and keeps what
was measured.";

/// Measure step by step what each way of handling packets costs, beside others' programs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
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
    /// All of these.
    All(Options),
    /// A device between two interfaces: throughput, latency, loss and bursts by RFC 2544.
    Ndr(ndr::Args),
    /// The step "listener in user space": reads a UDP socket, and forgets.
    #[command(hide = true)]
    Listener(listener::Args),
    /// Steps between two programs: an end that sends, or receives, a call a packet.
    #[command(hide = true)]
    End(end::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Rx(options) => climb(vec![Kind::Rx], &options),
        What::Tx(options) => climb(vec![Kind::Tx], &options),
        What::Drop(options) => climb(vec![Kind::Drop], &options),
        What::Forward(options) => climb(vec![Kind::Forward], &options),
        What::Pipe(options) => climb(vec![Kind::Pipe], &options),
        What::All(options) => climb(options.all(), &options),
        What::Ndr(args) => ndr::run(&args),
        What::Listener(args) => listener::run(&args),
        What::End(args) => end::run(&args),
    }
}

fn climb(kinds: Vec<Kind>, options: &Options) -> anyhow::Result<()> {
    let bench = options.bench(kinds)?;
    // Read first: a wrong file is told before minutes have gone by.
    let before = options.compare.as_deref().map(read).transpose()?;
    let date = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let peers = match options.peers {
        true => peers::ALL.iter().map(peers::Peer::look).collect(),
        false => Vec::new(),
    };
    let watcher = Watcher::new(Signals::catch()?);
    let results = bench.run(&watcher)?;
    drop(watcher);
    let report = Report::new(&bench, &results, peers, date);
    let mut out = stdout().lock();
    if options.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        table::print(&report, &mut out)?;
    }
    if let Some(before) = before {
        // With JSON on standard output it is for people all the same.
        let moved = compare(&before, &report);
        match options.json {
            true => table::print_moved(&moved, &mut stderr())?,
            false => table::print_moved(&moved, &mut out)?,
        }
    }
    Ok(())
}

/// A result of before.
fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(path).map_err(|error| Error::path("read", path, error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let path = path.display();
        Error::Usage(format!("{path} is no result of `sluice bench --json`: {error}")).into()
    })
}
