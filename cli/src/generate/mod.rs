//! `sluice generate`: makes packets to a specification and sends them.
//!
//! ```text
//!   specification --> plan --> sender: live frames, or a port's transmit ring --> ledger
//! ```

mod live;
mod load;
mod method;
mod pace;
mod report;
mod ring;
mod run;

use std::io::stdout;
use std::path::PathBuf;
use std::sync::Arc;

use sluicegate::error::{Error, Result};
use sluicegate::link::{self, carries_default_route};
use sluicegate::port::PortName;

use crate::args::Common;
use crate::notice;
use crate::signals::Signals;
use crate::status::Status;
use method::Method;
use pace::Rate;
use report::Sent;

const EXAMPLES: &str = "\
Examples:
  sluice generate left0 --netns lab-left --spec flood.toml --duration 10s
  sluice generate eth1 --spec mix.toml --rate 1Mpps --method live --cpus 2,3
  sluice generate pcap:out.pcapng --spec mix.toml --count 1000
  sluice generate eth1 --spec mix.toml --show";

/// Make packets to a specification and send them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to send to: eth0 (the fastest way there is), packet:eth0, xdp:eth0, pcap:FILE, null:
    port: PortName,

    /// The specification, in TOML
    #[arg(long, value_name = "FILE")]
    spec: PathBuf,

    /// The way to send, where the port leaves a choice
    #[arg(long, default_value = "auto", value_name = "auto|live|xdp|tx-ring|sendmmsg|sendto")]
    method: Method,

    /// How fast: 1Mpps, 5Gbps (layer 1, gaps and preambles included), 5GbpsL2, 80% of the link
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Packets sent back to back; with --rate, which holds on average
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rate",
        value_parser = clap::value_parser!(u32).range(1..))]
    burst: u32,

    /// What random fields follow from: the same seed gives the same packets
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Send out of an interface that carries the host's default route; it must be named
    #[arg(long, value_name = "IFACE")]
    yes_send_on: Option<String>,

    #[command(flatten)]
    common: Common,
}

/// Runs the command.
pub fn generate(args: Args) -> anyhow::Result<()> {
    let interface = interface_of(&args.port, args.common.netns.as_deref())?;
    if let Some(interface) = &interface {
        may_send(&interface.name, &args)?;
    }
    let plan = Arc::new(load::plan(&args, interface.as_ref())?);
    let speed = interface.as_ref().and_then(|it| link_speed(&it.name));
    let pace = args.rate.map(|rate| rate.pace(&plan, args.burst, speed)).transpose()?;
    let mut sender = method::open(&args, interface.as_ref(), &plan, pace)?;
    let mut sent = Sent::of(&args, &sender);
    args.common.become_user()?;
    let signals = Signals::catch()?;
    let mut status = Status::new(&args.common, false);
    let ended = run::run(&mut sender, &args.common, &signals, &mut status);
    status.done();
    let ended = ended?;
    sent.count(&sender, ended.elapsed, pace);
    sent.into_report().print(&mut stdout().lock(), args.common.json)?;
    Ok(ended.result?)
}

fn interface_of(port: &PortName, netns: Option<&str>) -> Result<Option<link::Interface>> {
    use sluicegate::port::Kind;
    match port.kind() {
        Kind::Packet | Kind::Xdp => link::interface(netns, port.name()).map(Some),
        Kind::Pcap | Kind::Null => Ok(None),
        Kind::Mirror => Err(port.error("a mirror: port only receives: send to packet: or xdp:")),
    }
}

/// Refuses to send where the host's own way to the world is.
fn may_send(interface: &str, args: &Args) -> Result<()> {
    if args.yes_send_on.as_deref() == Some(interface) {
        return Ok(());
    }
    if carries_default_route(args.common.netns.as_deref(), interface)? {
        return Err(Error::Usage(format!(
            "{interface} carries this host's default route: what is sent there leaves for the \
             world; if that is wanted, add --yes-send-on {interface}"
        )));
    }
    if let Some(other) = &args.yes_send_on {
        notice::say(format_args!("--yes-send-on {other}: it is {interface} that is sent to"));
    }
    Ok(())
}

/// Bits a second, where the driver says.
fn link_speed(interface: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    text.trim().parse::<f64>().ok().filter(|mbit| *mbit > 0.0).map(|mbit| mbit * 1e6)
}
