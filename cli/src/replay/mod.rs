//! `sluice replay`: sends the packets of a capture file again.

mod addresses;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::port::{
    Interface as Described, Kind, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Use,
};
use sluicegate_traffic::rate::Unit;
use sluicegate_traffic::rewrite::Rule;
use sluicegate_traffic::source::{Replay, ReplayOptions, Tempo};

use addresses::{Addresses, next_hop_mac};
use nix::libc::ARPHRD_ETHER;

use crate::args::Common;
use crate::send::{Changes, Measure, Orders, Rate, RingSender, Sender, Steering, Supply, send};
use crate::target::{Wish, best, interface_to_send, link_speed};
use crate::{notice, overwrite};

const EXAMPLES: &str = "\
Examples:
  sluice replay trace.pcapng eth1
  sluice replay trace.pcap eth1 --speed 2.5 --loop 10
  sluice replay trace.pcap eth1 -f 'udp port 53' --rate 10kpps
  sluice replay trace.pcap eth1 --top-speed --threads 2
  sluice replay trace.pcap eth1 --rewrite-ip 0.0.0.0/0=198.18.0.0/15 --dmac auto
  sluice replay trace.pcap.zst packet:eth1?qdisc=bypass --top-speed --loop 0 --duration 10s";

/// Packets a second that a packet socket sends everywhere.
const SOCKET_PPS: f64 = 200e3;
/// The memory that a looped file may take.
const KEEP_BYTES: usize = 1 << 30;

/// Send the packets of a capture file again
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("tempo").args(["speed", "rate", "top_speed"]))]
pub struct Args {
    /// The file: pcap or pcapng, plain, zstd or lz4; - for standard input
    #[arg(value_name = "FILE", value_parser = file)]
    file: PortName,

    /// Target: eth0 (the best method available), packet:eth0, xdp:eth0, live:eth0, pcap:FILE, null:
    port: PortName,

    /// Send only what a pcap-filter expression lets pass
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// Speed relative to the recording: 2.5, 0.1 [default: 1]
    #[arg(long, value_name = "X", value_parser = speed)]
    speed: Option<f64>,

    /// How fast, whenever they were recorded: 10kpps, 5Gbps (layer 1), 5GbpsL2, 80% of the link
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    #[command(flatten)]
    changes: Changes,

    /// As fast as possible
    #[arg(long)]
    top_speed: bool,

    /// How often the file is sent; 0 is for ever
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u64,

    #[command(flatten)]
    addresses: Addresses,

    /// Send out of an interface that carries the host's default route; it must be named
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Option<String>,

    #[command(flatten)]
    common: Common,
}

/// A file's name as a port. What follows a `?` in it are the port's options.
fn file(text: &str) -> std::result::Result<PortName, String> {
    let name = if text.starts_with("pcap:") { text.to_owned() } else { format!("pcap:{text}") };
    name.parse().map_err(|error: Error| error.to_string())
}

fn speed(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err("a speed is a number above 0: 1 is as recorded, 2 twice as fast".into()),
    }
}

/// Runs the command.
pub fn replay(args: Args) -> anyhow::Result<()> {
    args.common.check()?;
    let netns = args.common.netns.as_deref();
    let mut file = args.file.clone();
    notice::apply_filter(&mut file, args.filter.as_deref())?;
    let mut rewrite = args.addresses.rewrite()?;
    let interface = interface_to_send(&args.port, netns, args.allow_default_route.as_deref())?;
    let steering = steering(&args, interface.as_ref())?;
    // Before a file is emptied, or anything happens to an interface.
    if args.port.kind() == Kind::Pcap {
        overwrite::refuse([&file], Path::new(args.port.name()))?;
    }
    let ethernet = interface.as_ref().is_none_or(|interface| interface.hardware == ARPHRD_ETHER);
    let link_type = ethernet.then_some(LINKTYPE_ETHERNET);
    Replay::check(&file, args.rounds, threads(&args), link_type)?;
    if args.addresses.ask_for_next_hop() {
        let mac = next_hop_mac(&file, &args.port, interface.as_ref(), netns, &rewrite)?;
        rewrite.add(Rule::Destination(mac.0));
    }
    let port = open(&args, wish(&args, steering.as_ref()))?;
    let options = ReplayOptions {
        tempo: tempo(&args, steering.as_ref()),
        rounds: args.rounds,
        packets: args.common.count,
        most_bytes: interface.as_ref().map(most_bytes),
        link_type: port.link_type(),
        rewrite: Arc::new(rewrite),
        keep_bytes: KEEP_BYTES,
    };
    // Opened here, where signals still end the command: a pipe may keep it waiting.
    let sources = Replay::open(&file, &options, port.queues.len() as u32)?;
    let sender = Sender::Ring(RingSender::new(port, supply(sources)));
    send("replay", &args.port, &args.common, sender, steering)
}

