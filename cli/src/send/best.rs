//! Chooses the port that sends best out of a plain interface name: `xdp:` if zero-copy works,
//! `live:` if speed matters and each thread can have a spare CPU, else `packet:`. Reports each
//! method passed over, with the reason.

use sluicegate::error::{Error, Result};
use sluicegate::link::{self, xdp_abilities};
use sluicegate::port::{Fallback, Kind, OpenOptions, Port, PortName};

/// The name of zero-copy in the report of a fallback.
const ZERO_COPY: &str = "AF_XDP zero-copy";
const LIVE: &str = "live:";

/// The goal of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// How many packets leave.
    Speed,
    /// When each of them leaves. So not by another thread, which has to be woken or keeps a CPU busy:
    /// with two CPUs, what leaves by `live:` came out milliseconds late where `packet:` was 20 µs late.
    Times,
}

/// Opens the port that sends best, or the port as it is if it names its method. `options` apply to
/// a port with as many queues as wanted; `xdp:` has the card's queues.
///
/// # Errors
/// As of `packet:`, where nothing better goes.
pub fn best(port: &PortName, options: &OpenOptions, wish: Wish) -> Result<Port> {
    if !(port.is_bare() && port.with_kind(Kind::Live).is_some()) {
        return Port::open(port, options);
    }
    let mut passed = Vec::new();
    let opened = zero_copy(port, options).or_else(|error| {
        passed.push((ZERO_COPY, short(&error)));
        if wish == Wish::Times {
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

/// Why a method was passed over, without the method's own name.
pub fn short(error: &Error) -> String {
    match error {
        Error::Unsupported { remedy, .. } => remedy.clone(),
        error => error.to_string(),
    }
}

/// Opens an interface that is named alone as a port of AF_XDP sockets in zero-copy mode.
///
/// # Errors
/// The driver has no such mode, as far as the kernel says; whatever opening it fails at.
pub fn zero_copy(port: &PortName, options: &OpenOptions) -> Result<Port> {
    let netns = options.netns.as_deref();
    let interface = link::interface(netns, port.name())?;
    // To try takes the program onto the interface, for which some cards begin anew.
    if xdp_abilities(netns, &interface)?.is_some_and(|abilities| !abilities.zero_copy()) {
        return Err(Error::Unsupported {
            feature: format!("zero-copy with {}", interface.name),
            remedy: format!("the driver of {} has none", interface.name),
        });
    }
    let mut port = of_kind(port, Kind::Xdp)?;
    port.set_default("mode", "zero-copy");
    Port::open(&port, &OpenOptions { queues: 0, ..options.clone() })
}

/// Opens a plain interface name as `live:`, if each of its threads may have a CPU besides that of
/// the thread that fills its queue.
fn live(port: &PortName, options: &OpenOptions) -> Result<Port> {
    let port = of_kind(port, Kind::Live)?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cpus <= options.queues.max(1) as usize {
        return Err(Error::Unsupported {
            feature: "a CPU besides those of the threads that fill its queues".into(),
            remedy: format!("there are {cpus}; ask for live: by name to do without"),
        });
    }
    Port::open(&port, options)
}

fn of_kind(port: &PortName, kind: Kind) -> Result<PortName> {
    let reason = || port.error(format!("its options are no options of {}:", kind.prefix()));
    port.with_kind(kind).ok_or_else(reason)
}
