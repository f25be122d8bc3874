//! Presence of netfilter's tables in a network namespace.
//!
//! Sources: linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h; /proc/net/ip_tables_names of legacy iptables.

use std::{fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;
use sluicegate_base::error::{Error, Result};

use super::Netlink;
use super::netlink::Body;

/// NFNL_SUBSYS_NFTABLES and NFT_MSG_GETTABLE.
const GET_TABLE: u16 = 10 << 8 | 1;

/// Reports whether nftables or iptables have tables in this thread's network namespace: a firewall, or address
/// translation.
///
/// # Errors
/// The kernel refuses, for lack of CAP_NET_ADMIN.
pub fn has_netfilter_tables() -> Result<bool> {
    let is_legacy = ["ip_tables_names", "ip6_tables_names"].iter().any(|name| {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        names.is_ok_and(|it| !it.trim().is_empty())
    });
    if is_legacy {
        return Ok(true);
    }
    // struct nfgenmsg, of all families.
    let found = Netlink::open_to(None, NETLINK_NETFILTER)
        .map(|mut netlink| netlink.dump(GET_TABLE, &Body::of(&[0]), |_| Some(())));
    match found? {
        Ok(tables) => Ok(!tables.is_empty()),
        // The kernel has no nftables.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(Error::system("list", "the tables of nftables", error)),
    }
}
