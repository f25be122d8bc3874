//! Targets of a sender: the check that sending is allowed, and the choice of the best port for a plain
//! interface name.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use etherparse::{NetSlice, SlicedPacket};
use sluicegate::error::{Error, Result};
use sluicegate::link::{
    self, Ethtool, Interface, LinkState, NextHop, NextHops, carries_default_route, netns,
    xdp_abilities,
};
use sluicegate::port::{Directions, Fallback, Kind, OpenOptions, Port, PortName};

use crate::args::{Common, options_for_kind};
use crate::{notice, ports};

/// Returns the interface that a port sends out of; `None` for files and TAP devices.
///
/// # Errors
/// A port that only receives; no such interface.
pub fn interface_of(port: &PortName, netns: Option<&str>) -> Result<Option<Interface>> {
    match port.kind() {
        Kind::Packet | Kind::Xdp | Kind::Live => link::interface(netns, port.name()).map(Some),
        // The host receives packets sent to a TAP device or a host: port: they do not leave it.
        Kind::Pcap | Kind::Null | Kind::Memif | Kind::Host | Kind::Tap => Ok(None),
        Kind::Mirror | Kind::Monitor => Err(port.error(format!(
            "a {}: port is receive-only; send to packet:, xdp: or live:",
            port.kind().prefix()
        ))),
    }
}

/// Returns the interface that a port sends out of, if sending there is allowed; `None` for files.
///
/// # Errors
/// The errors of [`interface_of`]; the interface carries the default route and is not `allowed`.
pub fn interface_to_send(
    port: &PortName,
    netns: Option<&str>,
    allowed: &[String],
) -> Result<Option<Interface>> {
    let interface = interface_of(port, netns)?;
    let Some(name) = interface.as_ref().map(|interface| &interface.name) else { return Ok(None) };
    if !allowed.contains(name) && carries_default_route(netns, name)? {
        return Err(Error::Usage(format!(
            "{name} carries this host's default route, so packets may reach other networks; to send \
             there, add --allow-default-route {name}"
        )));
    }
    Ok(interface)
}

/// Checks that an endless source does not fill a disk. A pipe ends with its reader.
///
/// # Errors
/// The target is a file, and the flags limit neither packets nor time.
pub fn check_limit(port: &PortName, common: &Common) -> Result<()> {
    let is_endless = common.count.is_none() && common.duration.is_none();
    if is_endless && port.kind() == Kind::Pcap && ports::writes_file(Path::new(port.name())) {
        return Err(port.error("it would grow without end; add --count N or --duration TIME"));
    }
    Ok(())
}

/// Returns true if two targets are one: an interface, or a file or pipe by any names.
pub fn is_one_target(a: &PortName, b: &PortName) -> bool {
    match (a.kind(), b.kind()) {
        (Kind::Null, _) => false,
        (Kind::Pcap, Kind::Pcap) => ports::is_one_output(Path::new(a.name()), Path::new(b.name())),
        _ => (a.kind(), a.name()) == (b.kind(), b.name()),
    }
}

/// Prints a notice for each name in `allowed` that is not the interface of a target.
pub fn say_unneeded<'a>(
    allowed: &[String],
    targets: impl IntoIterator<Item = &'a PortName>,
    netns: Option<&str>,
) {
    let name = |port| interface_of(port, netns).ok().flatten().map(|it| it.name);
    let names: Vec<_> = targets.into_iter().filter_map(name).collect();
    for other in allowed.iter().filter(|name| !names.contains(name)) {
        notice::say(format_args!(
            "--allow-default-route {other} has no effect: {other} is not a target"
        ));
    }
}

/// The link's speed in bits a second, if the driver reports it.
pub fn link_speed(interface: &str, netns: Option<&str>) -> Option<f64> {
    let speed = Ethtool::open(netns).and_then(|mut ethtool| ethtool.speed(interface));
    speed.ok().flatten().map(|mbit| f64::from(mbit) * 1e6)
}

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Checks an interface's carrier periodically.
#[derive(Debug)]
pub struct Carrier {
    link_state: LinkState,
    name: String,
    /// The carrier at the last check.
    has_carrier: bool,
    next: Instant,
}

impl Carrier {
    /// Watches the interface that a port sends to; `None` for files, or if the state is unreadable.
    pub fn of(port: &PortName, netns: Option<&str>) -> Option<Self> {
        let interface = interface_of(port, netns).ok()??;
        let link_state = netns::run_in(netns, || LinkState::of(&interface)).ok()?;
        Some(Self { link_state, name: interface.name, has_carrier: true, next: Instant::now() })
    }

    /// Reports a lost or restored carrier. The sender itself reports an interface that is down or
    /// removed.
    pub fn poll(&mut self) -> Option<String> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + CHECK_INTERVAL;
        let state = self.link_state.query().ok().filter(|state| state.up)?;
        let before = std::mem::replace(&mut self.has_carrier, state.running);
        let name = &self.name;
        match (before, self.has_carrier) {
            (true, false) => Some(format!(
                "{name} has no carrier, so packets are lost; check the cable and the other end"
            )),
            (false, true) => Some(format!("{name} has a carrier again")),
            _ => None,
        }
    }
}

