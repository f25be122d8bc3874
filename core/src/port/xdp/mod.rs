//! `xdp:`, packets of an interface taken before the host has made anything of them: the host
//! does not get them. What the filter does not match stays with the host.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | a pcap-filter expression: what is taken | everything |
//! | `action` | `take`, to this port; `drop` or `pass`, which only count, in the kernel | take |
//! | `mode` | `native` or `skb`: this one or none | native where the driver can |
//! | `slots` | slots in the ring | 512 |
//!
//! Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN, and Linux 5.9.

mod config;
mod in_kernel;

pub(super) use in_kernel::InKernel;

use std::os::fd::AsFd;
use std::sync::Arc;

use config::Config;

use super::queue::{Backend, Queue};
use super::{Fallback, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Use, lookup};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::link::{self, netns};
use crate::memory::{Pool, PoolConfig};
use crate::ring::Ring;
use crate::xdp::Mode;
use crate::xdp::resident::{Action, DROP, FILTERED, Owner, Resident, Stage, load_program};

/// Opens the port.
pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let config = Config::of(name)?;
    let netns = options.netns.as_deref();
    let interface = lookup::interface(name, netns)?;
    if interface.hardware != libc::ARPHRD_ETHER {
        return Err(name.error("XDP is for Ethernet interfaces; packet: takes all kinds"));
    }
    match config.action {
        Action::Take => Err(Error::Unsupported {
            feature: "taking packets to user space".into(),
            remedy: "use action=drop or action=pass".into(),
        }),
        _ if options.usage != Use::Receive => {
            Err(name.error("action=drop and action=pass only count what comes in"))
        }
        _ => netns::within(netns, || count_in_kernel(name, &config, interface, options)),
    }
}

/// A port whose packets stay in the kernel: one queue, whatever the interface has.
fn count_in_kernel(
    name: &PortName,
    config: &Config,
    interface: link::Interface,
    options: &OpenOptions,
) -> Result<Port> {
    let filter = config.filter.as_deref();
    let filter = filter.map(|text| Filter::compile(text, LINKTYPE_ETHERNET)).transpose()?;
    let (resident, reason) = Resident::join(&interface, config.mode)?;
    let resident = Arc::new(resident);
    let expression = filter.as_ref().map_or("", Filter::expression);
    let owner = Owner::myself(config.action, expression, 0..=interface.rx_queues.max(1) - 1);
    let stage = match (config.action, &filter) {
        (_, Some(filter)) => {
            let stage = Stage::take(&resident, FILTERED, &owner)?;
            let program = load_program(&stage, &resident, config.action, Some(filter), None)?;
            stage.complete(Some(program.as_fd()))?;
            Some(stage)
        }
        (Action::Drop, None) => {
            let stage = Stage::take(&resident, DROP..DROP + 1, &owner)?;
            stage.complete(None)?;
            Some(stage)
        }
        _ => None,
    };
    let pool =
        Pool::new(PoolConfig { buffers: 0, ring_area_bytes: 4096, ..PoolConfig::default() })?;
    let (rx, tx) = (Ring::absent(&pool)?, Ring::absent(&pool)?);
    let described = in_kernel::described(&interface);
    let mode = mode_name(resident.mode());
    let in_kernel = InKernel::new(resident, interface, options.netns.clone(), config.action, stage);
    let backend = Backend::InKernel(Box::new(in_kernel));
    Ok(Port {
        name: name.clone(),
        method: "count",
        mode: Some(mode),
        fallbacks: fallbacks(reason),
        queues: vec![Queue::new(0, rx, tx, backend, vec![described])],
    })
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Native => "native",
        Mode::Skb => "skb",
    }
}

fn fallbacks(reason: Option<String>) -> Vec<Fallback> {
    reason.map(|reason| Fallback { from: "native", to: "skb", reason }).into_iter().collect()
}
