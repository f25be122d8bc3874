//! Chooses how to send: the method asked for, or the fastest that works.

use std::str::FromStr;
use std::sync::Arc;

use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, netns};
use sluicegate::port::{Fallback, Kind, OpenOptions, Port, PortName, Use};
use sluicegate::xdp::live::{self, leaves_by};
use sluicegate_traffic::live::Live;
use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::source::{PacketSource, PlanSource};

use crate::args::Common;
use crate::notice;
use crate::send::{LiveSender, Orders, RingSender, Sender, Steering, monotonic_ns};
use crate::target::{short, zero_copy};

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

/// Threads of live frames for each CPU there is. With hundreds even the end would have to wait for a
/// CPU for long.
const THREADS_A_CPU: u32 = 16;

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

/// A send method and its environment.
pub struct SendMethod<'a> {
    /// The target.
    pub port: &'a PortName,
    /// The method, where the port leaves a choice.
    pub method: Method,
    /// Threads, CPUs, the network namespace.
    pub common: &'a Common,
    /// The rate.
    pub steering: Option<&'a Steering>,
}

impl SendMethod<'_> {
    /// Opens what sends: out of an interface, or without one to a file.
    ///
    /// # Errors
    /// A method that the port does not go with; whatever opening it fails at.
    pub fn open(&self, interface: Option<&Interface>, plan: &Arc<Plan>) -> Result<Sender> {
        let Some(interface) = interface.filter(|_| leaves_choice(self.port)) else {
            return match self.method {
                Method::Auto => self.ring(self.port, plan),
                _ => {
                    let reason =
                        "--method goes with an interface's name alone: this port says how to send";
                    Err(self.port.error(reason))
                }
            };
        };
        match self.method {
            Method::Auto => self
                .live(interface, plan)
                .or_else(|error| self.without_live(plan, error.to_string())),
            Method::Live => self.live(interface, plan),
            Method::Xdp => match self.port.with_kind(Kind::Xdp) {
                Some(port) => self.ring(&port, plan),
                None => Err(self.port.error("--method xdp goes with no option of packet:")),
            },
            Method::TxRing => self.packet("ring", plan, Vec::new()),
            Method::Sendmmsg => self.packet("sendmmsg", plan, Vec::new()),
            Method::Sendto => self.packet("sendto", plan, Vec::new()),
        }
    }

    /// Without live frames, for a reason: where AF_XDP sends without copying it is the fastest.
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

    /// How many threads send.
    fn workers(&self) -> u32 {
        let cpus = self.common.cpus().len() as u32;
        self.common.threads.unwrap_or(cpus.max(1))
    }

    fn live(&self, interface: &Interface, plan: &Plan) -> Result<Sender> {
        let netns = self.common.netns.as_deref();
        leaves_by(interface, netns)?;
        fits_live_frames(plan, interface)?;
        let workers = self.workers();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        let most = cpus.saturating_mul(THREADS_A_CPU);
        if workers > most {
            return Err(Error::Usage(format!(
                "--threads {workers}: each thread of live frames keeps a CPU busy, and there are \
                 {cpus}: {most} threads at most, and no more than CPUs to be fast"
            )));
        }
        let dial = self.steering.map(Steering::dial);
        // A program sends to an interface of the namespace that it is run in.
        let programs = netns::run_in(netns, || {
            (0..workers)
                .map(|worker| Live::new(plan, (worker, workers), interface, dial.as_ref()))
                .collect::<Result<Vec<_>>>()
        })?;
        Ok(Sender::Live(LiveSender::new(programs, netns)?))
    }

    fn packet(&self, send: &str, plan: &Arc<Plan>, fallen: Vec<Fallback>) -> Result<Sender> {
        let mut port = self.port.clone();
        port.set_default("send", send);
        let port = Port::open(&port, &self.options(Kind::Packet))?;
        Ok(self.through(port, plan, fallen))
    }

    /// Through a port as it is named.
    fn ring(&self, port: &PortName, plan: &Arc<Plan>) -> Result<Sender> {
        let opened = Port::open(port, &self.options(port.kind()))?;
        Ok(self.through(opened, plan, Vec::new()))
    }

    fn options(&self, kind: Kind) -> OpenOptions {
        OpenOptions {
            usage: Use::Send,
            netns: self.common.netns.clone(),
            queues: if kind == Kind::Xdp { 0 } else { self.workers() },
            access: self.common.access(),
            ..OpenOptions::default()
        }
    }

    /// Through a port that is open, by as many of its queues as threads are asked for; `fallen` is what
    /// was tried before.
    fn through(&self, mut opened: Port, plan: &Arc<Plan>, fallen: Vec<Fallback>) -> Sender {
        if let Some(threads) = self.common.threads {
            opened.queues.truncate(threads as usize);
            if opened.queues.len() < threads as usize {
                let (port, queues) = (opened.name.short(), opened.queues.len());
                let many =
                    if queues == 1 { "one queue".into() } else { format!("{queues} queues") };
                notice::say(format_args!(
                    "{port}: has {many}: as many threads send, not {threads}"
                ));
            }
        }
        opened.fallbacks.splice(0..0, fallen);
        notice::fallbacks(&opened, self.common.verbose);
        let (plan, dial) = (Arc::clone(plan), self.steering.map(Steering::dial));
        let supply = move |worker, workers, orders: &Orders| -> Result<Box<dyn PacketSource>> {
            let packets = orders.share(worker as usize, workers as usize);
            let dial = dial.clone();
            Ok(Box::new(PlanSource::new(&plan, (worker, workers), packets, dial, monotonic_ns)))
        };
        Sender::Ring(RingSender::new(opened, Box::new(supply)))
    }
}

/// Reports whether a port is a plain interface name: options and queues belong to `packet:`.
fn leaves_choice(port: &PortName) -> bool {
    port.is_bare() && port.to_string() == port.name()
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
        feature: format!(
            "sending packets of such a length as live frames out of {}",
            interface.name
        ),
        remedy: format!(
            "they have 14 to {most} bytes there: send shorter ones, or by another method"
        ),
    })
}
