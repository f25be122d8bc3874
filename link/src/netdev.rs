//! XDP abilities of a driver, reported by the kernel.
//!
//! Uses the generic netlink family "netdev" (Linux 6.3); reading needs no privilege. Sources: linux/netdev.h,
//! linux/genetlink.h, Documentation/netlink/specs/netdev.yaml.

use std::ffi::OsString;
use std::fs;
use std::os::fd::AsRawFd;

use netlink_sys::protocols::NETLINK_GENERIC;
use sluicegate_base::error::{Error, Result};

use super::netlink::{Body, attribute, half, word};
use super::{Interface, Netlink, netns};

/// Bytes of a `struct genlmsghdr` (linux/genetlink.h).
const GENL_HEADER_BYTES: usize = 4;

// linux/netdev.h
const NETDEV_FAMILY_NAME: &str = "netdev";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 1 << 3;
const NETDEV_XDP_RX_METADATA_TIMESTAMP: u64 = 1;
const NETDEV_XDP_RX_METADATA_HASH: u64 = 2;
const NETDEV_XDP_RX_METADATA_VLAN_TAG: u64 = 4;

/// XDP abilities of an interface's driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpAbilities {
    /// `NETDEV_XDP_ACT_` bits (linux/netdev.h); 0 if the driver has no native XDP.
    pub actions: u64,
    /// Maximum of pieces of a packet in zero-copy mode. `None` if the driver lacks that mode, or the kernel
    /// does not report it (before 6.6).
    pub zero_copy_pieces: Option<u32>,
    /// The metadata that a program can read; none if the kernel does not report it (before 6.7).
    pub metadata: Option<Metadata>,
}

impl XdpAbilities {
    /// True if it sends packets that an XDP program redirects to it. Some drivers do so only with a program
    /// attached, a veth only while its other end has NAPI.
    pub fn sends_redirected(&self) -> bool {
        self.actions & NETDEV_XDP_ACT_NDO_XMIT != 0
    }

    /// True if AF_XDP sockets can use the driver's own buffers.
    pub fn zero_copy(&self) -> bool {
        self.actions & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0
    }
}

/// Metadata of a received packet that an XDP program can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The card's timestamp (`bpf_xdp_metadata_rx_timestamp`).
    pub timestamp: bool,
    /// The card's hash (`bpf_xdp_metadata_rx_hash`).
    pub hash: bool,
    /// The VLAN tag that the card removed (`bpf_xdp_metadata_rx_vlan_tag`, Linux 6.8).
    pub vlan_tag: bool,
}

/// Returns the XDP abilities of an interface's driver; `None` if the kernel does not report them (before
/// 6.3). The interface is in the namespace `netns`, or in this thread's.
///
/// # Errors
/// The errors of [`netns::run_in`]; no such interface.
pub fn xdp_abilities(netns: Option<&str>, interface: &Interface) -> Result<Option<XdpAbilities>> {
    let failed =
        |error| Error::system("ask for the XDP abilities of", interface.name.as_str(), error);
    let mut netlink = Netlink::open_to(netns, NETLINK_GENERIC)?;
    // All versions of these families accept requests of version 1.
    let request = |command| Body::begin([command, 1, 0, 0], &[]);
    let by_name = request(libc::CTRL_CMD_GETFAMILY as u8)
        .with_text(libc::CTRL_ATTR_FAMILY_NAME as u16, NETDEV_FAMILY_NAME);
    let id = |body: &[u8]| number(body, libc::CTRL_ATTR_FAMILY_ID as u16);
    let family = match netlink.get(libc::GENL_ID_CTRL as u16, &by_name, id) {
        Ok(Some(family)) => family as u16,
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(failed(error)),
        _ => return Ok(None),
    };
    let device = request(NETDEV_CMD_DEV_GET).with_number(NETDEV_A_DEV_IFINDEX, interface.index);
    netlink.get(family, &device, |body| Some(abilities(body))).map_err(failed)
}

fn abilities(body: &[u8]) -> XdpAbilities {
    let metadata = number(body, NETDEV_A_DEV_XDP_RX_METADATA_FEATURES);
    XdpAbilities {
        actions: number(body, NETDEV_A_DEV_XDP_FEATURES).unwrap_or_default(),
        zero_copy_pieces: number(body, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).map(|pieces| pieces as u32),
        metadata: metadata.map(|bits| Metadata {
            timestamp: bits & NETDEV_XDP_RX_METADATA_TIMESTAMP != 0,
            hash: bits & NETDEV_XDP_RX_METADATA_HASH != 0,
            vlan_tag: bits & NETDEV_XDP_RX_METADATA_VLAN_TAG != 0,
        }),
    }
}

/// Returns the number in an answer's attribute, of two, four or eight bytes.
fn number(body: &[u8], kind: u16) -> Option<u64> {
    let value = attribute(body.get(GENL_HEADER_BYTES..)?, kind)?;
    match value.len() {
        2 => half(value, 0).map(u64::from),
        4 => word(value, 0).map(u64::from),
        _ => value.try_into().ok().map(u64::from_ne_bytes),
    }
}

/// Returns the number of transmit queues that all senders share, each under its lock (`real_num_tx_queues` of
/// linux/netdevice.h); `None` if sysfs is not accessible. Call it in the interface's network namespace. Needs
/// CAP_SYS_ADMIN.
///
/// ethtool also counts queues that a driver reserves for XDP programs (virtio_net does), and rtnetlink counts
/// all allocated ones. sysfs has a folder for each queue that the host uses (net/core/net-sysfs.c,
/// netdev_queue_update_kobjects).
pub fn transmit_queues(interface: &Interface) -> Option<u32> {
    active_queues(interface, "tx-")
}

