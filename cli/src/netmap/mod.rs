//! `sluice netmap`: programs written for netmap, without its kernel module.

mod check;
mod library;
mod list;
mod run;
mod serve;

use std::ffi::OsString;

use clap::Subcommand;
use sluicegate::error::{Error, Result};

const EXAMPLES: &str = "\
Examples:
  sluice netmap run -- pkt-gen -i eth0 -f rx
  sluice netmap run -f 'udp port 9' -- pkt-gen -i eth0 -f rx   the host keeps other packets
  sluice netmap run -- bridge -i netmap:eth0 -i netmap:eth1
  sluice netmap serve    programs share ports, until SIGINT
  sluice netmap list
  sluice netmap check    what works on this kernel, in a lab of its own

SLUICE_NETMAP_LIBRARY names the library to load; by default it is beside the command.";

/// Run programs written for netmap on the stock kernel
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: NetmapAction,
}

#[derive(Subcommand)]
enum NetmapAction {
    /// Run a program that finds netmap at /dev/netmap, and return its exit status
    #[command(override_usage = "sluice netmap run [OPTIONS] -- COMMAND…")]
    Run(RunArgs),
    /// Serve programs that share pipes, switches and the queues of cards, also without privileges
    #[command(override_usage = "sluice netmap serve [OPTIONS]")]
    Serve(serve::ServeArgs),
    /// List a server's programs, ports, rings with their cursors, and memory
    #[command(override_usage = "sluice netmap list [OPTIONS]")]
    List(list::ListArgs),
    /// Try what programs use, in a lab of its own, and report what works on this kernel
    #[command(override_usage = "sluice netmap check [OPTIONS]")]
    Check(check::CheckArgs),
}

/// How the engine serves interfaces.
#[derive(Clone, Debug, clap::Args)]
struct PortOptions {
    /// Serve interfaces by AF_XDP, by AF_XDP and live frames, or by packet sockets [default: live
    /// with 2N+2 CPUs for N transmit rings, otherwise xdp]
    #[arg(long, value_parser = ["xdp", "live", "packet"])]
    backend: Option<String>,

    /// Packets that registered interfaces take, a pcap-filter expression; the host keeps the others
    #[arg(short, long, value_name = "FILTER")]
    filter: Option<String>,

    /// Interfaces to take all packets from although they carry the default route, with commas
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    allow: Vec<String>,
}

impl PortOptions {
    /// Takes what is not given from the environment, as a program with the library does.
    ///
    /// # Errors
    /// A variable is not UTF-8.
    fn or_environment(&self) -> Result<Self> {
        let mut options = self.clone();
        let Self { backend, filter, allow } = &mut options;
        for (option, name) in [(backend, "SLUICE_NETMAP_BACKEND"), (filter, "SLUICE_NETMAP_FILTER")]
        {
            if option.is_none() {
                *option = variable(name)?;
            }
        }
        if allow.is_empty() {
            let names = variable("SLUICE_NETMAP_ALLOW")?.unwrap_or_default();
            allow.extend(names.split(',').filter(|it| !it.is_empty()).map(str::to_owned));
        }
        Ok(options)
    }

    /// Returns them as arguments of another command.
    fn arguments(&self) -> Vec<OsString> {
        let Self { backend, filter, allow } = self;
        let allow = allow.iter().map(|it| ("--allow", it));
        let options = backend.iter().map(|it| ("--backend", it));
        let options = options.chain(filter.iter().map(|it| ("--filter", it))).chain(allow);
        options.flat_map(|(name, value)| [name.into(), value.into()]).collect()
    }
}

/// Options of `run`; those that are not given leave the environment as it is.
#[derive(clap::Args)]
struct RunArgs {
    #[command(flatten)]
    ports: PortOptions,

    /// Share ports with programs of the server at this socket, or `off` [default: the one at
    /// /run/sluice/netmap.sock, if it serves this network namespace and no option of ports is given]
    #[arg(long, value_name = "PATH|off", conflicts_with_all = ["backend", "filter", "allow"])]
    server: Option<String>,

    /// Start a server for the processes of the program; it ends with the program
    #[arg(long, conflicts_with = "server")]
    shared: bool,

    /// Lines on stderr: none, the causes of errors, or each call, too [default: error]
    #[arg(long, value_parser = ["off", "error", "debug"])]
    log: Option<String>,

    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Result<Option<String>> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let value = value.map(OsString::into_string).transpose();
    value.map_err(|value| Error::Usage(format!("{name}={}: it is not UTF-8", value.display())))
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        NetmapAction::Run(args) => run::run(&args),
        NetmapAction::Serve(args) => serve::serve(&args),
        NetmapAction::List(args) => list::list(&args),
        NetmapAction::Check(args) => check::check(&args),
    }
}