/// The destination of a frame's outer IP header, if it has one.
pub fn destination(frame: &[u8]) -> Option<IpAddr> {
    match SlicedPacket::from_ethernet(frame).ok()?.net? {
        NetSlice::Ipv4(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => Some(ip.header().destination_addr().into()),
        NetSlice::Arp(_) => None,
    }
}

/// Returns the next hop that most destinations have, and one of these. Up to half of the destinations
/// may have none: packets of both directions also go to addresses of this host.
///
/// # Errors
/// No destination, or too few with a route out of the interface; different next hops. `packets` names the
/// packets.
pub fn common_hop(
    hops: &mut NextHops,
    packets: &str,
    destinations: &[IpAddr],
) -> Result<(IpAddr, NextHop)> {
    let interface = hops.interface().to_owned();
    let failed = |reason: &str| {
        Err(Error::Usage(format!(
            "cannot resolve the next-hop MAC of {packets} on {interface}: {reason}; set --dmac"
        )))
    };
    let distinct: BTreeSet<IpAddr> = destinations.iter().copied().collect();
    let (mut found, mut unresolved) = (Vec::new(), Vec::new());
    for destination in distinct {
        match hops.to(destination) {
            Ok(hop) => found.push((destination, hop)),
            Err(error) => unresolved.push(error),
        }
    }
    if unresolved.len() > found.len() {
        return Err(unresolved.swap_remove(0));
    }
    let share = |hop: NextHop| found.iter().filter(|(_, other)| *other == hop).count();
    match (found.iter().find(|(_, hop)| share(*hop) * 2 > found.len()), &found[..]) {
        (Some(most), _) => Ok(*most),
        (None, [(a, _), (b, _), ..]) => failed(&format!("{a} and {b} have different next hops")),
        (None, _) => failed("they have no IP destination"),
    }
}

/// Returns the options to open a port for this many sending threads, if it can have any number of queues.
pub fn sending(kind: Kind, threads: u32, common: &Common) -> OpenOptions {
    let options = OpenOptions { usage: Directions::Send, queues: threads, ..common.options() };
    options_for_kind(options, kind)
}

/// Limits a port to one queue per sending thread; prints a notice if it has fewer.
pub fn limit_queues(port: &mut Port, threads: u32) {
    port.queues.truncate(threads as usize);
    ports::say_queues(port, Some(threads), "send");
}

/// The name of zero-copy in the report of a fallback.
const ZERO_COPY: &str = "AF_XDP zero-copy";
const LIVE: &str = "live:";

/// The goal of the choice of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Maximum speed.
    Speed,
    /// Exact times of packets. This excludes `live:`, whose thread has to be woken or keeps a CPU busy: with
    /// two CPUs its packets left milliseconds late, those of `packet:` 20 µs late.
    Times,
}

/// Opens the best port for sending, or the unchanged port if it names its method. `options` apply to a port
/// with as many queues as wanted; `xdp:` has the card's queues.
///
/// # Errors
/// Those of `packet:`, if nothing better works.
pub fn best(port: &PortName, options: &OpenOptions, goal: Goal) -> Result<Port> {
    if !(port.is_bare() && port.with_kind(Kind::Live).is_some()) {
        return Port::open(port, options);
    }
    let mut passed = Vec::new();
    let opened = zero_copy(port, options).or_else(|error| {
        passed.push((ZERO_COPY, short(&error)));
        if goal == Goal::Times {
            return Port::open(port, options);
        }
        live(port, options).or_else(|error| {
            passed.push((LIVE, short(&error)));
            Port::open(port, options)
        })
    });
    let mut opened = opened?;
    let to = match opened.name.kind() {
        Kind::Live => LIVE,
        _ => "packet:",
    };
    let fallbacks = passed.into_iter().map(|(from, reason)| Fallback::new(from, to, reason));
    opened.fallbacks.splice(0..0, fallbacks);
    Ok(opened)
}

/// Returns the reason why a method was not used, without the method's name.
pub fn short(error: &Error) -> String {
    match error {
        Error::Unsupported { remedy, .. } => remedy.clone(),
        error => error.to_string(),
    }
}

/// Opens a plain interface name as a port of AF_XDP sockets in zero-copy mode.
///
/// # Errors
/// The kernel reports that the driver lacks this mode; the errors of opening it.
pub fn zero_copy(port: &PortName, options: &OpenOptions) -> Result<Port> {
    let netns = options.netns.as_deref();
    let interface = link::interface(netns, port.name())?;
    // Checked first, because an attempt attaches the program, which makes some cards reset.
    if xdp_abilities(netns, &interface)?.is_some_and(|abilities| !abilities.zero_copy()) {
        return Err(Error::Unsupported {
            feature: format!("zero-copy with {}", interface.name),
            remedy: format!("the driver of {} does not support it", interface.name),
        });
    }
    let mut port = of_kind(port, Kind::Xdp)?;
    port.set_default("mode", "zero-copy");
    Port::open(&port, &OpenOptions { queues: 0, ..options.clone() })
}

/// Opens a plain interface name as `live:`, if each of its threads can have a CPU other than that of the
/// thread that fills its queue.
fn live(port: &PortName, options: &OpenOptions) -> Result<Port> {
    let port = of_kind(port, Kind::Live)?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = options.queues.max(1) as usize;
    if cpus <= threads {
        return Err(Error::Unsupported {
            feature: format!("a CPU for {port}"),
            remedy: format!(
                "it keeps a CPU busy besides those of the sending threads ({threads}), and this command may use \
                 {cpus}; name the port {port} to use it nevertheless"
            ),
        });
    }
    Port::open(&port, options)
}

fn of_kind(port: &PortName, kind: Kind) -> Result<PortName> {
    let reason = || port.error(format!("{}: does not have these options", kind.prefix()));
    port.with_kind(kind).ok_or_else(reason)
}
