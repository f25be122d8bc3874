//! What an interface's packets begin with.

use crate::error::{Error, Result};
use crate::link;
use crate::port::LINKTYPE_ETHERNET;

/// LINKTYPE_RAW: an IP header, version 4 or 6.
pub(super) const LINKTYPE_RAW: u16 = 101;

/// The LINKTYPE_ number for an interface's hardware type (ARPHRD_, linux/if_arp.h).
pub(super) fn link_type(interface: &link::Interface) -> Result<u16> {
    link_type_of(interface.hardware).ok_or_else(|| Error::Unsupported {
        feature: format!("capturing on {} (hardware type {})", interface.name, interface.hardware),
        remedy: "Ethernet, loopback and IP tunnel interfaces can be captured on; packet:any takes \
                 all kinds"
            .into(),
    })
}

/// The LINKTYPE_ number for a hardware type; none if it has no number here.
pub(super) fn link_type_of(hardware: u16) -> Option<u16> {
    match hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(LINKTYPE_ETHERNET),
        libc::ARPHRD_NONE | libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT => {
            Some(LINKTYPE_RAW)
        }
        _ => None,
    }
}
