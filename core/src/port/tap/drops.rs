//! What a device has dropped for want of room.

use crate::error::Result;
use crate::link::Netlink;

/// The count of a device, all its queues together, from now on.
#[derive(Debug)]
pub(crate) struct Drops {
    netlink: Netlink,
    device: String,
    before: u64,
    /// What was last heard.
    since: u64,
}

impl Drops {
    /// Of a device of this thread's network namespace.
    pub fn of(device: &str) -> Result<Self> {
        let mut netlink = Netlink::open(None)?;
        let before = netlink.link(device)?.stats.tx_dropped;
        Ok(Self { netlink, device: device.to_owned(), before, since: 0 })
    }

    /// Packets that the host sent and that found no room (drivers/net/tun.c, `tun_net_xmit`). Of a
    /// device that is gone, what it had counted when it was last asked.
    pub fn count(&mut self) -> u64 {
        if let Ok(link) = self.netlink.link(&self.device) {
            self.since = link.stats.tx_dropped.saturating_sub(self.before);
        }
        self.since
    }
}
