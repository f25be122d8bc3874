//! `sluice bench`: what each way of receiving, sending, dropping and passing on costs, step by step, in
//! a lab of its own or between two interfaces.

mod check;
mod end;
mod listener;
mod ndr;
mod options;
mod progress;
mod table;

use std::fs::File;
use std::io::{Read, Seek, Write, stderr, stdout};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use sluicegate::error::Error;
use sluicegate_bench::compare::compare;
use sluicegate_bench::instructions;
use sluicegate_bench::ladder::Kind;
use sluicegate_bench::page::chart::chart;
use sluicegate_bench::page::page;
use sluicegate_bench::peers;
use sluicegate_bench::report::Report;
use sluicegate_bench::rounds::Bench;
use sluicegate_bench::table::Document;

use crate::signals::Signals;

use options::{Options, Shown};
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
    /// All of these, and the instructions of hot loops.
    All(Options),
    /// How many instructions the hot loops take: what a busy machine does not change.
    Instructions(Shown),
    /// The ratios that are to be kept, each with its bar; ends with 1 where one is short of it.
    Check(check::Args),
    /// A result that --json has written, shown again: as a table, as a page.
    Show(ShowArgs),
    /// A device between two interfaces: throughput, latency, loss and bursts by RFC 2544.
    Ndr(ndr::Args),
    /// The step "listener in user space": reads a UDP socket, and forgets.
    #[command(hide = true)]
    Listener(listener::Args),
    /// Steps between two programs: an end that sends, or receives, a call a packet.
    #[command(hide = true)]
    End(end::Args),
}

#[derive(clap::Args)]
struct ShowArgs {
    /// The result
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    shown: Shown,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Rx(options) => climb(vec![Kind::Rx], &options),
        What::Tx(options) => climb(vec![Kind::Tx], &options),
        What::Drop(options) => climb(vec![Kind::Drop], &options),
        What::Forward(options) => climb(vec![Kind::Forward], &options),
        What::Pipe(options) => climb(vec![Kind::Pipe], &options),
        What::All(options) => all(&options),
        What::Instructions(shown) => count(&shown),
        What::Check(args) => check::run(&args),
        What::Show(args) => show(&args),
        What::Ndr(args) => ndr::run(&args),
        What::Listener(args) => listener::run(&args),
        What::End(args) => end::run(&args),
    }
}

fn climb(kinds: Vec<Kind>, options: &Options) -> anyhow::Result<()> {
    let bench = options.bench(kinds)?;
    // First of all: what cannot be read or written is told before minutes have gone by.
    let output = Output::prepare(&options.shown)?;
    let watcher = Watcher::new(Signals::catch()?);
    let report = measure(&bench, &watcher)?;
    drop(watcher);
    output.write(&report)
}

/// All ladders, and the hot loops where there is a lab.
fn all(options: &Options) -> anyhow::Result<()> {
    let bench = options.bench(options.all())?;
    let output = Output::prepare(&options.shown)?;
    let watcher = Watcher::new(Signals::catch()?);
    let mut report = measure(&bench, &watcher)?;
    if report.complete && bench.between.is_none() {
        match instructions::count(&watcher) {
            Ok(counted) => report.add(counted),
            Err(error) => report.notes.push(format!("no instructions: {error}")),
        }
    }
    drop(watcher);
    output.write(&report)
}

/// The hot loops alone.
fn count(shown: &Shown) -> anyhow::Result<()> {
    let output = Output::prepare(shown)?;
    let mut report = Report::empty(now());
    report.add(instructions::count(&Watcher::new(Signals::catch()?))?);
    output.write(&report)
}

fn measure(bench: &Bench, watcher: &Watcher) -> anyhow::Result<Report> {
    let date = now();
    let peers = match bench.with_peers {
        true => peers::ALL.iter().map(peers::Peer::look).collect(),
        false => Vec::new(),
    };
    let results = bench.run(watcher)?;
    Ok(Report::new(bench, &results, peers, date))
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let report = read(&args.file)?;
    Output::prepare(&args.shown)?.write(&report)
}

/// Where a result goes to.
struct Output<'a> {
    shown: &'a Shown,
    /// A result of before, to compare with.
    before: Option<Report>,
    html: Option<Written<'a>>,
    svg: Option<Written<'a>>,
    markdown: Option<(Written<'a>, Document)>,
}

impl<'a> Output<'a> {
    fn prepare(shown: &'a Shown) -> anyhow::Result<Self> {
        let before = shown.compare.as_deref().map(read).transpose()?;
        let html = shown.html.as_deref().map(Written::create).transpose()?;
        let svg = shown.svg.as_deref().map(Written::create).transpose()?;
        let markdown = shown.markdown.as_deref().map(Written::document).transpose()?;
        Ok(Self { shown, before, html, svg, markdown })
    }

    fn write(self, report: &Report) -> anyhow::Result<()> {
        if let Some(html) = self.html {
            html.write(&page(report))?;
        }
        if let Some(svg) = self.svg {
            svg.write(&chart(report))?;
        }
        if let Some((markdown, document)) = self.markdown {
            markdown.write(&document.with(report))?;
        }
        let (json, mut out) = (self.shown.json, stdout().lock());
        if json {
            serde_json::to_writer(&mut out, report)?;
            writeln!(out)?;
        } else {
            table::print(report, &mut out)?;
        }
        if let Some(before) = self.before {
            // With JSON on standard output it is for people all the same.
            let moved = compare(&before, report);
            match json {
                true => table::print_moved(&moved, &mut stderr())?,
                false => table::print_moved(&moved, &mut out)?,
            }
        }
        Ok(())
    }
}

/// A file that is written to in the end. One that is there stays as it is until then.
struct Written<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Written<'a> {
    fn create(path: &'a Path) -> Result<Self, Error> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Error::path("create", path, error))?;
        Ok(Self { path, file })
    }

    /// One that has a place for the table.
    fn document(path: &'a Path) -> Result<(Self, Document), Error> {
        let file = File::options().read(true).write(true).open(path);
        let mut file = file.map_err(|error| Error::path("open", path, error))?;
        let mut text = String::new();
        let read = file.read_to_string(&mut text).and_then(|_| file.rewind());
        read.map_err(|error| Error::path("read", path, error))?;
        let document = Document::of(&text).ok_or_else(|| {
            let path = path.display();
            Error::Usage(format!(
                "{path} has no place for a table: write the lines <!-- bench --> and <!-- /bench --> there"
            ))
        })?;
        Ok((Self { path, file }, document))
    }

    fn write(mut self, text: &str) -> Result<(), Error> {
        let is_file = self.file.metadata().is_ok_and(|it| it.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| Error::path("write", self.path, error))
    }
}

/// A result of before.
fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(path).map_err(|error| Error::path("read", path, error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let path = path.display();
        Error::Usage(format!("{path} is no result of `sluice bench --json`: {error}")).into()
    })
}
