//! `sluice replay`: replays the packets of a capture file.

mod step;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::libc::ARPHRD_ETHER;
use sluicegate::error::{Error, Result};
use sluicegate::link::{self, Interface, Mac, NextHops};
use sluicegate::port::{
    Interface as Described, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName,
};
use sluicegate::units;
use sluicegate_traffic::rate::Unit;
use sluicegate_traffic::rewrite::{Rewrite, Rule};
use sluicegate_traffic::source::{PacketSource, Replay, ReplayOptions, Tempo};

use crate::args::Common;
use crate::ports;
use crate::rewriting::Rewriting;
use crate::send::{Changes, Measure, Rate, SendRun, Sender, Steering, send};
use step::Steps;

use crate::target::{
    Goal, best, check_limit, common_hop, destination, interface_to_send, is_one_target,
    limit_queues, link_speed, say_unneeded, sending,
};

const EXAMPLES: &str = "\
Examples:
  sluice replay trace.pcapng eth1
  sluice replay trace.pcap eth1 --speed 2.5 --loop 10 --max-gap 500ms
  sluice replay trace.pcap eth1 -f 'udp port 53' --rate 10kpps
  sluice replay trace.pcap eth0 eth1 --speed 2
  sluice replay trace.pcap eth1 --top-speed --threads 2
  sluice replay trace.pcap eth1 --rewrite-ip 0.0.0.0/0=198.18.0.0/15 --dmac auto
  sluice replay trace.pcap.zst packet:eth1,qdisc=bypass --top-speed --loop 0 --duration 10s";

/// Packets per second that a packet socket sends on every machine.
const SOCKET_PPS: f64 = 200e3;
/// Memory limit of a looped file.
const KEEP_BYTES: usize = 1 << 30;
/// An interval without end.
const NO_STATUS: Duration = Duration::from_secs(1 << 32);

/// Send the packets of a capture file
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("tempo").args(["speed", "rate", "top_speed"]))]
pub struct Args {
    /// Capture file: pcap or pcapng, plain or compressed; - is standard input
    #[arg(value_name = "FILE", value_parser = file)]
    file: PortName,

    /// Target: eth0 (the best method available), packet:eth0, xdp:eth0, live:eth0, pcap:FILE, null:
    port: PortName,

    /// Target of the servers' packets; then the first one gets the clients'
    #[arg(value_name = "SERVER-PORT")]
    server_port: Option<PortName>,

    /// Addresses of clients; by default conversations decide; may be repeated
    #[arg(long, value_name = "PREFIX", value_parser = Rule::prefix, requires = "server_port")]
    client: Vec<(IpAddr, u8)>,

    /// Send only packets that match a pcap-filter expression
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// X times as fast as recorded: 2.5, 0.1 [default: 1]
    #[arg(long, value_name = "X", value_parser = speed)]
    speed: Option<f64>,

    /// Shorten longer gaps between packets to this time: 500ms, 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    #[arg(conflicts_with_all = ["rate", "rate_file", "top_speed"])]
    max_gap: Option<Duration>,

    /// Send at this rate, ignoring recorded times: 10kpps, 5Gbps (layer 1), 5GbpsL2, 80% of the link
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    #[command(flatten)]
    changes: Changes,

    /// Send as fast as possible
    #[arg(long)]
    top_speed: bool,

    /// Show each packet, and send it when a line of standard input comes: Enter
    #[arg(long)]
    #[arg(conflicts_with_all = ["speed", "rate", "rate_file", "ramp", "top_speed", "max_gap"])]
    #[arg(conflicts_with_all = ["server_port", "threads"])]
    step: bool,

    /// Repeat the file N times; 0: endless
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u64,

    /// Give each round of --loop its own flows: IP addresses are those of the round before plus 1
    #[arg(long)]
    unique: bool,

    /// Cut packets above the MTU instead of omitting them; their lengths and checksums follow
    #[arg(long)]
    cut_to_mtu: bool,

    #[command(flatten)]
    rewriting: Rewriting,

