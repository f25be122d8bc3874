//! Presence of netfilter's tables in a network namespace.
//!
//! Sources: linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h; /proc/net/ip_tables_names of legacy iptables.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;
use sluicegate_base::error::{Error, Result};

use super::Netlink;
use super::netlink::Body;

/// NFNL_SUBSYS_NFTABLES and NFT_MSG_GETTABLE.
const GET_TABLE: u16 = 10 << 8 | 1;
/// The kernel has no nftables. It has tried to load the module, and would start modprobe for each further question.
static HAS_NO_NFTABLES: AtomicBool = AtomicBool::new(false);

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
    if HAS_NO_NFTABLES.load(Ordering::Relaxed) {
        return Ok(false);
    }
    // struct nfgenmsg, of all families.
    let found = match Netlink::open_to(None, NETLINK_NETFILTER) {
        Ok(mut netlink) => netlink.dump(GET_TABLE, &Body::of(&[0]), |_| Some(())),
        Err(error) => match error.errno() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => return Err(error),
        },
    };
    match found {
        Ok(tables) => Ok(!tables.is_empty()),
        Err(error) if is_absence(&error) => {
            HAS_NO_NFTABLES.store(true, Ordering::Relaxed);
            Ok(false)
        }
        Err(error) => Err(Error::system("list", "the tables of nftables", error)),
    }
}

/// Returns true if the kernel has no nftables, or no netlink for netfilter at all.
fn is_absence(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::EINVAL | libc::EPROTONOSUPPORT))
        || error.kind() == io::ErrorKind::Unsupported
}
