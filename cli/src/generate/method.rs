//! Which way packets are sent: the one asked for, or the fastest that works, with the reason.

use std::str::FromStr;
use std::sync::Arc;

use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, netns};
use sluicegate::port::{Kind, OpenOptions, Port, PortName, Use};
use sluicegate_traffic::live::Live;
use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::rate::Pace;

use super::Args;
use super::live::LiveSender;
use super::ring::RingSender;
use super::run::Sender;
use crate::notice;

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
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

const WORDS: &[(&str, Method)] = &[
    ("auto", Method::Auto),
    ("live", Method::Live),
    ("xdp", Method::Xdp),
    ("tx-ring", Method::TxRing),
    ("sendmmsg", Method::Sendmmsg),
    ("sendto", Method::Sendto),
];

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, method)| *method).ok_or_else(|| {
            let words: Vec<_> = WORDS.iter().map(|(word, _)| *word).collect();
            format!("use one of {}", words.join(", "))
        })
    }
}

/// Opens what sends.
pub fn open(
    args: &Args,
    interface: Option<&Interface>,
    plan: &Arc<Plan>,
    pace: Option<Pace>,
) -> Result<Sender> {
    let port = &args.port;
    let Some(interface) = interface else {
        return match args.method {
            Method::Auto => ring(args, port, plan, pace),
            _ => Err(port.error("--method is for interfaces")),
        };
    };
    if !port.is_bare() {
        return match args.method {
            Method::Auto => ring(args, port, plan, pace),
            _ => Err(port.error("the port says how to send: leave --method out, or the kind")),
        };
    }
    let packet = |send: &str| {
        let mut port = port.clone();
        port.set_default("send", send);
        ring(args, &port, plan, pace)
    };
    match args.method {
        Method::Auto => match live(args, interface, plan, pace) {
            Ok(sender) => Ok(sender),
            Err(error) => {
                notice::say(format_args!("{}: sendmmsg in place of live frames: {error}", port));
                packet("sendmmsg")
            }
        },
        Method::Live => live(args, interface, plan, pace),
        Method::Xdp => match port.of_kind(Kind::Xdp) {
            Some(port) => ring(args, &port, plan, pace),
            None => Err(port.error("--method xdp goes with no option of packet:")),
        },
        Method::TxRing => packet("ring"),
        Method::Sendmmsg => packet("sendmmsg"),
        Method::Sendto => packet("sendto"),
    }
}

/// How many threads send.
fn workers(args: &Args) -> u32 {
    let cpus = args.common.cpus.as_ref().map_or(1, |cpus| cpus.0.len() as u32);
    args.common.threads.unwrap_or(cpus.max(1))
}

fn live(args: &Args, interface: &Interface, plan: &Plan, pace: Option<Pace>) -> Result<Sender> {
    if !interface.up {
        return Err(down(interface));
    }
    let workers = workers(args);
    let pace = pace.map(|pace| pace.shared_by(workers));
    let netns = args.common.netns.as_deref();
    // A program sends to an interface of the namespace it is run in.
    let programs = netns::within(netns, || {
        (0..workers)
            .map(|worker| Live::new(plan, (worker, workers), interface, pace))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(Sender::Live(LiveSender::new(programs, netns)))
}

fn ring(args: &Args, port: &PortName, plan: &Arc<Plan>, pace: Option<Pace>) -> Result<Sender> {
    let options = OpenOptions {
        usage: Use::Send,
        netns: args.common.netns.clone(),
        queues: if port.kind() == Kind::Xdp { 0 } else { workers(args) },
        ..OpenOptions::default()
    };
    let opened = Port::open(port, &options)?;
    notice::fallbacks(&opened);
    Ok(Sender::Ring(RingSender::new(opened, plan, pace)))
}

fn down(interface: &Interface) -> Error {
    Error::Usage(format!("{0} is down: ip link set {0} up", interface.name))
}
