//! Interfaces, the namespaces they live in, and the lab.
//!
//! [`netns`] runs things in a network namespace; [`Netlink`] lists and changes interfaces;
//! [`NextHops`] finds the Ethernet address that packets to an IP address get;
//! [`Ethtool`] asks a driver what rtnetlink does not tell, [`xdp_abilities`] what it can in XDP;
//! [`Sampler`] and [`Rates`] turn counters into rates; [`Lab`] builds hosts out of namespaces and
//! veth links.
//!
//! Sockets remember the namespace they were opened in, so a [`Netlink`] or an [`Ethtool`]
//! needs a thread in that namespace only for the moment of opening.
#![warn(unreachable_pub)]

mod cpu;
pub mod ethtool;
mod interface;
pub mod lab;
mod link_state;
mod netdev;
mod netlink;
pub mod netns;
mod next_hop;
mod rates;
pub mod records;
mod tap;
mod tc;
mod tx_counters;
mod veth;

pub use cpu::{
    Allowed, CpuCounters, ThreadCpuUsage, may_pin, pin_thread, possible_cpus, read as cpu_counters,
};
pub use ethtool::{Channels, Ethtool};
pub use interface::{Address, Interface, LinkStats, Mac, NotMac};
#[cfg(test)]
pub(crate) use lab::for_tests;
pub use lab::{Lab, LabConfig, Shape};
pub use link_state::{LinkNames, LinkState, State};
pub use netdev::{Metadata, XdpAbilities, transmit_queues, xdp_abilities};
pub use netlink::Netlink;
pub use netns::live_namespaces;
pub use next_hop::{NextHop, NextHops, carries_default_route};
pub use rates::{
    Counter, CpuRates, Direction, DirectionRates, InterfaceRates, InterfaceSample, QueueCounters,
    QueueRates, Rates, Sample, Sampler,
};
pub use tap::{Making, Tap};
pub use tc::{Backlog, Backlogged, FilterPlace, Side, Then};
pub use tx_counters::{TxCounters, TxCounts};
pub use veth::VethEnd;

use std::io;

use sluicegate_base::error::{Error, Result};

/// The interfaces of a network namespace, in the kernel's order; of this thread's if none.
///
/// # Errors
/// No such namespace, or no privilege to enter it.
pub fn interfaces(netns: Option<&str>) -> Result<Vec<Interface>> {
    Netlink::open(netns)?.interfaces()
}

/// One interface by name.
///
/// # Errors
/// As [`interfaces`]; where there is none of that name, the error lists those there are.
pub fn interface(netns: Option<&str>, name: &str) -> Result<Interface> {
    Netlink::open(netns)?.interface(name)
}

/// A failed change to the network: the error of a missing privilege names the capability.
pub fn refused(
    operation: &'static str,
    object: impl Into<String>,
    capability: &'static str,
    error: impl Into<io::Error>,
) -> Error {
    let (object, error) = (object.into(), error.into());
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Privilege {
            operation: format!("{operation} {object}"),
            capability,
            remedy: "run it with sudo".into(),
        },
        _ => Error::system(operation, object, error),
    }
}