/// Returns the number of receive queues in use (`real_num_rx_queues` of linux/netdevice.h), as
/// [`transmit_queues`] does.
pub fn receive_queues(interface: &Interface) -> Option<u32> {
    active_queues(interface, "rx-")
}

/// Counts the queues in sysfs whose names begin with `prefix`.
fn active_queues(interface: &Interface, prefix: &str) -> Option<u32> {
    let interfaces = netns::sysfs_interfaces().ok()?;
    let folder = format!("/proc/self/fd/{}/{}/queues", interfaces.as_raw_fd(), interface.name);
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let of_kind = |name: &OsString| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    let queues = names.filter(of_kind).count() as u32;
    Some(queues).filter(|&queues| queues > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests;

    /// Encodes an attribute as in a message.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        Body::default().with(kind, value).as_ref().to_vec()
    }

    #[test]
    fn an_answer_says_what_it_says_and_no_more() {
        let answer = |attributes: &[(u16, &[u8])]| {
            let header = [NETDEV_CMD_DEV_GET, 1, 0, 0];
            let attributes = attributes.iter().flat_map(|(kind, value)| attribute(*kind, value));
            header.into_iter().chain(attributes).collect::<Vec<u8>>()
        };
        let all = Metadata { timestamp: true, hash: true, vlan_tag: true };
        let (seven, five) = (7u64.to_ne_bytes(), 5u64.to_ne_bytes());
        let rows = [
            ("nothing at all", Vec::new(), XdpAbilities::default()),
            ("no attributes", answer(&[]), XdpAbilities::default()),
            (
                "Linux 6.3",
                answer(&[(1, &[2, 0, 0, 0]), (3, &five)]),
                XdpAbilities { actions: 5, ..XdpAbilities::default() },
            ),
            (
                "all of them, and one that nobody knows",
                answer(&[(99, b"odd"), (3, &seven), (4, &8u32.to_ne_bytes()), (5, &seven)]),
                XdpAbilities { actions: 7, zero_copy_pieces: Some(8), metadata: Some(all) },
            ),
            (
                "some of the metadata",
                answer(&[(5, &five)]),
                XdpAbilities {
                    metadata: Some(Metadata { hash: false, ..all }),
                    ..XdpAbilities::default()
                },
            ),
            ("a number of three bytes", answer(&[(5, &[1, 2, 3])]), XdpAbilities::default()),
        ];
        for (sentence, body, expected) in rows {
            assert_eq!(abilities(&body), expected, "{sentence}");
        }
    }

    #[test]
    fn an_attribute_cut_short_ends_the_answer() {
        let whole = attribute(NETDEV_A_DEV_XDP_FEATURES, &7u64.to_ne_bytes());
        for bytes in 0..whole.len() {
            let body = [&[1, 1, 0, 0], &whole[..bytes]].concat();
            assert_eq!(abilities(&body), XdpAbilities::default(), "{bytes} bytes of it");
        }
    }

    #[test]
    fn loopback_has_no_metadata() {
        let lo = crate::interface(None, "lo").unwrap();
        let Some(abilities) = xdp_abilities(None, &lo).unwrap() else {
            println!("skipped: needs the family netdev; get it by Linux 6.3");
            return;
        };
        assert_eq!((abilities.actions, abilities.zero_copy_pieces), (0, None));
        assert_eq!(abilities.metadata.unwrap_or_default(), Metadata::default());
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        let nowhere = Interface { index: i32::MAX as u32, ..crate::interface(None, "lo").unwrap() };
        match xdp_abilities(None, &nowhere) {
            Err(error) => assert_eq!(error.errno(), Some(libc::ENODEV), "{error}"),
            Ok(found) => assert_eq!(found, None, "only an old kernel says nothing"),
        }
    }

    #[test]
    fn a_veth_has_all_metadata() {
        let Some(lab) = for_tests::lab() else { return };
        let netns = lab.netns("right");
        let right0 = crate::interface(Some(&netns), "right0").unwrap();
        let found = xdp_abilities(Some(&netns), &right0).unwrap().and_then(|it| it.metadata);
        let Some(metadata) = found else {
            println!("skipped: needs to hear what drivers tell; get it by Linux 6.7");
            return;
        };
        assert!(metadata.timestamp && metadata.hash, "{metadata:?}");
    }

    #[test]
    fn only_queues_in_use_are_counted() {
        let Some(lab) = for_tests::lab_with(4) else { return };
        let netns = lab.netns("right");
        let right0 = crate::interface(Some(&netns), "right0").unwrap();
        let count = |interface: &Interface| {
            netns::run_in(Some(&netns), || Ok(transmit_queues(interface))).unwrap()
        };
        let receive = || netns::run_in(Some(&netns), || Ok(receive_queues(&right0))).unwrap();
        assert_eq!(count(&right0), Some(4), "as it was made");
        let mut command = std::process::Command::new("ethtool");
        command.args(["-L", "right0", "rx", "3", "tx", "2"]);
        let status = netns::spawn(&netns, &mut command).unwrap().wait().unwrap();
        assert!(status.success());
        assert_eq!(count(&right0), Some(2), "there is room for 4, and 3 receive");
        assert_eq!(receive(), Some(3));
        assert_eq!(count(&Interface { name: "left0".into(), ..right0 }), None, "another host's");
    }
}
