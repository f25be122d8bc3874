//! `sluice generate`: makes packets to a specification and sends them.
//!
//! ```text
//!   specification --> plan --> sender: live frames, or a port's transmit ring --> ledger
//! ```

mod options;
mod receiving;

use std::fmt;
use std::io::{BufWriter, Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, netns};
use sluicegate::port::{Fallback, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName};
use sluicegate::ring::{Meta, Packet};
use sluicegate::xdp::live::{self, check_target};
use sluicegate_traffic::live::Live;
use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::rate::{MAX_LAG, Pace, Unit};
use sluicegate_traffic::show::show;
use sluicegate_traffic::source::{PacketSource, of_plan};
use sluicegate_traffic::spec::Spec;

use crate::args::Common;
use crate::ports;
use crate::print::{Printer, TimeFormat};
use crate::send::{
    Changes, LiveSender, Measure, Rate, SendRun, Sender, Steering, monotonic_ns, send,
};
use crate::target::{
    interface_of, interface_to_send, limit_queues, link_speed, say_unneeded, sending, short,
    zero_copy,
};
use crate::units::duration_in;
use options::SpecArgs;
use receiving::ReceiveArgs;

const EXAMPLES: &str = "\
Examples:
  sluice generate eth1 --src 198.18.0.0/16 --dst 198.18.1.2 --dport 9 --duration 10s
  sluice generate eth1 --profile imix --rate 5Gbps --cpus 0,1
  sluice generate eth1 --spec mix.toml --rate 1Mpps --burst 32 --method sendmmsg
  sluice generate pcap:out.pcapng --profile syn-flood --count 1000
  sluice generate eth1 --receive eth0 --count 1000 --rate 10kpps
  sluice generate --profile dns-amplification --show

Fields: 9 fixed, 9,10,53 in turn, 1024-65535 at random, 198.18.0.0/16 at random in a prefix,
1..1000 counted up, flow:… the same in all packets of a flow. See docs/generate.md.";

/// Send packets that a specification, a profile or flags describe
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Target: eth0 (the fastest method available), packet:eth0, xdp:eth0, tap:tap0, pcap:FILE,
    /// null:
    #[arg(required_unless_present = "show")]
    port: Option<PortName>,

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

    /// Allow the interface of the host's default route
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Option<String>,

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
    let Some(port) = &args.port else { return Ok(()) };
    let netns = args.common.netns.as_deref();
    let allowed = args.allow_default_route.as_slice();
    let interface = interface_to_send(port, netns, allowed)?;
    say_unneeded(allowed, [port], netns);
    let plan = Arc::new(options::plan(&spec, interface.as_ref(), netns, false)?);
    let receiver = args.receiving.open(&plan, &args.common)?;
    let measure = Measure {
        mean_bytes: Some(plan.mean_bytes()),
        unit: Unit::Packet,
        burst: args.burst,
        speed: interface.as_ref().and_then(|it| link_speed(&it.name, netns)),
    };
    let steering = Steering::new(args.pace(&spec, &measure)?, measure, &args.changes)?;
    let steering = steering.map(|it| it.catching_up(args.max_lag));
    let way =
        SendMethod { port, method: args.method, common: &args.common, steering: steering.as_ref() };
    let sender = way.open(interface.as_ref(), &plan)?;
    let run = SendRun {
        command: "generate",
        common: &args.common,
        steering,
        stdin_is_taken: false,
        plan: Some(plan),
        receiver,
    };
    send(run, vec![(port, sender)])
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
    let interface = args.port.as_ref().and_then(|port| interface_of(port, netns).ok().flatten());
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

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// The fastest that works.
    Auto,
    /// Live frames: a program in the kernel makes the packets.
    Live,
    /// AF_XDP.
    Xdp,
    /// A packet socket's transmit ring.
    TxRing,
    /// A packet socket, a batch a call.
    Sendmmsg,
    /// A packet socket, a packet a call.
    Sendto,
}

/// Maximum of threads of live frames per CPU. With hundreds, even the end would have to wait long for a CPU.
const THREADS_A_CPU: u32 = 16;

/// A send method and its environment.
struct SendMethod<'a> {
    /// The target.
    pub port: &'a PortName,
    /// The method, if the port leaves a choice.
    pub method: Method,
    /// Threads, CPUs, the network namespace.
    pub common: &'a Common,
    /// The rate.
    pub steering: Option<&'a Steering>,
}

