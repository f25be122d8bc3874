//! `sluice scrub`: a filter against floods.

mod added;
mod changes;
mod check;
mod confirmation;
mod control;
mod explain;
mod metrics;
mod names_file;
mod rehearse;
mod report;
mod return_path;
mod rules;
mod run;
mod samples;
mod service;
mod service_manager;
mod sets;
mod subscribers;
mod template;
mod top;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use sluicegate::control::socket_path;
use sluicegate::error::{Error, Result};
use sluicegate_scrub::policy::Policy;

const EXAMPLES: &str = "\
Examples:
  sluice scrub template web > policy.toml                a policy to start from
  sluice scrub check policy.toml
  sluice scrub explain policy.toml --src 203.0.113.7 --dst 198.51.100.80 --sport 11211 --size 1400
  sluice scrub rehearse policy.toml attack.pcap --peace trace.pcap
  sluice scrub run eth0 --policy policy.toml --monitor   count what it would drop
  sluice scrub run eth0 --policy policy.toml --confirm 60s
  sluice scrub confirm                                   in another terminal, if all is well
  sluice scrub status
  sluice scrub apply policy.toml --confirm 60s
  sluice scrub sets add attackers 203.0.113.0/24 --for 10m";

/// Drop the packets of floods before the host sees them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Scrub what interfaces receive, until SIGINT
    #[command(override_usage = "sluice scrub run [OPTIONS] --policy FILE IFACE…")]
    Run(run::RunArgs),
    /// Print a policy to start from
    #[command(override_usage = "sluice scrub template web|server")]
    Template(template::TemplateArgs),
    /// Check a policy
    #[command(override_usage = "sluice scrub check [OPTIONS] FILE")]
    Check(check::CheckArgs),
    /// Show each step of a policy's decision on a packet
    Explain(Box<explain::ExplainArgs>),
    /// Show which packets of recorded attacks and of ordinary traffic a policy drops
    #[command(override_usage = "sluice scrub rehearse [OPTIONS] FILE CAPTURE… [--peace CAPTURE…]")]
    Rehearse(rehearse::RehearseArgs),
    /// Show sampled packets of a running scrubber, and the cause of each verdict
    Samples(samples::SamplesArgs),
    /// Show a running scrubber's rates, on the full screen
    Top(top::TopArgs),
    #[command(flatten)]
    Request(control::Request),
}

/// Which scrubber.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct SocketArgs {
    /// Name of the scrubber, if several run [default: scrub]
    #[arg(long, value_name = "SCRUBBER")]
    name: Option<String>,

    /// Control socket [default: /run/sluice/scrub/SCRUBBER/control.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    control: Option<PathBuf>,
}

impl SocketArgs {
    fn path(&self) -> Result<PathBuf> {
        match &self.control {
            Some(path) => Ok(path.clone()),
            None => socket_path("scrub", self.name.as_deref().unwrap_or("scrub")),
        }
    }
}

/// Which scrubber, and the form of its answer.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct ClientArgs {
    #[command(flatten)]
    socket: SocketArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads a policy. An invalid one is wrong usage.
fn read_policy(path: &Path) -> Result<Policy> {
    Policy::read(path).map_err(|error| Error::Usage(error.to_string()))
}

/// Runs the command.
pub fn scrub(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Run(args) => run::run(args),
        Action::Template(args) => template::template(&args),
        Action::Check(args) => check::check(&args),
        Action::Explain(args) => explain::explain(&args),
        Action::Rehearse(args) => rehearse::rehearse(&args),
        Action::Samples(args) => samples::samples(&args),
        Action::Top(args) => top::top(&args),
        Action::Request(request) => control::ask(request),
    }
}
