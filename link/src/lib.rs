//! Interfaces, their network namespaces, and the lab.
//!
//! ```text
//!   Netlink   interfaces, addresses, routes, filters      rtnetlink
//!   Ethtool   statistics and settings of drivers          ioctl
//!   NextHops  IP address --> Ethernet address             routes and neighbours
//!   Sampler   counters --> Rates                          both, and /proc
//!   netns     runs code and commands in a namespace       setns
//!   Lab       hosts: namespaces joined by veth links      all of these
//! ```
//!
//! ```no_run
//! use sluicegate_link::{Rates, Sampler}; // in programs: sluicegate::link
//!
//! let mut sampler = Sampler::open(None, &[])?;
//! let mut before = sampler.sample()?;
//! loop {
//!     std::thread::sleep(std::time::Duration::from_secs(1));
//!     let now = sampler.sample()?;
//!     for interface in Rates::between(&before, &now).interfaces {
//!         println!("{}: {:.0} packets/s received", interface.name, interface.rx.packets);
//!     }
//!     before = now;
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), sluicegate_base::Error>(())
//! ```
//!
//! A socket stays in the namespace in which it was opened, so a [`Netlink`] or an [`Ethtool`] needs a thread
//! in that namespace only while it is opened.
#![warn(unreachable_pub)]

mod cpu;
mod default_route;
pub mod ethtool;
mod interface;
pub mod lab;
mod link_state;
mod loss_counters;
mod netdev;
mod netfilter;
mod netlink;
pub mod netns;
mod next_hop;
mod queue_counters;
mod rates;
pub mod records;
mod tap;
mod tc;
mod tx_counters;
mod veth;

pub use cpu::{
    Allowed, CpuCounters, ThreadCpuUsage, may_pin, pin_thread, possible_cpus, read as cpu_counters,
};
pub use default_route::carries_default_route;
pub use ethtool::{Channels, Ethtool};
pub use interface::{Address, Interface, LinkStats, Mac, NotMac};
#[cfg(test)]
pub(crate) use lab::for_tests;
pub use lab::{Lab, LabConfig, Shape};
pub use link_state::{LinkNames, LinkState, LinkStatus};
pub use netdev::{Metadata, XdpAbilities, receive_queues, transmit_queues, xdp_abilities};
pub use netfilter::has_netfilter_tables;
pub use netlink::Netlink;
pub use netns::live_namespaces;
pub use next_hop::{NextHop, NextHops};
pub use queue_counters::{Direction, QueueCounters};
pub use rates::{
    CpuRates, DirectionRates, InterfaceRates, InterfaceSample, QueueRates, Rates, Sample, Sampler,
};
pub use tap::{Making, Tap};
pub use tc::{Backlog, Backlogged, FilterPlace, TcHook, Then};
pub use tx_counters::{TxCounters, TxCounts};
pub use veth::VethEnd;

use std::ffi::c_char;
use std::io;

use sluicegate_base::error::{Error, Result};

/// Returns the interfaces of a network namespace, or of this thread's, in the kernel's order.
///
/// # Errors
/// No such namespace, or no privilege to enter it.
pub fn interfaces(netns: Option<&str>) -> Result<Vec<Interface>> {
    Netlink::open(netns)?.interfaces()
}

/// Returns one interface by name.
///
/// # Errors
/// The errors of [`interfaces`]; no interface has this name (the error lists all).
pub fn interface(netns: Option<&str>, name: &str) -> Result<Interface> {
    Netlink::open(netns)?.interface(name)
}

/// Creates a request of an ioctl about an interface, by its name of at most 15 bytes; the 16th byte stays zero.
fn ifreq(name: &str, ifr_ifru: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    request
}

/// Creates the error of a failed change to the network. For a missing privilege it names the capability.
pub fn refused(
    operation: &'static str,
    object: impl Into<String>,
    capability: &'static str,
    error: impl Into<io::Error>,
) -> Error {
    let (object, error) = (object.into(), error.into());
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Privilege {
            operation: format!("permission to {operation} {object}"),
            capability,
            remedy: "run it with sudo".into(),
        },
        _ => Error::system(operation, object, error),
    }
}
