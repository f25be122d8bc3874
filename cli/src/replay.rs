//! `sluice replay`: sends the packets of a capture file again.

use std::sync::{Mutex, PoisonError};

use sluicegate::error::{Error, Result};
use sluicegate::port::{Kind, OpenOptions, PortName, Use};
use sluicegate_traffic::source::{Replay, Source, Tempo};

use crate::args::Common;
use crate::notice;
use crate::send::{
    Changes, Measure, Orders, Rate, RingSender, Sender, Steering, fastest, send, target,
};

const EXAMPLES: &str = "\
Examples:
  sluice replay trace.pcapng eth1
  sluice replay trace.pcap eth1 --speed 2.5 --loop 10
  sluice replay trace.pcap eth1 -f 'udp port 53' --rate 10kpps
  sluice replay trace.pcap.zst packet:eth1?qdisc=bypass --top-speed --loop 0 --duration 10s";

/// Send the packets of a capture file again
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("tempo").args(["speed", "rate", "top_speed"]))]
pub struct Args {
    /// The file: pcap or pcapng, plain, zstd or lz4; - for standard input
    #[arg(value_name = "FILE", value_parser = file)]
    file: PortName,

    /// What to send to: eth0 (the fastest way there is), packet:eth0, xdp:eth0, live:eth0, pcap:FILE,
    /// null:
    port: PortName,

    /// Send only what a pcap-filter expression lets pass
    #[arg(short, long, value_name = "EXPR")]
    filter: Option<String>,

    /// So many times as fast as recorded: 2.5, 0.1 [default: 1]
    #[arg(long, value_name = "X", value_parser = speed)]
    speed: Option<f64>,

    /// Packets a second, whenever they were recorded: 10kpps
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    #[command(flatten)]
    changes: Changes,

    /// As fast as can be
    #[arg(long)]
    top_speed: bool,

    /// How often the file is sent; 0 is for ever
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u64,

    /// Send out of an interface that carries the host's default route; it must be named
    #[arg(long, value_name = "IFACE")]
    yes_send_on: Option<String>,

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
    let netns = args.common.netns.as_deref();
    if args.common.threads.is_some() {
        return Err(Error::Usage("replay: one thread keeps packets in order".into()).into());
    }
    let mut file = args.file.clone();
    notice::apply_filter(&mut file, args.filter.as_deref())?;
    target(&args.port, netns, args.yes_send_on.as_deref())?;
    let steering = steering(&args)?;
    let tempo = match &steering {
        Some(steering) => Tempo::Paced(steering.dial()),
        None if args.top_speed => Tempo::Top,
        None => Tempo::Recorded(args.speed.unwrap_or(1.0)),
    };
    let sender = open(&args, file, tempo)?;
    send("replay", &args.port, &args.common, sender, steering)
}

fn steering(args: &Args) -> Result<Option<Steering>> {
    let changes = &args.changes;
    if (args.speed.is_some() || args.top_speed) && changes.rate_file.is_some() {
        let both = "--rate-file: a rate goes with neither --speed nor --top-speed";
        return Err(Error::Usage(both.into()));
    }
    let measure = Measure { mean_bytes: None, burst: 1, speed: None };
    let asked = args.rate.map(|rate| measure.pace(rate)).transpose()?;
    Steering::new(asked, measure, changes)
}

fn open(args: &Args, file: PortName, tempo: Tempo) -> Result<Sender> {
    let kind = args.port.kind();
    let options = OpenOptions {
        usage: Use::Send,
        netns: args.common.netns.clone(),
        queues: if kind == Kind::Xdp { 0 } else { 1 },
        ..OpenOptions::default()
    };
    let mut port = fastest(&args.port, &options)?;
    notice::fallbacks(&port);
    // One queue keeps packets in order.
    port.queues.truncate(1);
    // Opened here, where signals still end the command: a pipe may keep it waiting.
    let source = Replay::open(&file, tempo, args.rounds, args.common.count)?;
    let ready = Mutex::new(Some(source));
    let supply = move |_, _, _: &Orders| -> Result<Box<dyn Source>> {
        let source = ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        match source {
            Some(source) => Ok(Box::new(source)),
            None => Err(Error::Usage("replay: a file has one reader".into())),
        }
    };
    Ok(Sender::Ring(RingSender::new(port, Box::new(supply))))
}