    /// Allow the interface of the host's default route; may be repeated
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Vec<String>,

    #[command(flatten)]
    common: Common,
}

/// Parses a file's name as a port. The port's options may follow a `?`.
fn file(text: &str) -> std::result::Result<PortName, String> {
    let name = if text.starts_with("pcap:") { text.to_owned() } else { format!("pcap:{text}") };
    name.parse().map_err(|error: Error| error.to_string())
}

fn speed(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err("use a number above 0: 1 is as recorded, 2 twice as fast".into()),
    }
}

/// Runs the command.
pub fn replay(mut args: Args) -> anyhow::Result<()> {
    args.common.check()?;
    if args.step && !args.common.json {
        // The packets' lines are the status.
        args.common.interval.get_or_insert(NO_STATUS);
    }
    let netns = args.common.netns.as_deref();
    let mut file = args.file.clone();
    if args.port.kind() == Kind::Pcap && link::interface(netns, file.name()).is_ok() {
        return Err(Error::Usage(format!(
            "the file comes first: sluice replay {} {}",
            args.port.name(),
            file.name()
        ))
        .into());
    }
    ports::apply_filter(&mut file, args.filter.as_deref())?;
    let mut rewrite = args.rewriting.rewrite()?;
    let targets = args.targets();
    let allowed = &args.allow_default_route;
    let interfaces = targets.iter().map(|port| interface_to_send(port, netns, allowed));
    let interfaces = interfaces.collect::<Result<Vec<_>>>()?;
    say_unneeded(allowed, targets.iter().copied(), netns);
    let steering = steering(&args, &interfaces)?;
    // Checked before a file is emptied or an interface changed.
    if args.rounds == 0 {
        targets.iter().try_for_each(|port| check_limit(port, &args.common))?;
    }
    for port in targets.iter().filter(|port| port.kind() == Kind::Pcap) {
        ports::refuse_overwriting([&file], Path::new(port.name()))?;
    }
    let is_ethernet = |interface: &Interface| interface.hardware == ARPHRD_ETHER;
    let ethernet = interfaces.iter().flatten().all(is_ethernet);
    if targets.len() > 1 {
        check_sides(&args, ethernet)?;
    }
    if args.step {
        check_steps(&args)?;
    }
    check_effects(&args, &interfaces)?;
    let link_type = ethernet.then_some(LINKTYPE_ETHERNET);
    Replay::check(
        &file,
        args.rounds,
        targets.iter().map(|port| threads(&args, port)).sum(),
        link_type,
    )?;
    if args.rewriting.asks_next_hop() {
        let mac = next_hop_mac(&file, &args.port, interfaces[0].as_ref(), netns, &rewrite)?;
        rewrite.add(Rule::Destination(mac.0));
    }
    let goal = goal(&args, steering.as_ref());
    let ports = targets.iter().map(|port| open(&args, port, goal)).collect::<Result<Vec<_>>>()?;
    let options = |port: &Port, interface: Option<&Interface>| ReplayOptions {
        tempo: tempo(&args, steering.as_ref()),
        max_gap: args.max_gap,
        rounds: args.rounds,
        unique: args.unique,
        packets: args.common.count,
        due_times: port.name.kind() == Kind::Pcap && changes_times(&args),
        max_bytes: interface.map(max_bytes),
        cut: args.cut_to_mtu,
        link_type: port.link_type(),
        rewrite: Arc::new(rewrite.clone()),
        keep_bytes: KEEP_BYTES,
    };
    let options: Vec<_> =
        ports.iter().zip(&interfaces).map(|(port, it)| options(port, it.as_ref())).collect();
    // Opened before signals are caught, because a pipe may make the command wait.
    ports::await_input(&file)?;
    let workers = |port: &Port| port.queues.len() as u32;
    let sources = match (&options[..], &ports[..]) {
        ([clients, servers], [a, b]) => {
            let workers = [workers(a), workers(b)];
            Vec::from(Replay::open_sides(&file, [clients, servers], &args.client, workers)?)
        }
        _ => vec![Replay::open(&file, &options[0], workers(&ports[0]))?],
    };
    let mut senders = Vec::new();
    for ((target, port), replays) in targets.into_iter().zip(ports).zip(sources) {
        let link_type = port.link_type();
        let source = |replay| boxed(replay, args.step.then_some(link_type));
        let sources = replays.into_iter().map(source).collect::<Result<_>>()?;
        senders.push((target, Sender::Ring { port, sources }));
    }
    let (common, stdin_is_taken) = (&args.common, args.step);
    send(
        SendRun { command: "replay", common, steering, stdin_is_taken, plan: None, receiver: None },
        senders,
    )
}

