//! The transmit queues that the host sends by.

use std::fs;
use std::os::fd::AsRawFd;

use super::{Interface, netns};

/// The transmit queues that everybody may send by, each under its lock (`real_num_tx_queues` of
/// linux/netdevice.h); none where sysfs cannot be seen. To be called in the interface's network
/// namespace. Needs CAP_SYS_ADMIN.
///
/// ethtool counts those too that a driver keeps for what XDP programs send (virtio_net does), and
/// rtnetlink those there is room for. In sysfs there is a folder for each that the host sends by
/// (net/core/net-sysfs.c, netdev_queue_update_kobjects).
pub fn transmit_queues(interface: &Interface) -> Option<u32> {
    let interfaces = netns::sysfs_interfaces().ok()?;
    let folder = format!("/proc/self/fd/{}/{}/queues", interfaces.as_raw_fd(), interface.name);
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let queues = names.filter(|name| name.as_encoded_bytes().starts_with(b"tx-")).count() as u32;
    Some(queues).filter(|&queues| queues > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests;

    #[test]
    fn only_queues_in_use_are_counted() {
        let Some(lab) = for_tests::lab_with(4) else { return };
        let netns = lab.netns("right");
        let right0 = crate::interface(Some(&netns), "right0").unwrap();
        let count = |interface: &Interface| {
            netns::run_in(Some(&netns), || Ok(transmit_queues(interface))).unwrap()
        };
        assert_eq!(count(&right0), Some(4), "as it was made");
        let mut command = std::process::Command::new("ethtool");
        command.args(["-L", "right0", "rx", "3", "tx", "2"]);
        let status = netns::spawn(&netns, &mut command).unwrap().wait().unwrap();
        assert!(status.success());
        assert_eq!(count(&right0), Some(2), "there is room for 4, and 3 receive");
        assert_eq!(count(&Interface { name: "left0".into(), ..right0 }), None, "another host's");
    }
}
