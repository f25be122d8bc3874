//! `sluice netmap`: programs written for netmap, without its kernel module.

mod library;
mod run;

use std::ffi::OsString;

use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  sluice netmap run -- pkt-gen -i eth0 -f rx
  sluice netmap run -f 'udp port 9' -- pkt-gen -i eth0 -f rx   the host keeps other packets
  sluice netmap run -- bridge -i netmap:eth0 -i netmap:eth1

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
}

/// Options of `run`; those that are not given leave the environment as it is.
#[derive(clap::Args)]
struct RunArgs {
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

    /// Lines on stderr: none, the causes of errors, or each call, too [default: error]
    #[arg(long, value_parser = ["off", "error", "debug"])]
    log: Option<String>,

    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        NetmapAction::Run(args) => run::run(&args),
    }
}
