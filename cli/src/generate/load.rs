//! From the flags to the plan: the specification, and the addresses it leaves to the sender.

use std::net::Ipv4Addr;

use etherparse::{NetSlice, SlicedPacket};
use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, neighbour};
use sluicegate_traffic::plan::{Frames, Plan};
use sluicegate_traffic::spec::{Defaults, Spec, SpecError};

use super::Args;

/// Works out what is sent.
pub fn plan(args: &Args, interface: Option<&Interface>) -> Result<Plan> {
    let mut spec = Spec::read(&args.spec).map_err(wrong)?;
    spec.seed = args.seed.or(spec.seed);
    let mut defaults = Defaults::default();
    if let Some(mac) = interface.and_then(|it| it.mac) {
        defaults.smac = mac.0;
    }
    let plan = spec.plan(&defaults).map_err(wrong)?;
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else { return Ok(plan) };
    // Where another default changes nothing, the specification names its receiver itself.
    let other = Defaults { dmac: [0xff; 6], ..defaults };
    if spec.plan(&other).map_err(wrong)? == plan {
        return Ok(plan);
    }
    defaults.dmac = receiver(&plan, interface, args.common.netns.as_deref())?;
    spec.plan(&defaults).map_err(wrong)
}

fn wrong(error: SpecError) -> Error {
    Error::Usage(error.to_string())
}

/// The Ethernet address of whom the first packet is for.
fn receiver(plan: &Plan, interface: &Interface, netns: Option<&str>) -> Result<[u8; 6]> {
    let unknown = |why: String| {
        let name = &interface.name;
        Error::Usage(format!("to whom on {name}? {why}: name it, ether = {{ dst = \"…\" }}"))
    };
    let Some(address) = destination(plan) else {
        return Err(unknown("the packets have no IPv4 address that a neighbour has".into()));
    };
    match neighbour(netns, &interface.name, address)? {
        Some(mac) => Ok(mac.0),
        None => Err(unknown(format!("nobody there says that it is {address}"))),
    }
}

fn destination(plan: &Plan) -> Option<Ipv4Addr> {
    let mut room = vec![0; plan.longest()];
    let bytes = Frames::new(plan, 0, 1, || 0).next_into(&mut room)?;
    match SlicedPacket::from_ethernet(&room[..bytes]).ok()?.net? {
        NetSlice::Ipv4(ip) => Some(ip.header().destination_addr()),
        NetSlice::Ipv6(_) | NetSlice::Arp(_) => None,
    }
}