impl SendMethod<'_> {
    /// Opens the sender, to an interface or to a file.
    ///
    /// # Errors
    /// The port does not support the method; the errors of opening it.
    fn open(&self, interface: Option<&Interface>, plan: &Arc<Plan>) -> Result<Sender> {
        // Options and queues belong to `packet:`.
        let is_plain = self.port.is_bare() && self.port.to_string() == self.port.name();
        let Some(interface) = interface.filter(|_| is_plain) else {
            return match self.method {
                Method::Auto => self.ring(self.port, plan, Vec::new()),
                _ => Err(self.port.error(
                    "--method needs a bare interface, and this port selects the method; omit one",
                )),
            };
        };
        match self.method {
            Method::Auto => self
                .live(interface, plan)
                .or_else(|error| self.without_live(plan, error.to_string())),
            Method::Live => self.live(interface, plan),
            Method::Xdp => match self.port.with_kind(Kind::Xdp) {
                Some(port) => self.ring(&port, plan, Vec::new()),
                None => Err(self.port.error(
                    "--method xdp rejects options of packet:; omit them, or use an xdp: port",
                )),
            },
            Method::TxRing => self.packet("ring", plan, Vec::new()),
            Method::Sendmmsg => self.packet("sendmmsg", plan, Vec::new()),
            Method::Sendto => self.packet("sendto", plan, Vec::new()),
        }
    }

    /// Opens the best sender without live frames: AF_XDP if it is zero-copy, otherwise `sendmmsg`.
    fn without_live(&self, plan: &Arc<Plan>, reason: String) -> Result<Sender> {
        let from = "live frames";
        match zero_copy(self.port, &self.options(Kind::Xdp)) {
            Ok(port) => {
                let fallen = Fallback::new(from, "AF_XDP zero-copy", reason);
                Ok(self.through(port, plan, vec![fallen]))
            }
            Err(error) => {
                let (to, no_copy) = ("sendmmsg", short(&error));
                let fallen = [(from, reason), ("AF_XDP zero-copy", no_copy)];
                let fallen = fallen.map(|(from, reason)| Fallback::new(from, to, reason));
                self.packet(to, plan, fallen.into())
            }
        }
    }

    /// Returns the number of sending threads.
    fn workers(&self) -> u32 {
        let cpus = self.common.cpus().len() as u32;
        self.common.threads.unwrap_or(cpus.max(1))
    }

    fn live(&self, interface: &Interface, plan: &Arc<Plan>) -> Result<Sender> {
        let netns = self.common.netns.as_deref();
        check_target(interface, netns)?;
        fits_live_frames(plan, interface)?;
        let workers = self.workers();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        let most = cpus.saturating_mul(THREADS_A_CPU);
        if workers > most {
            return Err(Error::Usage(format!(
                "--threads {workers}: too many for {cpus} CPUs, because each thread of live frames keeps \
                 a CPU busy; use at most {most}, or at most {cpus} for full speed"
            )));
        }
        let dial = self.steering.map(Steering::dial);
        // A program must run in the namespace of its interface.
        let programs = netns::run_in(netns, || {
            (0..workers)
                .map(|worker| Live::new(plan, (worker, workers), interface, dial.as_ref()))
                .collect::<Result<Vec<_>>>()
        })?;
        Ok(Sender::Live(LiveSender::new(programs, self.common)?))
    }

    fn packet(&self, send: &str, plan: &Arc<Plan>, fallen: Vec<Fallback>) -> Result<Sender> {
        let mut port = self.port.clone();
        port.set_default("send", send);
        self.ring(&port, plan, fallen)
    }

    /// Sends through a port, as named. `fallen` lists the methods tried before.
    fn ring(&self, port: &PortName, plan: &Arc<Plan>, fallen: Vec<Fallback>) -> Result<Sender> {
        Ok(self.through(Port::open(port, &self.options(port.kind()))?, plan, fallen))
    }

    fn options(&self, kind: Kind) -> OpenOptions {
        sending(kind, self.workers(), self.common)
    }

    /// Creates a sender for an open port, with one of its queues per requested thread. `fallen` lists the
    /// methods tried before.
    fn through(&self, mut opened: Port, plan: &Arc<Plan>, fallen: Vec<Fallback>) -> Sender {
        if let Some(threads) = self.common.threads {
            limit_queues(&mut opened, threads);
        }
        opened.fallbacks.splice(0..0, fallen);
        ports::say_fallbacks(&opened, self.common.verbose);
        let workers = opened.queues.len() as u32;
        let source = |worker| -> Box<dyn PacketSource> {
            let packets = self.common.share(worker as usize, workers as usize);
            let dial = self.steering.map(Steering::dial);
            of_plan(plan, (worker, workers), packets, dial, monotonic_ns)
        };
        Sender::Ring { port: opened, sources: (0..workers).map(source).collect() }
    }
}

/// Checks that a plan's packets fit live frames: one page with the kernel's overhead, and the MTU
/// (linux/netdevice.h, `xdp_ok_fwd_dev`).
fn fits_live_frames(plan: &Plan, interface: &Interface) -> Result<()> {
    const HEADERS: usize = 14 + 4;
    let most = (live::MAX_BYTES as usize).min(interface.mtu as usize + HEADERS);
    let least = plan.streams.iter().map(|stream| stream.sizes.shortest(&stream.template)).min();
    if plan.longest() <= most && least >= Some(14) {
        return Ok(());
    }
    Err(Error::Unsupported {
        feature: format!("sending packets of this length as live frames on {}", interface.name),
        remedy: format!("live frames have 14 to {most} bytes there; change --size or --method"),
    })
}
