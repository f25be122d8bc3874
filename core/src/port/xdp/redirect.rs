//! Forwarding in the kernel: what comes in by one interface goes out by another, without a look from
//! this side. What is read here are counters.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::config::Config;
use super::in_kernel::{self, InKernel, Kept};
use super::{fallbacks, mode_name};
use crate::error::Result;
use crate::filter::Filter;
use crate::link::{self, Netlink, netns};
use crate::port::packet::Promiscuous;
use crate::port::queue::Queue;
use crate::port::{LINKTYPE_ETHERNET, OpenOptions, Port, PortName, claim_conflict, lookup};
use crate::xdp::resident::{Action, FILTERED, FORWARD, Owner, Resident, load_forwarding};
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::Ring;

impl Port {
    /// A port whose packets go out by the interface of another, in the kernel: those that match
    /// its filter, all unless it has one. Both names are of `xdp:` ports. Its one queue only counts
    /// them ([`take_kernel_counters`](Queue::take_kernel_counters)); it is to be waited for, synced and closed like
    /// others, and when it goes, or its process is killed, the packets are the host's again. What
    /// the other interface does not send shows in its own counters. Where it is gone the port is.
    ///
    /// Linux 5.10; a driver that sends what XDP redirects to it (`ndo_xdp_xmit`), with most only while
    /// a program is attached: so one is.
    ///
    /// # Errors
    /// As [`open`](Self::open); somebody has all packets of the interface already.
    pub fn redirect(from: &PortName, to: &PortName, options: &OpenOptions) -> Result<Self> {
        let config = Config::of(from)?;
        in_kernel::refuse_unused(from)?;
        let netns = options.netns.as_deref();
        let [source, target] = [from, to].map(|name| ethernet(name, netns));
        let (source, target) = (source?, target?);
        netns::run_in(netns, || redirect(from, &config, source, (to, target)))
    }
}

fn ethernet(name: &PortName, netns: Option<&str>) -> Result<link::Interface> {
    let interface = lookup::interface(name, netns)?;
    match interface.hardware {
        libc::ARPHRD_ETHER => Ok(interface),
        _ => Err(name.error("XDP is for Ethernet interfaces")),
    }
}

fn redirect(
    from: &PortName,
    config: &Config,
    source: link::Interface,
    (to, target): (&PortName, link::Interface),
) -> Result<Port> {
    let filter = config.filter.as_deref();
    let filter = filter.map(|text| Filter::compile(text, LINKTYPE_ETHERNET)).transpose()?;
    let (resident, reason) = Resident::join(&source, config.mode)?;
    let (there, _) = Resident::join(&target, Config::of(to)?.mode)?;
    let resident = Arc::new(resident);
    let queues = 0..=source.rx_queues.max(1) - 1;
    let expression = filter.as_ref().map_or("", Filter::expression);
    let owner = Owner::myself(Action::Forward, expression, queues);
    // Everything the resident program forwards itself; a filter needs a program.
    let places = if filter.is_some() { FILTERED } else { FORWARD..FORWARD + 1 };
    let netlink = Netlink::open(None)?;
    let stage = claim_conflict::take(from, &resident, places, &owner)?;
    stage.forward_to(&target)?;
    let program = filter.as_ref().map(|filter| load_forwarding(&stage, &resident, filter));
    let program = program.transpose()?;
    let promiscuous = config.promiscuous.then(|| Promiscuous::new(from, source.index));
    let kept = Kept {
        redirects: stage.count_redirects(&source, &target),
        target: Some((target, there)),
        _promiscuous: promiscuous.transpose()?,
    };
    stage.complete(program.as_ref().map(AsFd::as_fd))?;
    let pool =
        Pool::new(PoolConfig { buffers: 0, ring_area_bytes: 4096, ..PoolConfig::default() })?;
    let (rx, tx) = (Ring::absent(&pool)?, Ring::absent(&pool)?);
    let described = in_kernel::described(&source);
    let mode = mode_name(resident.mode());
    let counting = InKernel::new(resident, source, netlink, Action::Forward, stage).keep(kept);
    Ok(Port {
        name: from.clone(),
        method: "redirect",
        mode: Some(mode),
        fallbacks: fallbacks(reason),
        queues: vec![Queue::new(0, rx, tx, counting, vec![described])],
    })
}
