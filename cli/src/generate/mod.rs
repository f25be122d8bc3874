//! `sluice generate`: makes packets to a specification and sends them.
//!
//! ```text
//!   specification --> plan --> sender: live frames, or a port's transmit ring --> ledger
//! ```

mod method;
mod options;
mod receiving;

use std::fmt;
use std::io::{BufWriter, Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use sluicegate::error::{Error, Result};
use sluicegate::port::{LINKTYPE_ETHERNET, PortName};
use sluicegate::ring::{Meta, Packet};
use sluicegate_traffic::rate::{MAX_LAG, Pace, Unit};
use sluicegate_traffic::show::show;
use sluicegate_traffic::spec::Spec;

use crate::args::Common;
use crate::print::{Printer, TimeFormat};
use crate::send::{Changes, Measure, Rate, SendRun, Steering, send};
use crate::target::{
    check_limit, interface_of, interface_to_send, is_one_target, link_speed, say_unneeded,
};
use crate::units::duration_in;
use method::{Method, SendMethod, Target};
pub use options::{SpecArgs, plan};
use receiving::ReceiveArgs;

const EXAMPLES: &str = "\
Examples:
  sluice generate eth1 --src 198.18.0.0/16 --dst 198.18.1.2 --dport 9 --duration 10s
  sluice generate eth1 --profile imix --rate 5Gbps --cpus 0,1
  sluice generate eth0 eth1 --dmac 02:00:00:00:00:99 --rate 200kpps --duration 10s
  sluice generate eth1 --spec mix.toml --rate 1Mpps --burst 32 --method sendmmsg
  sluice generate pcap:out.pcapng --profile syn-flood --count 1000
  sluice generate eth1 --receive eth0 --count 1000 --rate 10kpps
  sluice generate --profile dns-amplification --show

Fields: 9 fixed, 9,10,53 in turn, 1024-65535 at random, 198.18.0.0/16 at random in a prefix,
1..1000 counted up, flow:… the same in all packets of a flow. See the manual page
sluice-spec(7).";

/// Send packets that a specification, a profile or flags describe
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Targets, which share packets and rate: eth0 (the fastest method available), packet:eth0, xdp:eth0,
    /// tap:tap0, pcap:FILE, null:
    #[arg(required_unless_present = "show", value_name = "PORT")]
    ports: Vec<PortName>,

    #[command(flatten)]
    what: SpecArgs,

    /// Print the plan and the first packets instead of sending
    #[arg(long, value_name = "PACKETS", num_args = 0..=1, default_missing_value = "3")]
    show: Option<usize>,

    /// Sending method of a bare interface
    #[arg(
        long,
        default_value = "auto",
        value_enum,
        hide_possible_values = true,
        value_name = "auto|live|xdp|tx-ring|sendmmsg|sendto"
    )]
    method: Method,

    /// Rate: 1Mpps, 5Gbps (layer 1, with preambles and gaps), 5GbpsL2, 80% of the link [default: full speed]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Packets sent back to back; the rate holds on average
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: u32,

    /// Time between the starts of bursts, instead of a rate
    #[arg(long, value_name = "TIME", value_parser = gap, conflicts_with_all = ["rate", "rate_file"])]
    burst_gap: Option<Duration>,

    /// Catch up at most this much after a delay; skip the rest
    #[arg(long, value_name = "TIME", value_parser = max_lag, default_value = "100ms")]
    max_lag: Duration,

    #[command(flatten)]
    changes: Changes,

    /// Allow the interface of the host's default route; may be repeated
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Vec<String>,

    #[command(flatten)]
    receiving: ReceiveArgs,

    #[command(flatten)]
    common: Common,
}

