//! From specification to plan: with the addresses that it leaves to the sender.

use std::net::Ipv4Addr;

use etherparse::{NetSlice, SlicedPacket};
use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, Mac, known_neighbour, neighbour};
use sluicegate_traffic::plan::{Frames, Plan};
use sluicegate_traffic::spec::{Defaults, Spec};

use super::options::wrong;

/// Works out what is sent out of an interface, or into a file.
///
/// # Errors
/// What does not fit together; packets of which nobody knows to whom they go.
pub fn plan(spec: &Spec, interface: Option<&Interface>, netns: Option<&str>) -> Result<Plan> {
    plan_by(spec, interface, &|name, address| neighbour(netns, name, address))
}

/// How a neighbour is found: of an interface, by address.
type Find<'a> = &'a dyn Fn(&str, Ipv4Addr) -> Result<Option<Mac>>;

fn plan_by(spec: &Spec, interface: Option<&Interface>, find: Find<'_>) -> Result<Plan> {
    let defaults = of_interface(interface);
    let plan = spec.plan(&defaults).map_err(wrong)?;
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else { return Ok(plan) };
    // Where another default changes nothing, the specification names its receiver itself.
    let other = Defaults { dmac: [0xff; 6], ..defaults };
    if spec.plan(&other).map_err(wrong)? == plan {
        return Ok(plan);
    }
    let dmac = receiver(&plan, interface, find)?;
    spec.plan(&Defaults { dmac, ..defaults }).map_err(wrong)
}

/// The same to be looked at only: nobody is asked, and where nobody knows the receiver it is one that
/// there is not.
///
/// # Errors
/// What does not fit together.
pub fn plan_to_show(
    spec: &Spec,
    interface: Option<&Interface>,
    netns: Option<&str>,
) -> Result<Plan> {
    let known: Find<'_> = &|name, address| known_neighbour(netns, name, address);
    let plan = plan_by(spec, interface, known);
    plan.or_else(|_| spec.plan(&of_interface(interface)).map_err(wrong))
}

fn of_interface(interface: Option<&Interface>) -> Defaults {
    let defaults = Defaults::default();
    let smac = interface.and_then(|it| it.mac).map_or(defaults.smac, |mac| mac.0);
    Defaults { smac, ..defaults }
}

/// The Ethernet address of whom the first packet is for.
fn receiver(plan: &Plan, interface: &Interface, find: Find<'_>) -> Result<[u8; 6]> {
    let unknown = |why: String| {
        let name = &interface.name;
        Error::Usage(format!("to whom on {name}? {why}: say it by --dmac or ether = {{ dst }}"))
    };
    let Some(address) = destination(plan) else {
        return Err(unknown("the packets have no IPv4 address that a neighbour has".into()));
    };
    match find(&interface.name, address)? {
        Some(mac) => Ok(mac.0),
        None => Err(unknown(format!("no neighbour there says that it is {address}"))),
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
