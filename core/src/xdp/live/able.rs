//! Which interfaces live frames leave by.

use crate::error::{Error, Result};
use crate::link::{Interface, xdp_abilities};

/// What keeps live frames from leaving an interface of the namespace `netns`, or of this thread's,
/// as far as the kernel says (since 6.3).
///
/// # Errors
/// The interface is down; its driver takes no packets that a program redirects to it.
pub fn leaves_by(interface: &Interface, netns: Option<&str>) -> Result<()> {
    let name = &interface.name;
    if !interface.up {
        return Err(Error::Usage(format!("{name} is down: ip link set {name} up")));
    }
    match xdp_abilities(netns, interface)? {
        Some(abilities) if !abilities.sends_redirected() => Err(Error::Unsupported {
            feature: format!("sending live frames out of {name}"),
            remedy: match interface.kind.as_str() {
                "veth" => "the other end needs NAPI: ethtool -K OTHER_END gro on".into(),
                _ => format!(
                    "the driver takes no redirected packets; some do with a program attached: \
                     sluice attach {name}"
                ),
            },
        }),
        _ => Ok(()),
    }
}
