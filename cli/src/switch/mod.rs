//! `sluice switch`: a learning Ethernet switch over any ports.

mod answer;
mod ports;
mod report;
mod request;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use sluicegate::control::socket_path;
use sluicegate::error::Result;
use sluicegate::units;

use crate::args::{Common, Receiving};
use ports::{Named, Settings};

const EXAMPLES: &str = "\
Examples:
  sluice switch xdp:eth0 xdp:eth1 xdp:eth2
  sluice switch eth0 up=xdp:eth1 --storm-limit 10K
  sluice switch a=xdp:eth0 b=xdp:eth1 up=xdp:eth2 --access a=10 --access b=20 --trunk up=10,20
  sluice switch xdp:eth0 xdp:eth1 all=pcap:all.pcapng --tx-only all
  sluice switch show
  sluice switch add xdp:eth4
  sluice switch static 02:00:00:00:00:01 eth4

A port is called what its interface is called, unless NAME=PORT says otherwise.
What an interface receives goes to the switch; by xdp: the host does not get it.";

/// Switch Ethernet frames between ports, learning where hosts are
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<request::RequestAction>,

    #[command(flatten)]
    run: RunArgs,
}

/// Which switch.
#[derive(clap::Args, Clone, Debug)]
struct Where {
    /// The switch's name, if several run [default: switch]
    #[arg(long, value_name = "SWITCH")]
    name: Option<String>,

    /// The socket it is asked by [default: /run/sluice/switch/NAME/control.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    control: Option<PathBuf>,
}

impl Where {
    fn path(&self) -> Result<PathBuf> {
        match &self.control {
            Some(path) => Ok(path.clone()),
            None => socket_path("switch", self.name.as_deref().unwrap_or("switch")),
        }
    }
}

/// A switch that is to run.
#[derive(clap::Args)]
struct RunArgs {
    /// The ports: eth0, xdp:eth0, NAME=PORT
    #[arg(value_name = "[NAME=]PORT", required = true)]
    ports: Vec<Named>,

    #[command(flatten)]
    place: Where,

    #[command(flatten)]
    settings: Settings,

    #[command(flatten)]
    table: TableArgs,

    /// Forward what is for link-local groups, too (01:80:c2:00:00:0x: spanning tree, LLDP, LACP),
    /// pause frames excepted
    #[arg(long)]
    forward_link_local: bool,

    /// Send on an interface that carries the host's default route
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Vec<String>,

    #[command(flatten)]
    receiving: Receiving,

    #[command(flatten)]
    common: Common,
}

/// How large the table is, and how long it remembers.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Table")]
struct TableArgs {
    /// Entries there is room for, made a power of two
    #[arg(long, value_name = "N", default_value = "65536", value_parser = entries)]
    table: usize,

    /// Entries that one port can have learned [default: an eighth of the table]
    #[arg(long, value_name = "N")]
    max_macs: Option<u32>,

    /// A host that says nothing for so long is forgotten
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = age)]
    age: Duration,
}

fn entries(text: &str) -> std::result::Result<usize, String> {
    let entries = units::count(text).ok().filter(|n| (64..=1 << 24).contains(n));
    entries.map(|n| n as usize).ok_or_else(|| "use a number from 64 to 16777216".into())
}

fn age(text: &str) -> std::result::Result<Duration, String> {
    let day = Duration::from_secs(86_400);
    let age = units::duration(text).ok();
    let age = age.filter(|age| (Duration::from_secs(1)..=day).contains(age));
    age.ok_or_else(|| "use a time from 1s to 24h".into())
}

/// Runs the command.
pub fn switch(args: Args) -> anyhow::Result<()> {
    match args.action {
        Some(action) => request::ask(action),
        None => run::run(args.run),
    }
}
