//! The interfaces that a `packet:` port receives from.

use sluicegate::Result;
use sluicegate::link::{self, Interface};
use sluicegate::port::{Kind, PortName};

/// Returns true if a port receives from all interfaces.
pub fn is_any(port: &PortName) -> bool {
    port.kind() == Kind::Packet && port.name() == "any"
}

/// The interfaces that a port receives from now.
///
/// # Errors
/// There is none of its name, or they cannot be listed.
pub fn of(port: &PortName, netns: Option<&str>) -> Result<Vec<Interface>> {
    match is_any(port) {
        true => link::interfaces(netns),
        false => Ok(vec![link::interface(netns, port.name())?]),
    }
}
