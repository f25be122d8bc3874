//! From specification to plan: with the addresses that it leaves to the sender.

use std::net::IpAddr;

use sluicegate::error::Result;
use sluicegate::link::{Interface, NextHop, NextHops};
use sluicegate_traffic::plan::{Frames, Plan, Stream};
use sluicegate_traffic::spec::{Defaults, Spec};

use super::options::wrong;
use crate::send::{common_hop, destination};

/// Packets of a stream that are looked at for their destinations.
const SAMPLED: usize = 16;

/// Works out what is sent out of an interface, or into a file.
///
/// # Errors
/// What does not fit together; a next hop that cannot be resolved.
pub fn plan(spec: &Spec, interface: Option<&Interface>, netns: Option<&str>) -> Result<Plan> {
    plan_by(spec, interface, netns, |hops, stream| {
        let (destination, _) = hop_of(hops, stream)?;
        hops.mac(destination).map(|mac| Some(mac.0))
    })
}

/// Works out what would be sent: asks no neighbour, and takes an address that no card has for a
/// next hop that is not known.
///
/// # Errors
/// What does not fit together.
pub fn plan_to_show(
    spec: &Spec,
    interface: Option<&Interface>,
    netns: Option<&str>,
) -> Result<Plan> {
    plan_by(spec, interface, netns, |hops, stream| {
        let known = hop_of(hops, stream).and_then(|(_, hop)| hops.known_mac(hop));
        Ok(known.ok().flatten().map(|mac| mac.0))
    })
}

/// `resolve` finds the next hop's MAC of each stream that names none.
fn plan_by(
    spec: &Spec,
    interface: Option<&Interface>,
    netns: Option<&str>,
    mut resolve: impl FnMut(&mut NextHops, &Stream) -> Result<Option<[u8; 6]>>,
) -> Result<Plan> {
    let defaults = of_interface(interface);
    let plan = spec.plan(&defaults).map_err(wrong)?;
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else { return Ok(plan) };
    // Where another default changes nothing, the specification names the next hop itself.
    let other = spec.plan(&Defaults { dmac: [0xff; 6], ..defaults }).map_err(wrong)?;
    if plan == other {
        return Ok(plan);
    }
    let mut hops = NextHops::open(netns, interface)?;
    let mut all = vec![defaults; plan.streams.len()];
    for ((stream, other), own) in plan.streams.iter().zip(&other.streams).zip(&mut all) {
        if stream != other {
            own.dmac = resolve(&mut hops, stream)?.unwrap_or(defaults.dmac);
        }
    }
    spec.plan_each(&all).map_err(wrong)
}

fn of_interface(interface: Option<&Interface>) -> Defaults {
    let defaults = Defaults::default();
    let smac = interface.and_then(|it| it.mac).map_or(defaults.smac, |mac| mac.0);
    Defaults { smac, ..defaults }
}

/// The next hop of a stream's packets, and one of their destinations.
fn hop_of(hops: &mut NextHops, stream: &Stream) -> Result<(IpAddr, NextHop)> {
    let plan = Plan { seed: 0, streams: vec![stream.clone()], turns: vec![0] };
    let mut room = vec![0; plan.longest()];
    let mut frames = Frames::new(&plan, 0, 1, || 0);
    let sampled = std::iter::repeat_with(|| {
        let bytes = frames.next_into(&mut room)?;
        destination(&room[..bytes])
    });
    let destinations: Vec<_> = sampled.take(SAMPLED).flatten().collect();
    common_hop(hops, &format!("stream {}", stream.name), &destinations)
}