/// Makes a source of a replay: step by step with the link type of its packets' lines, or as it is.
fn boxed(replay: Replay, steps: Option<u16>) -> Result<Box<dyn PacketSource>> {
    Ok(match steps {
        Some(link_type) => Box::new(Steps::new(replay, link_type)?),
        None => Box::new(replay),
    })
}

/// Checks that one thread sends step by step, and that standard input is free.
fn check_steps(args: &Args) -> Result<()> {
    let problem = if args.file.name() == "-" {
        "--step reads standard input, and so does the file -; name a file"
    } else if threads(args, &args.port) > 1 {
        "--step sends by one thread; name one queue"
    } else {
        return Ok(());
    };
    Err(Error::Usage(problem.into()))
}

/// Rejects flags that would change nothing.
fn check_effects(args: &Args, interfaces: &[Option<Interface>]) -> Result<()> {
    let problem = if args.unique && args.rounds == 1 {
        "--unique changes the addresses of later rounds: add --loop N, or leave it out".into()
    } else if args.cut_to_mtu && interfaces.iter().all(Option::is_none) {
        let port = args.port.short();
        format!("--cut-to-mtu: {port} is not an interface, and has no MTU; leave it out")
    } else {
        return Ok(());
    };
    Err(Error::Usage(problem))
}

impl Args {
    /// Returns the targets: one, or that of clients and that of servers.
    fn targets(&self) -> Vec<&PortName> {
        std::iter::once(&self.port).chain(&self.server_port).collect()
    }
}

/// Checks that the packets of clients and servers can go to two targets.
fn check_sides(args: &Args, ethernet: bool) -> Result<()> {
    let targets = args.targets();
    let problem = if !ethernet {
        "two targets must be Ethernet interfaces"
    } else if is_one_target(targets[0], targets[1]) {
        "the two targets are the same; leave one out"
    } else if args.rewriting.asks_next_hop() {
        "--dmac auto: two targets have two next hops; use --rewrite-mac OLD=NEW for each side"
    } else {
        return Ok(());
    };
    Err(Error::Usage(problem.into()))
}

/// Reports whether the times of a written file may differ from those of the file that is read.
fn changes_times(args: &Args) -> bool {
    args.rounds != 1
        || args.max_gap.is_some()
        || args.speed.is_some()
        || args.rate.is_some()
        || args.changes.rate_file.is_some()
}

fn tempo(args: &Args, steering: Option<&Steering>) -> Tempo {
    match steering {
        Some(steering) => Tempo::Paced { dial: steering.dial(), of: steering.asked().1 },
        None if args.top_speed || args.step => Tempo::Top,
        None => Tempo::Recorded(args.speed.unwrap_or(1.0)),
    }
}

/// Returns the goal of the choice of a method. At recorded times, and at rates that a socket reaches, the
/// time of each packet matters more than speed.
fn goal(args: &Args, steering: Option<&Steering>) -> Goal {
    let fast = steering.map(Steering::asked).is_some_and(|(asked, of)| match of {
        Unit::Packet => asked > SOCKET_PPS,
        // The packets may be the shortest possible.
        Unit::Byte { besides } => asked > SOCKET_PPS * f64::from(60 + besides),
    });
    if args.top_speed || fast { Goal::Speed } else { Goal::Times }
}

