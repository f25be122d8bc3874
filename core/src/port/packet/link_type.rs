//! What an interface's packets begin with.

use crate::error::{Error, Result};
use crate::link;
use crate::port::LINKTYPE_ETHERNET;

/// LINKTYPE_RAW: an IP header, version 4 or 6.
const LINKTYPE_RAW: u16 = 101;

/// The LINKTYPE_ number for an interface's hardware type (ARPHRD_, linux/if_arp.h).
pub(super) fn link_type(interface: &link::Interface) -> Result<u16> {
    match interface.hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(LINKTYPE_ETHERNET),
        libc::ARPHRD_NONE | libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT => {
            Ok(LINKTYPE_RAW)
        }
        other => Err(Error::Unsupported {
            feature: format!("capturing on {} (hardware type {other})", interface.name),
            remedy: "Ethernet, loopback and IP tunnel interfaces can be captured on".into(),
        }),
    }
}
