//! Changes to interfaces: veth pairs, addresses, neighbours, on and off.
//!
//! All need `CAP_NET_ADMIN`; a pair across namespaces also needs it in both. Source: veth(4).

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};

use super::next_hop::family;
use super::{Address, Mac, Netlink, netns, refused};
use sluicegate_base::error::Result;

const ADMIN: &str = "CAP_NET_ADMIN";

/// One end of a veth pair to be made.
#[derive(Clone, Debug)]
pub struct VethEnd<'a> {
    /// The interface's name.
    pub name: &'a str,
    /// The namespace it is made in; the socket's if none.
    pub netns: Option<&'a str>,
    /// Its Ethernet address; the kernel makes one up if none.
    pub mac: Option<Mac>,
}

impl Netlink {
    /// Makes a veth pair, each end with `queues` receive and transmit queues.
    ///
    /// # Errors
    /// A name that is taken, a namespace that is not there, a missing `CAP_NET_ADMIN`.
    pub fn add_veth(&mut self, left: &VethEnd<'_>, right: &VethEnd<'_>, queues: u32) -> Result<()> {
        let object = format!("{}-{}", left.name, right.name);
        // The kernel takes the namespaces by descriptor: both stay open until it has answered.
        let left_netns = left.netns.map(netns::open).transpose()?;
        let right_netns = right.netns.map(netns::open).transpose()?;
        let peer = end_message(right, right_netns.as_ref(), queues);
        let mut message = end_message(left, left_netns.as_ref(), queues);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| refused("create veth pair", object, ADMIN, e))
    }

    /// Removes an interface; with one end of a veth pair goes the other.
    ///
    /// # Errors
    /// No such interface, one that cannot be removed, a missing `CAP_NET_ADMIN`.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        self.change(RouteNetlinkMessage::DelLink(message), 0)
            .map_err(|e| refused("delete", name, ADMIN, e))
    }

    /// Switches an interface on or off.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`.
    pub fn set_up(&mut self, name: &str, up: bool) -> Result<()> {
        let operation = if up { "switch on" } else { "switch off" };
        self.set(name, operation, |message| {
            message.header.change_mask = LinkFlags::Up;
            message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        })
    }

    /// Sets the most bytes that a packet may have after its link-layer header.
    ///
    /// # Errors
    /// No such interface, an MTU that it cannot have, a missing `CAP_NET_ADMIN`.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<()> {
        self.set(name, "set the MTU of", |message| {
            message.attributes = vec![LinkAttribute::Mtu(mtu)]
        })
    }

    /// Sets how many packets may wait to be sent.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`.
    pub fn set_queue_length(&mut self, name: &str, packets: u32) -> Result<()> {
        self.set(name, "set the queue length of", |message| {
            message.attributes = vec![LinkAttribute::TxQueueLen(packets)]
        })
    }

    /// Gives an interface another Ethernet address.
    ///
    /// # Errors
    /// No such interface, one that keeps its address, a missing `CAP_NET_ADMIN`.
    pub fn set_mac(&mut self, name: &str, mac: Mac) -> Result<()> {
        self.set(name, "set the address of", |message| {
            message.attributes = vec![LinkAttribute::Address(mac.0.to_vec())]
        })
    }

    /// Writes what an interface is for, where `ip link` shows it.
    ///
    /// # Errors
    /// No such interface, a text of more than 255 bytes, a missing `CAP_NET_ADMIN`.
    pub fn set_alias(&mut self, name: &str, text: &str) -> Result<()> {
        self.set(name, "set the alias of", |message| {
            message.attributes = vec![LinkAttribute::IfAlias(text.to_owned())]
        })
    }

    fn set(
        &mut self,
        name: &str,
        operation: &'static str,
        change: impl FnOnce(&mut LinkMessage),
    ) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        change(&mut message);
        self.change(RouteNetlinkMessage::SetLink(message), 0)
            .map_err(|e| refused(operation, name, ADMIN, e))
    }

    /// Gives an interface an address, without duplicate address detection: it is usable at once.
    ///
    /// # Errors
    /// No such interface, an address it has already, a missing `CAP_NET_ADMIN`.
    pub fn add_address(&mut self, name: &str, address: Address) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.ip);
        message.header.prefix_len = address.prefix;
        message.header.index = self.index(name)?;
        message.attributes =
            vec![AddressAttribute::Local(address.ip), AddressAttribute::Address(address.ip)];
        if address.ip.is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| refused("add address", format!("{address} to {name}"), ADMIN, e))
    }

    /// Adds a route to a prefix, through a gateway on the interface's link.
    ///
    /// # Errors
    /// No such interface, or one that is off; a gateway that is not on its link; a missing
    /// `CAP_NET_ADMIN`.
    pub fn add_route(&mut self, name: &str, prefix: Address, gateway: IpAddr) -> Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(prefix.ip);
        message.header.destination_prefix_length = prefix.prefix;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            RouteAttribute::Destination(prefix.ip.into()),
            RouteAttribute::Gateway(gateway.into()),
            RouteAttribute::Oif(self.index(name)?),
        ];
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| refused("add route", format!("{prefix} via {gateway}"), ADMIN, e))
    }

    /// Adds a permanent neighbour entry to an interface: it does not resolve the address.
    ///
    /// # Errors
    /// No such interface, or one that is off; a missing `CAP_NET_ADMIN`.
    pub fn add_neighbour(&mut self, name: &str, ip: IpAddr, mac: Mac) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(ip);
        message.header.ifindex = self.index(name)?;
        message.header.state = NeighbourState::Permanent;
        let destination = match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(destination),
            NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
        ];
        self.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| refused("add neighbour", format!("{ip} to {name}"), ADMIN, e))
    }
}

fn end_message(end: &VethEnd<'_>, netns: Option<&File>, queues: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(end.name.to_owned()),
        LinkAttribute::NumTxQueues(queues),
        LinkAttribute::NumRxQueues(queues),
    ];
    if let Some(netns) = netns {
        message.attributes.push(LinkAttribute::NetNsFd(netns.as_raw_fd()));
    }
    if let Some(mac) = end.mac {
        message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
    }
    message
}
