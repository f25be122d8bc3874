//! What a bare interface name means: `packet:`, or `mirror:` where the XDP program that makes it
//! fast is on the interface already.

use std::io::{IsTerminal, stderr};

use sluicegate::Result;
use sluicegate::link::{self, netns};
use sluicegate::port::{Kind, Port, PortName};
use sluicegate::xdp::resident::Resident;

use crate::args::Common;
use crate::notice;

/// Opens a port to capture from it.
pub fn open(name: &PortName, common: &Common) -> Result<Port> {
    // More threads than one share by fanout, which is what packet: has.
    let mirror = name.of_kind(Kind::Mirror).filter(|_| common.threads.is_none());
    let Some(mirror) = mirror else { return common.open(name) };
    let interface = name.name();
    match is_resident(name, common) {
        Some(true) => match common.open(&mirror) {
            Ok(port) => {
                notice::say(format_args!(
                    "{interface}: as mirror:, for the XDP program is attached there; what comes \
                     in only, packet:{interface} takes what goes out too"
                ));
                return Ok(port);
            }
            Err(error) => notice::say(format_args!("{interface}: as packet:, for {error}")),
        },
        Some(false) if stderr().is_terminal() => notice::say(format_args!(
            "mirror:{interface} captures faster, what comes in only; `sluice attach {interface}` \
             makes it the default"
        )),
        _ => {}
    }
    common.open(name)
}

/// Whether our program is on the interface; none if it cannot be, or nobody may know.
fn is_resident(name: &PortName, common: &Common) -> Option<bool> {
    let netns = common.netns.as_deref();
    let interface = link::interface(netns, name.name()).ok()?;
    if interface.loopback || interface.mac.is_none() {
        return None;
    }
    let found = netns::within(netns, || Resident::find(&interface)).ok()?;
    Some(found.is_some())
}
