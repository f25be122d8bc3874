//! The choice of a method to send, and the senders of all ports.

use std::ops::Range;
use std::sync::Arc;

use sluicegate::error::{Error, Result};
use sluicegate::headers::{ETHERNET_BYTES, VLAN_TAG_BYTES};
use sluicegate::link::{Interface, netns};
use sluicegate::port::{Fallback, Kind, OpenOptions, Port, PortName, fits_live_frames};
use sluicegate::xdp::live::{self, check_target};
use sluicegate_traffic::live::Live;
use sluicegate_traffic::plan::{Plan, StreamPlan};
use sluicegate_traffic::source::of_plan;

use crate::args::Common;
use crate::ports;
use crate::send::{LiveSender, Sender, Steering, monotonic_ns};
use crate::target::{limit_queues, sending, short, zero_copy};

/// A way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
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

/// Maximum of threads of live frames per CPU. With hundreds, even the end would have to wait long for a CPU.
const THREADS_A_CPU: u32 = 16;

/// The senders of a run: one for each port, whose threads share the packets and the rate.
pub struct SendMethod<'a> {
    /// The method, if a port leaves a choice.
    pub method: Method,
    /// Threads, CPUs, the network namespace.
    pub common: &'a Common,
    /// The rate.
    pub steering: Option<&'a Steering>,
}

/// A target, its interface if it has one, and its packets.
pub struct Target<'a> {
    pub port: &'a PortName,
    pub interface: Option<Interface>,
    pub plan: Arc<Plan>,
}

/// An open target.
enum Opened {
    /// The programs of its threads, and the number of the first one and of all for which they were made.
    Live(Vec<Live>, (u32, u32)),
    Ring(Port),
}

impl Opened {
    /// Returns the number of its threads.
    fn workers(&self) -> u32 {
        match self {
            Self::Live(programs, _) => programs.len() as u32,
            Self::Ring(port) => port.queues.len() as u32,
        }
    }
}

