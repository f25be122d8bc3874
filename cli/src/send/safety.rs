//! Where may be sent to.

use sluicegate::error::{Error, Result};
use sluicegate::link::{self, Ethtool, Interface, carries_default_route};
use sluicegate::port::{Kind, PortName};

use crate::notice;

/// The interface that a port sends out of; none for files and
/// TAP devices.
///
/// # Errors
/// A port that only receives; no such interface.
pub fn interface_of(port: &PortName, netns: Option<&str>) -> Result<Option<Interface>> {
    match port.kind() {
        Kind::Packet | Kind::Xdp | Kind::Live => link::interface(netns, port.name()).map(Some),
        // What a TAP device is sent the host receives, as with host: it does not leave.
        Kind::Pcap | Kind::Null | Kind::Memif | Kind::Host | Kind::Tap => Ok(None),
        Kind::Mirror | Kind::Monitor => Err(port.error(format!(
            "a {}: port only receives: send to packet:, xdp: or live:",
            port.kind().prefix()
        ))),
    }
}

/// The interface that a port sends out of, if that may be sent to; none for files.
///
/// # Errors
/// As those of [`interface_of`]; the interface carries the default route, and `yes` is not its name.
pub fn target(
    port: &PortName,
    netns: Option<&str>,
    yes: Option<&str>,
) -> Result<Option<Interface>> {
    let interface = interface_of(port, netns)?;
    if let Some(interface) = &interface {
        may_send(&interface.name, netns, yes)?;
    }
    Ok(interface)
}

/// Refuses to send where the host's own way to the world is, unless it is named.
fn may_send(interface: &str, netns: Option<&str>, yes: Option<&str>) -> Result<()> {
    if yes == Some(interface) {
        return Ok(());
    }
    if carries_default_route(netns, interface)? {
        return Err(Error::Usage(format!(
            "{interface} carries this host's default route: what is sent there leaves for the \
             world; if that is wanted, add --allow-default-route {interface}"
        )));
    }
    if let Some(other) = yes {
        notice::say(format_args!(
            "--allow-default-route {other}: it is {interface} that is sent to"
        ));
    }
    Ok(())
}

/// Bits a second, where the driver says.
pub fn link_speed(interface: &str, netns: Option<&str>) -> Option<f64> {
    let speed = Ethtool::open(netns).and_then(|mut ethtool| ethtool.speed(interface));
    speed.ok().flatten().map(|mbit| f64::from(mbit) * 1e6)
}
