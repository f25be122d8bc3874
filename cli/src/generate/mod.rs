//! `sluice generate`: makes packets to a specification and sends them.
//!
//! ```text
//!   specification --> plan --> sender: live frames, or a port's transmit ring --> ledger
//! ```

mod method;
mod options;

use std::io::{BufWriter, Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::port::PortName;
use sluicegate::units;
use sluicegate_traffic::rate::{MAX_BEHIND, Pace, Unit};
use sluicegate_traffic::show::show;
use sluicegate_traffic::spec::Spec;

use crate::args::Common;
use crate::send::{Changes, Measure, Rate, Steering, send};
use crate::target::{interface_of, interface_to_send, link_speed};
use method::{Method, SendMethod};
use options::SpecArgs;

const EXAMPLES: &str = "\
Examples:
  sluice generate eth1 --src 198.18.0.0/16 --dst 198.18.1.2 --dport 9 --duration 10s
  sluice generate eth1 --profile imix --rate 5Gbps --cpus 0,1
  sluice generate eth1 --spec mix.toml --rate 1Mpps --burst 32 --method sendmmsg
  sluice generate pcap:out.pcapng --profile syn-flood --count 1000
  sluice generate --profile dns-amplification --show

Fields: 9 fixed, 9,10,53 in turn, 1024-65535 at random, 198.18.0.0/16 at random in a prefix,
1..1000 counted up, flow:… the same in all packets of a flow. docs/generate.md says all.";

/// Make packets to a specification and send them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Target: eth0 (the fastest method available), packet:eth0, xdp:eth0, tap:tap0, pcap:FILE,
    /// null:
    #[arg(required_unless_present = "show")]
    port: Option<PortName>,

    #[command(flatten)]
    what: SpecArgs,

    /// Show what would be sent, and the first packets of it, and send nothing
    #[arg(long, value_name = "PACKETS", num_args = 0..=1, default_missing_value = "3")]
    show: Option<usize>,

    /// The way to send, where the port leaves a choice
    #[arg(long, default_value = "auto", value_name = "auto|live|xdp|tx-ring|sendmmsg|sendto")]
    method: Method,

    /// How fast: 1Mpps, 5Gbps (layer 1, gaps and preambles included), 5GbpsL2, 80% of the link
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Packets sent back to back; a rate holds on average
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: u32,

    /// From one burst's begin to the next, in place of a rate
    #[arg(long, value_name = "TIME", value_parser = gap, conflicts_with_all = ["rate", "rate_file"])]
    burst_gap: Option<Duration>,

    /// With a rate: make up for no more than this where packets are late, and leave out what else was missed:
    /// the rate is then never exceeded for longer
    #[arg(long, value_name = "TIME", value_parser = max_lag, default_value = "100ms")]
    max_lag: Duration,

    #[command(flatten)]
    changes: Changes,

    /// Send out of an interface that carries the host's default route; it must be named
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Option<String>,

    #[command(flatten)]
    common: Common,
}

/// Runs the command.
pub fn generate(args: Args) -> anyhow::Result<()> {
    args.common.check()?;
    let spec = args.what.spec()?;
    if let Some(packets) = args.show {
        return show_plan(&args, &spec, packets);
    }
    let Some(port) = &args.port else { return Ok(()) };
    let netns = args.common.netns.as_deref();
    let interface = interface_to_send(port, netns, args.allow_default_route.as_deref())?;
    let plan = Arc::new(options::plan(&spec, interface.as_ref(), netns)?);
    let measure = Measure {
        mean_bytes: Some(plan.mean_bytes()),
        unit: Unit::Packet,
        burst: args.burst,
        speed: interface.as_ref().and_then(|it| link_speed(&it.name, netns)),
    };
    let steering = Steering::new(args.pace(&measure)?, measure, &args.changes)?;
    let steering = steering.map(|it| it.catching_up(args.max_lag));
    let way =
        SendMethod { port, method: args.method, common: &args.common, steering: steering.as_ref() };
    let sender = way.open(interface.as_ref(), &plan)?;
    send("generate", port, &args.common, sender, steering)
}

impl Args {
    /// The pace that flags ask for.
    fn pace(&self, measure: &Measure) -> Result<Option<Pace>> {
        if let Some(gap) = self.burst_gap {
            return Ok(Some(Pace::of_bursts(self.burst, gap)));
        }
        if self.burst > 1 && self.rate.is_none() && self.changes.rate_file.is_none() {
            let missing = "--burst: how often? Give --rate, --rate-file or --burst-gap";
            return Err(Error::Usage(missing.into()));
        }
        self.rate.map(|rate| measure.pace(rate)).transpose()
    }
}

fn gap(text: &str) -> std::result::Result<Duration, String> {
    match units::duration(text) {
        Ok(Duration::ZERO) => Err("a gap is a time above 0: 1us, 100ms, 1h".into()),
        other => other.map_err(|error| error.to_string()),
    }
}

fn max_lag(text: &str) -> std::result::Result<Duration, String> {
    match units::duration(text).map_err(|error| error.to_string())? {
        time if time > MAX_BEHIND => Err("100ms is the most that is made up for".into()),
        time => Ok(time),
    }
}

/// Needs no privilege, and no interface.
fn show_plan(args: &Args, spec: &Spec, packets: usize) -> anyhow::Result<()> {
    let netns = args.common.netns.as_deref();
    let interface = args.port.as_ref().and_then(|port| interface_of(port, netns).ok().flatten());
    let plan = options::plan_to_show(spec, interface.as_ref(), netns)?;
    let mut out = Pieces { out: BufWriter::new(stdout().lock()), failed: None };
    let shown = show(spec, &plan, packets, &mut out);
    if let Some(error) = out.failed {
        // A reader that has had enough is none: see `exit`.
        return Err(error.into());
    }
    shown?;
    Ok(out.out.flush()?)
}

/// Text on its way out, and what went wrong with that: formatting knows no reasons.
struct Pieces<W: Write> {
    out: W,
    failed: Option<std::io::Error>,
}

impl<W: Write> std::fmt::Write for Pieces<W> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.failed = Some(error);
            std::fmt::Error
        })
    }
}