impl SendMethod<'_> {
    /// Opens all targets. Their threads are numbered over all, so no two have the same flows and numbers.
    ///
    /// # Errors
    /// A port does not support the method; the errors of opening it.
    pub fn senders(&self, targets: &[Target<'_>]) -> Result<Vec<Sender>> {
        // Usually each port has as many threads. Programs made for other numbers are made again.
        let expected = self.workers() * targets.len() as u32;
        let opened = (0..)
            .zip(targets)
            .map(|(index, target)| self.open(target, (index * self.workers(), expected)));
        let opened = opened.collect::<Result<Vec<_>>>()?;
        let workers = opened.iter().map(Opened::workers).sum();
        let mut first = 0;
        let sender = |(target, opened): (&Target<'_>, Opened)| {
            let own = first..first + opened.workers();
            first = own.end;
            self.sender(target, opened, own, workers)
        };
        targets.iter().zip(opened).map(sender).collect()
    }

    /// Makes a sender with the threads `own` of `workers`.
    fn sender(
        &self,
        target: &Target<'_>,
        opened: Opened,
        own: Range<u32>,
        workers: u32,
    ) -> Result<Sender> {
        let Target { interface, plan, .. } = target;
        match (opened, interface) {
            (Opened::Live(programs, made_for), Some(interface)) => {
                let programs = match made_for == (own.start, workers) {
                    true => programs,
                    false => self.programs(interface, plan, own.clone(), workers)?,
                };
                Ok(Sender::Live(LiveSender::new(
                    programs,
                    own.start as usize,
                    workers,
                    self.common,
                )?))
            }
            (Opened::Live(..), None) => Err(target.port.error("it is no interface")),
            (Opened::Ring(port), _) => {
                let source = |worker| {
                    let packets = self.common.share(worker as usize, workers as usize);
                    let dial = self.steering.map(Steering::dial);
                    of_plan(plan, (worker, workers), packets, dial, monotonic_ns)
                };
                Ok(Sender::Ring { port, sources: own.map(source).collect() })
            }
        }
    }

    /// Opens a target: an interface or a file. `numbers` are the expected one of its first thread, and of all
    /// threads.
    fn open(&self, target: &Target<'_>, numbers: (u32, u32)) -> Result<Opened> {
        let Target { port, interface, plan } = target;
        // Options and queues belong to `packet:`.
        let is_plain = port.is_bare() && port.to_string() == port.name();
        let Some(interface) = interface.as_ref().filter(|_| is_plain) else {
            return match self.method {
                Method::Auto => self.ring(port, Vec::new()),
                _ => Err(port.error(
                    "--method needs a bare interface, and this port selects the method; omit one",
                )),
            };
        };
        match self.method {
            Method::Auto => self
                .live(interface, plan, numbers)
                .or_else(|error| self.without_live(port, error.to_string())),
            Method::Live => self.live(interface, plan, numbers),
            Method::Xdp => match port.with_kind(Kind::Xdp) {
                Some(port) => self.ring(&port, Vec::new()),
                None => Err(port.error(
                    "--method xdp rejects options of packet:; omit them, or use an xdp: port",
                )),
            },
            Method::TxRing => self.packet(port, "ring", Vec::new()),
            Method::Sendmmsg => self.packet(port, "sendmmsg", Vec::new()),
            Method::Sendto => self.packet(port, "sendto", Vec::new()),
        }
    }

    /// Opens the best sender without live frames: AF_XDP if it is zero-copy, otherwise `sendmmsg`.
    fn without_live(&self, port: &PortName, reason: String) -> Result<Opened> {
        let from = "live frames";
        match zero_copy(port, &self.options(Kind::Xdp)) {
            Ok(port) => {
                let fallen = Fallback::new(from, "AF_XDP zero-copy", reason);
                Ok(self.through(port, vec![fallen]))
            }
            Err(error) => {
                let (to, no_copy) = ("sendmmsg", short(&error));
                let fallen = [(from, reason), ("AF_XDP zero-copy", no_copy)];
                let fallen = fallen.map(|(from, reason)| Fallback::new(from, to, reason));
                self.packet(port, to, fallen.into())
            }
        }
    }

    /// Returns the number of sending threads of a port.
    fn workers(&self) -> u32 {
        let cpus = self.common.cpus().len() as u32;
        self.common.threads.unwrap_or(cpus.max(1))
    }

    fn live(
        &self,
        interface: &Interface,
        plan: &Arc<Plan>,
        (first, all): (u32, u32),
    ) -> Result<Opened> {
        check_target(interface, self.common.netns.as_deref())?;
        check_lengths(plan, interface)?;
        let workers = self.workers();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        let most = cpus.saturating_mul(THREADS_A_CPU);
        if workers > most {
            return Err(Error::Usage(format!(
                "--threads {workers}: too many for {cpus} CPUs, because each thread of live frames keeps \
                 a CPU busy; use at most {most}, or at most {cpus} for full speed"
            )));
        }
        let programs = self.programs(interface, plan, first..first + workers, all)?;
        Ok(Opened::Live(programs, (first, all)))
    }

    /// Makes the programs of the threads `own` of `workers`.
    fn programs(
        &self,
        interface: &Interface,
        plan: &Arc<Plan>,
        own: Range<u32>,
        workers: u32,
    ) -> Result<Vec<Live>> {
        let dial = self.steering.map(Steering::dial);
        // A program must run in the namespace of its interface.
        netns::run_in(self.common.netns.as_deref(), || {
            let live = |worker| Live::new(plan, (worker, workers), interface, dial.as_ref());
            own.map(live).collect::<Result<Vec<_>>>()
        })
    }

    fn packet(&self, port: &PortName, send: &str, fallen: Vec<Fallback>) -> Result<Opened> {
        let mut port = port.clone();
        port.set_default("send", send);
        self.ring(&port, fallen)
    }

    /// Sends through a port, as named. `fallen` lists the methods tried before.
    fn ring(&self, port: &PortName, fallen: Vec<Fallback>) -> Result<Opened> {
        Ok(self.through(Port::open(port, &self.options(port.kind()))?, fallen))
    }

    fn options(&self, kind: Kind) -> OpenOptions {
        sending(kind, self.workers(), self.common)
    }

    /// Takes one queue of an open port per requested thread. `fallen` lists the methods tried before.
    fn through(&self, mut opened: Port, fallen: Vec<Fallback>) -> Opened {
        if let Some(threads) = self.common.threads {
            limit_queues(&mut opened, threads);
        }
        opened.fallbacks.splice(0..0, fallen);
        ports::say_fallbacks(&opened, self.common.verbose);
        Opened::Ring(opened)
    }
}

/// Checks that the shortest and the longest packets of a plan fit live frames.
fn check_lengths(plan: &Plan, interface: &Interface) -> Result<()> {
    let fits = |stream: &StreamPlan| {
        let longest = &stream.template[..];
        let shortest = &longest[..stream.sizes.shortest(longest).min(longest.len())];
        [shortest, longest].iter().all(|frame| fits_live_frames(interface, frame))
    };
    if plan.streams.iter().all(fits) {
        return Ok(());
    }
    let bytes = |tag| interface.mtu.saturating_add(ETHERNET_BYTES as u32 + tag);
    let most = |tag| live::MAX_BYTES.min(bytes(tag));
    Err(Error::Unsupported {
        feature: format!("sending packets of this length as live frames on {}", interface.name),
        remedy: format!(
            "live frames have {ETHERNET_BYTES} to {} bytes there, {} with a VLAN tag; change --size or \
             --method",
            most(0),
            most(VLAN_TAG_BYTES as u32)
        ),
    })
}