fn steering(args: &Args, interfaces: &[Option<Interface>]) -> Result<Option<Steering>> {
    let changes = &args.changes;
    if (args.speed.is_some() || args.top_speed) && changes.rate_file.is_some() {
        let both = "--rate-file excludes --speed and --top-speed";
        return Err(Error::Usage(both.into()));
    }
    let netns = args.common.netns.as_deref();
    let speeds = interfaces.iter().flatten().filter_map(|it| link_speed(&it.name, netns));
    let measure = Measure {
        mean_bytes: None,
        unit: args.rate.map_or(Unit::Packet, Rate::unit),
        burst: 1,
        // Two links share the rate: the slower one limits it.
        speed: speeds.reduce(f64::min),
    };
    let asked = args.rate.map(|rate| measure.pace(rate)).transpose()?;
    Steering::new(asked, measure, changes)
}

/// Returns the maximum length of an interface's frame: the MTU excludes the Ethernet header.
fn max_bytes(interface: &Interface) -> usize {
    interface.mtu as usize + 14
}

/// The interface described in a written file.
const ETHERNET: Described = Described {
    name: String::new(),
    link_type: LINKTYPE_ETHERNET,
    snaplen: 0,
    comment: String::new(),
};

/// Returns the number of threads. A single one keeps the order of all packets, not only within flows.
fn threads(args: &Args, target: &PortName) -> u32 {
    let named = target.queues().map(|queues| queues.count() as u32);
    args.common.threads.or(named).unwrap_or(1)
}

/// Opens the target, with a queue for each thread.
fn open(args: &Args, target: &PortName, goal: Goal) -> Result<Port> {
    let threads = threads(args, target);
    let options = sending(target.kind(), threads, &args.common);
    let mut port = best(target, &options, goal)?;
    ports::say_fallbacks(&port, args.common.verbose);
    limit_queues(&mut port, threads);
    if target.kind() == Kind::Pcap {
        // A file without packets must also be valid.
        port.queues.iter_mut().try_for_each(|queue| queue.describe_sent(&[ETHERNET]))?;
    }
    Ok(port)
}

/// The number of the file's packets whose destinations are read.
const SAMPLED: usize = 1000;

/// Returns the destination MAC of all packets of a file.
///
/// # Errors
/// The file cannot be read twice, the port is no interface, or a next hop does not resolve.
pub fn next_hop_mac(
    file: &PortName,
    port: &PortName,
    interface: Option<&Interface>,
    netns: Option<&str>,
    rewrite: &Rewrite,
) -> Result<Mac> {
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else {
        let short = port.short();
        return Err(Error::Usage(format!(
            "--dmac auto: {short} has no next hop, because it is not an Ethernet interface; set a MAC"
        )));
    };
    if !Path::new(file.name()).is_file() {
        return Err(Error::Usage(format!(
            "--dmac auto: {} can be read only once; write it to a file first, or set a MAC",
            file.name()
        )));
    }
    let destinations = destinations(file, rewrite)?;
    let mut hops = NextHops::open(netns, interface)?;
    let (destination, _) = common_hop(&mut hops, file.name(), &destinations)?;
    hops.mac(destination)
}

/// Returns the IP destinations of the first packets, after rewriting.
fn destinations(file: &PortName, rewrite: &Rewrite) -> Result<Vec<IpAddr>> {
    let mut port = Port::open(file, &OpenOptions::default())?;
    let mut found = Vec::new();
    let Some(queue) = port.queues.first_mut() else { return Ok(found) };
    let mut packets = 0;
    // A damaged file ends the sample early; the run then sends the packets before the damage and reports it.
    while packets < SAMPLED && !queue.is_finished() && queue.sync_rx().is_ok() {
        for packet in queue.rx().packets() {
            let mut frame = packet.head().to_vec();
            rewrite.apply(LINKTYPE_ETHERNET, &mut frame);
            found.extend(destination(&frame));
            packets += 1;
        }
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    Ok(found)
}