/// Runs the command.
pub fn generate(mut args: Args) -> anyhow::Result<()> {
    args.common.check()?;
    args.what.stamp_for(&args.receiving);
    let spec = args.what.spec()?;
    if let Some(packets) = args.show {
        return show_plan(&args, &spec, packets);
    }
    let netns = args.common.netns.as_deref();
    let allowed = &args.allow_default_route;
    check_different(&args.ports)?;
    let target = |port| {
        let interface = interface_to_send(port, netns, allowed)?;
        let plan = Arc::new(options::plan(&spec, interface.as_ref(), netns, false)?);
        if plan.streams.iter().any(|stream| stream.count.is_none()) {
            check_limit(port, &args.common)?;
        }
        Ok(Target { port, interface, plan })
    };
    let targets = args.ports.iter().map(target).collect::<Result<Vec<_>>>()?;
    say_unneeded(allowed, &args.ports, netns);
    let Some(plan) = targets.first().map(|target| Arc::clone(&target.plan)) else { return Ok(()) };
    let receiver = args.receiving.open(&plan, &targets, &args.common)?;
    let measure = Measure {
        mean_bytes: Some(plan.mean_bytes()),
        unit: Unit::Packet,
        burst: args.burst,
        speed: speed_of_all(&targets, netns),
    };
    let steering = Steering::new(args.pace(&spec, &measure)?, measure, &args.changes)?;
    let steering = steering.map(|it| it.catching_up(args.max_lag));
    let method =
        SendMethod { method: args.method, common: &args.common, steering: steering.as_ref() };
    let senders = method.senders(&targets)?;
    let run = SendRun {
        command: "generate",
        common: &args.common,
        steering,
        stdin_is_taken: false,
        plan: Some(plan),
        receiver,
    };
    send(run, args.ports.iter().zip(senders).collect())
}

/// Rejects a target that is named twice.
fn check_different(ports: &[PortName]) -> Result<()> {
    let mut rest = ports;
    while let Some((last, before)) = rest.split_last() {
        if before.iter().any(|port| is_one_target(port, last)) {
            return Err(last.error("the port is named twice; use --threads for more threads"));
        }
        rest = before;
    }
    Ok(())
}

/// Returns the speed of all links together, each as fast as the slowest, because they share packets evenly.
fn speed_of_all(targets: &[Target<'_>], netns: Option<&str>) -> Option<f64> {
    let speed = |target: &Target<'_>| link_speed(&target.interface.as_ref()?.name, netns);
    let slowest = targets
        .iter()
        .map(speed)
        .try_fold(f64::INFINITY, |slowest, speed| speed.map(|speed| slowest.min(speed)));
    slowest.map(|speed| speed * targets.len() as f64)
}

impl Args {
    /// Returns the pace that the flags request, or else the rates of the specification's streams.
    fn pace(&self, spec: &Spec, measure: &Measure) -> Result<Option<Pace>> {
        if let Some(gap) = self.burst_gap {
            return Ok(Some(Pace::of_bursts(self.burst, gap)));
        }
        let rate = self.rate.or_else(|| spec.rate().map(Rate::Packets));
        if self.burst > 1 && rate.is_none() && self.changes.rate_file.is_none() {
            let missing = "--burst needs a rate; add --rate, --rate-file or --burst-gap";
            return Err(Error::Usage(missing.into()));
        }
        rate.map(|rate| measure.pace(rate)).transpose()
    }
}

fn gap(text: &str) -> std::result::Result<Duration, String> {
    let range = Duration::from_nanos(1)..=Duration::MAX;
    duration_in(range, text, "use a time above 0: 1us, 100ms, 1h")
}

fn max_lag(text: &str) -> std::result::Result<Duration, String> {
    duration_in(Duration::ZERO..=MAX_LAG, text, "the maximum is 100ms")
}

/// Shows the plan. Needs no privilege and no interface.
fn show_plan(args: &Args, spec: &Spec, packets: usize) -> anyhow::Result<()> {
    let netns = args.common.netns.as_deref();
    let interface = args.ports.first().and_then(|port| interface_of(port, netns).ok().flatten());
    let plan = options::plan(spec, interface.as_ref(), netns, true)?;
    let mut out = BufWriter::new(stdout().lock());
    let listing = fmt::from_fn(|text| {
        let line = |bytes: &[u8]| {
            // Each has its own printer, so that sequence numbers are absolute.
            let mut printer = Printer::new(TimeFormat::None, TimeZone::UTC);
            printer.link_header = true;
            let meta = Meta { wire_bytes: bytes.len() as u32, ..Meta::default() };
            let mut line = String::new();
            printer.line(&mut line, LINKTYPE_ETHERNET, None, &Packet::new(&meta, bytes));
            line
        };
        show(spec, &plan, packets, line, text)
    });
    write!(out, "{listing}")?;
    Ok(out.flush()?)
}
