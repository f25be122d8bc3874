//! `sluice capture`: packets into a file, a pipe, or lines on the terminal.
//!
//! ```text
//!   one queue:       ring → encoder → chunk ───────────────────────────→ file
//!   several:         ring → encoder → chunk ─┐
//!                    ring → encoder → chunk ─┴→ merge (order of time) ─→ file
//!   --keep:          … → history in memory, until a trigger ────────────→ file
//!   lines:           ring → printer → encoder, then as above ──────────→ standard output
//! ```

mod chunks;
mod keep;
mod leftovers;
mod lines;
mod options;
mod post_rotate;
mod recorder;
mod session;
pub mod tcpdump;

use std::path::Path;
use std::sync::Arc;

use sluicegate::error::{Error, ErrorKind, Result};
use sluicegate::file::write::OutputConfig;
use sluicegate::port::{Kind, Port, PortName};

use keep::Keeper;
pub use options::Args;
use options::Options;
use recorder::{File, Numbers};
use session::Session;

use crate::args::options_for_kind;
use crate::new_file::NewFile;
use crate::ports;
use crate::report::Report;
use crate::stats::Tables;

/// Runs the command.
pub fn capture(args: Args) -> anyhow::Result<()> {
    args.check_flags()?;
    if args.lists_interfaces() {
        return options::list_interfaces(&args.common);
    }
    if args.print_program()? {
        return Ok(());
    }
    args.common.check()?;
    let options = Options::of(args)?;
    if let Some(output) = &options.output {
        ports::refuse_overwriting(&options.ports, &output.path)?;
    }
    let summary = options.args.summary.as_deref().map(|path| create_summary(path, &options));
    let summary = summary.transpose()?;
    let mut ports = Vec::new();
    for name in &options.ports {
        ports::await_input(name)?;
        let port = Port::open(name, &options_for_kind(options.opening(), name.kind()))?;
        // Created at once, so that the card's counters cover the time that the port is open.
        let mut report = Report::of_port("capture", &port, &options.args.common);
        ports::announce(&port, &options.args.common, &mut report);
        ports.push((port, report));
    }
    let prepare = |config| Ok::<_, Error>(Arc::new(File::prepare(config, Keeper::of(&options)?)?));
    let file = options.output.as_ref().map(prepare).transpose()?;
    // Interfaces that the format cannot hold together are refused before a file is emptied.
    let numbers = ports.iter().map(|(port, _)| number_interfaces(port, file.as_deref()));
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    // Too little memory is reported before a file is emptied, too.
    let queues = ports.iter().map(|(port, _)| port.queues.len()).sum();
    let tables = options.args.stats.map(|_| Tables::new(queues)).transpose()?;
    // The user of `--user` creates later files, so that user also creates the first: a missing permission is
    // reported now.
    let first = options.output.as_ref().is_some_and(OutputConfig::begins_files_later);
    if first {
        options.args.common.become_user()?;
    }
    if let Some(file) = &file {
        begin(file, &options, first)?;
    }
    let session = Session::set_up(&options, ports, numbers, file, tables)?;
    if !first {
        options.args.common.become_user()?;
    }
    session.announce();
    session.run(summary)
}

/// Creates the file of `--summary`.
fn create_summary(path: &Path, options: &Options) -> Result<NewFile> {
    ports::refuse_overwriting(&options.ports, path)?;
    let file = NewFile::create(path, Some(options.args.common.access()))?;
    // One of them may have been a link to the other, which exists now.
    let output = options.output.as_ref();
    output.map_or(Ok(()), |output| ports::refuse_same_outputs(path, &output.path))?;
    Ok(file)
}

/// Creates the first file, or checks that it can be created later.
fn begin(file: &File, options: &Options, as_user: bool) -> Result<()> {
    file.output().begin().map_err(|error| match &options.args.common.user {
        Some(user) if as_user && error.kind() == ErrorKind::Privilege => error.remedy(format!(
            "{user} creates the files; chown {user} the directory, or write to another one"
        )),
        _ => error,
    })
}

/// Numbers a port's interfaces in the file.
fn number_interfaces(port: &Port, file: Option<&File>) -> Result<Arc<Numbers>> {
    let Port { name, queues, .. } = port;
    // The port receives from all interfaces, which appear with their first packets.
    let several = ports::is_any(name) && queues.iter().all(|queue| queue.interfaces().is_empty());
    let numbers = Numbers::new(name.option("filter").map(str::to_owned), several);
    if let Some(file) = file {
        queues.iter().try_for_each(|queue| numbers.of(queue.interfaces(), file).map(drop))?;
    }
    Ok(Arc::new(numbers))
}

/// Returns true if a silent source delays the others only for the reorder window. Files can wait without
/// limit, even for a single pipe. Two pipes cannot, because the writer of an unread pipe may have to drop
/// packets.
fn are_live(names: &[PortName]) -> bool {
    let mut pipes = 0;
    for name in names {
        match name.kind() {
            Kind::Pcap => pipes += usize::from(is_pipe(name.name())),
            _ => return true,
        }
    }
    pipes > 1
}

/// Returns true if a path to read as a capture file is a pipe.
fn is_pipe(path: &str) -> bool {
    let path = if path == "-" { "/dev/stdin" } else { path };
    std::fs::metadata(path).is_ok_and(|found| !found.is_file())
}