fn tempo(args: &Args, steering: Option<&Steering>) -> Tempo {
    match steering {
        Some(steering) => Tempo::Paced { dial: steering.dial(), of: steering.asked().1 },
        None if args.top_speed => Tempo::Top,
        None => Tempo::Recorded(args.speed.unwrap_or(1.0)),
    }
}

/// As recorded, and at rates that a socket keeps, the time of each packet matters more than speed.
fn wish(args: &Args, steering: Option<&Steering>) -> Wish {
    let fast = steering.map(Steering::asked).is_some_and(|(asked, of)| match of {
        Unit::Packet => asked > SOCKET_PPS,
        // They may be the shortest there are.
        Unit::Byte { besides } => asked > SOCKET_PPS * f64::from(60 + besides),
    });
    if args.top_speed || fast { Wish::Speed } else { Wish::Times }
}

fn steering(args: &Args, interface: Option<&Interface>) -> Result<Option<Steering>> {
    let changes = &args.changes;
    if (args.speed.is_some() || args.top_speed) && changes.rate_file.is_some() {
        let both = "--rate-file: a rate goes with neither --speed nor --top-speed";
        return Err(Error::Usage(both.into()));
    }
    let netns = args.common.netns.as_deref();
    let measure = Measure {
        mean_bytes: None,
        unit: args.rate.map_or(Unit::Packet, Rate::unit),
        burst: 1,
        speed: interface.and_then(|it| link_speed(&it.name, netns)),
    };
    let asked = args.rate.map(|rate| measure.pace(rate)).transpose()?;
    Steering::new(asked, measure, changes)
}

/// The longest frame that an interface sends: the MTU does not count the Ethernet header.
fn most_bytes(interface: &Interface) -> usize {
    interface.mtu as usize + 14
}

/// The interface that a written file describes.
const ETHERNET: Described = Described {
    name: String::new(),
    link_type: LINKTYPE_ETHERNET,
    snaplen: 0,
    comment: String::new(),
};

/// Threads that are asked for. One keeps all packets in order, not only those of a flow.
fn threads(args: &Args) -> u32 {
    let named = args.port.queues().map(|queues| queues.count() as u32);
    args.common.threads.or(named).unwrap_or(1)
}

/// Opens what is sent to, a queue for each thread.
fn open(args: &Args, wish: Wish) -> Result<Port> {
    let threads = threads(args);
    let options = OpenOptions {
        usage: Use::Send,
        netns: args.common.netns.clone(),
        queues: if args.port.kind() == Kind::Xdp { 0 } else { threads },
        access: args.common.access(),
        ..OpenOptions::default()
    };
    let mut port = best(&args.port, &options, wish)?;
    notice::fallbacks(&port, args.common.verbose);
    port.queues.truncate(threads as usize);
    if args.port.kind() == Kind::Pcap {
        // A file without packets is a file all the same.
        port.queues.iter_mut().try_for_each(|queue| queue.describe_sent(&[ETHERNET]))?;
    }
    let queues = port.queues.len();
    if queues < threads as usize {
        let queues = if queues == 1 { "one queue".into() } else { format!("{queues} queues") };
        notice::say(format_args!(
            "{}: has {queues}: as many threads send, not {threads}",
            args.port.short()
        ));
    }
    Ok(port)
}

/// Gives each worker its own source.
fn supply(sources: Vec<Replay>) -> Supply {
    let ready: Vec<_> = sources.into_iter().map(|source| Mutex::new(Some(source))).collect();
    Box::new(move |worker, _, _: &Orders| {
        let place = ready.get(worker as usize);
        let source = place.and_then(|it| it.lock().unwrap_or_else(PoisonError::into_inner).take());
        match source {
            Some(source) => Ok(Box::new(source)),
            None => Err(Error::Usage("replay: more threads than readers of the file".into())),
        }
    })
}
