//! Changes to interfaces: veth pairs, addresses, routes, neighbours, up and down.
//!
//! All need `CAP_NET_ADMIN`; a pair across namespaces needs it in both. Source: veth(4).

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use libc::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

use super::interface::link;
use super::netlink::{Body, family};
use super::next_hop::neighbour;
use super::{Address, Mac, Netlink, netns, refused};
use sluicegate_base::error::Result;

const ADMIN: &str = "CAP_NET_ADMIN";
/// The attribute of a veth's other end (linux/veth.h).
const VETH_INFO_PEER: u16 = 1;

/// One end of a new veth pair.
#[derive(Clone, Debug)]
pub struct VethEnd<'a> {
    /// The interface's name.
    pub name: &'a str,
    /// Its namespace; by default the socket's.
    pub netns: Option<&'a str>,
    /// Its Ethernet address; by default the kernel chooses one.
    pub mac: Option<Mac>,
}

impl Netlink {
    /// Creates a veth pair, each end with `queues` receive and transmit queues.
    ///
    /// # Errors
    /// A name is taken; a namespace does not exist; a missing `CAP_NET_ADMIN`.
    pub fn add_veth(&mut self, left: &VethEnd<'_>, right: &VethEnd<'_>, queues: u32) -> Result<()> {
        let object = format!("{}-{}", left.name, right.name);
        // The kernel takes the namespaces by descriptor, so both stay open until it has answered.
        let left_netns = left.netns.map(netns::open).transpose()?;
        let right_netns = right.netns.map(netns::open).transpose()?;
        let peer = end_link(right, right_netns.as_ref(), queues);
        let data = Body::default().with(VETH_INFO_PEER, peer);
        let info = Body::default().with_text(libc::IFLA_INFO_KIND, "veth");
        let info = info.with(libc::IFLA_INFO_DATA, data);
        let pair = end_link(left, left_netns.as_ref(), queues).with(libc::IFLA_LINKINFO, info);
        self.change(libc::RTM_NEWLINK, &pair, NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| refused("create veth pair", object, ADMIN, e))
    }

    /// Removes an interface. One end of a veth pair takes the other with it.
    ///
    /// # Errors
    /// No such interface; it cannot be removed; a missing `CAP_NET_ADMIN`.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        let link = link(self.index(name)?);
        self.change(libc::RTM_DELLINK, &link, 0).map_err(|e| refused("delete", name, ADMIN, e))
    }

    /// Sets an interface up or down.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`.
    pub fn set_up(&mut self, name: &str, up: bool) -> Result<()> {
        let operation = if up { "switch on" } else { "switch off" };
        let flag = libc::IFF_UP.cast_unsigned();
        let flags = if up { flag } else { 0 };
        self.set(name, operation, |index| Body::of(&[0, index, flags, flag]))
    }

    /// Sets the MTU: the maximum bytes of a packet after its link-layer header.
    ///
    /// # Errors
    /// No such interface; an invalid MTU; a missing `CAP_NET_ADMIN`.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<()> {
        self.set(name, "set the MTU of", |it| link(it).with_number(libc::IFLA_MTU, mtu))
    }

    /// Sets the number of packets that may wait to be sent.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`.
    pub fn set_queue_length(&mut self, name: &str, packets: u32) -> Result<()> {
        let length = |it| link(it).with_number(libc::IFLA_TXQLEN, packets);
        self.set(name, "set the queue length of", length)
    }

    /// Sets the Ethernet address of an interface.
    ///
    /// # Errors
    /// No such interface; its address is fixed; a missing `CAP_NET_ADMIN`.
    pub fn set_mac(&mut self, name: &str, mac: Mac) -> Result<()> {
        self.set(name, "set the address of", |it| link(it).with(libc::IFLA_ADDRESS, mac.0))
    }

    /// Sets the alias of an interface, which `ip link` shows.
    ///
    /// # Errors
    /// No such interface; a text of more than 255 bytes; a missing `CAP_NET_ADMIN`.
    pub fn set_alias(&mut self, name: &str, text: &str) -> Result<()> {
        self.set(name, "set the alias of", |it| link(it).with_text(libc::IFLA_IFALIAS, text))
    }

    fn set(
        &mut self,
        name: &str,
        operation: &'static str,
        change: impl FnOnce(u32) -> Body,
    ) -> Result<()> {
        let change = change(self.index(name)?);
        self.change(libc::RTM_SETLINK, &change, 0).map_err(|e| refused(operation, name, ADMIN, e))
    }

    /// Adds an address to an interface, without duplicate address detection, so that it is usable at once.
    ///
    /// # Errors
    /// No such interface; it already has the address; a missing `CAP_NET_ADMIN`.
    pub fn add_address(&mut self, name: &str, address: Address) -> Result<()> {
        let flags = if address.ip.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let begin = [family(address.ip), address.prefix, flags, 0];
        let request = Body::begin(begin, &[self.index(name)?])
            .with_ip(libc::IFA_LOCAL, address.ip)
            .with_ip(libc::IFA_ADDRESS, address.ip);
        self.change(libc::RTM_NEWADDR, &request, NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| refused("add address", format!("{address} to {name}"), ADMIN, e))
    }

    /// Adds a route to a prefix, through a gateway on the interface's link.
    ///
    /// # Errors
    /// No such interface, or it is down; the gateway is not on its link; a missing `CAP_NET_ADMIN`.
    pub fn add_route(&mut self, name: &str, prefix: Address, gateway: IpAddr) -> Result<()> {
        let [table, protocol, kind] = [libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RTN_UNICAST];
        let rest = u32::from_ne_bytes([table, protocol, libc::RT_SCOPE_UNIVERSE, kind]);
        let request = Body::begin([family(prefix.ip), prefix.prefix, 0, 0], &[rest, 0])
            .with_ip(libc::RTA_DST, prefix.ip)
            .with_ip(libc::RTA_GATEWAY, gateway)
            .with_number(libc::RTA_OIF, self.index(name)?);
        self.change(libc::RTM_NEWROUTE, &request, NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| refused("add route", format!("{prefix} via {gateway}"), ADMIN, e))
    }

    /// Adds a permanent neighbour entry to an interface, which then does not resolve the address.
    ///
    /// # Errors
    /// No such interface, or it is down; a missing `CAP_NET_ADMIN`.
    pub fn add_neighbour(&mut self, name: &str, ip: IpAddr, mac: Mac) -> Result<()> {
        let permanent = neighbour(ip, self.index(name)?, libc::NUD_PERMANENT);
        let request = permanent.with_ip(libc::NDA_DST, ip).with(libc::NDA_LLADDR, mac.0);
        self.change(libc::RTM_NEWNEIGH, &request, NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| refused("add neighbour", format!("{ip} to {name}"), ADMIN, e))
    }
}

fn end_link(end: &VethEnd<'_>, netns: Option<&File>, queues: u32) -> Body {
    let mut request = link(0)
        .with_text(libc::IFLA_IFNAME, end.name)
        .with_number(libc::IFLA_NUM_TX_QUEUES, queues)
        .with_number(libc::IFLA_NUM_RX_QUEUES, queues);
    if let Some(netns) = netns {
        request = request.with_number(libc::IFLA_NET_NS_FD, netns.as_raw_fd().cast_unsigned());
    }
    match end.mac {
        Some(mac) => request.with(libc::IFLA_ADDRESS, mac.0),
        None => request,
    }
}
