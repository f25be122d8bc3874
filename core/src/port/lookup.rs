//! Which interface a name means, and where it is if it is not here.

use crate::error::{Error, Result};
use crate::link::{self, netns};
use crate::port::PortName;

/// How many namespaces are searched for the sake of a better message.
const MAX_NAMESPACES: usize = 64;

/// The interface that `name` means in the namespace `netns`, or in this thread's.
pub(super) fn interface(name: &PortName, netns: Option<&str>) -> Result<link::Interface> {
    let wanted = name.name();
    if wanted == "any" {
        return Err(name.error("'any' is for packet: ports that receive: name each interface"));
    }
    link::interface(netns, wanted).map_err(|error| match error {
        Error::Usage(text) if netns.is_none_or(netns::exists) => {
            Error::Usage(format!("{text}{}", elsewhere(wanted, netns)))
        }
        error => error,
    })
}

/// Returns a hint for an interface that is in another namespace; empty if none was found in a
/// namespace that may be entered.
fn elsewhere(wanted: &str, netns: Option<&str>) -> String {
    let is_in = |place: Option<&str>| link::interface(place, wanted).is_ok();
    let names = netns::list();
    let others = names.iter().filter(|other| Some(other.as_str()) != netns);
    match others.take(MAX_NAMESPACES).find(|other| is_in(Some(other))) {
        Some(other) => format!(
            "; network namespace '{other}' has an interface of that name: use --netns {other}"
        ),
        None if netns.is_some() && is_in(None) => {
            "; this namespace has an interface of that name: leave --netns out".into()
        }
        None => String::new(),
    }
}
