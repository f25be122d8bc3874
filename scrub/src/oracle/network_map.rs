//! A map of networks.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// A value for each of some networks.
#[derive(Clone, Debug)]
pub(super) struct NetworkMap<T> {
    entries: HashMap<IpNet, T>,
    /// The prefix lengths of IPv4 and of IPv6, longest first.
    lengths: [Vec<u8>; 2],
}

impl<T> Default for NetworkMap<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), lengths: Default::default() }
    }
}

impl<T> NetworkMap<T> {
    /// Returns a network's value, which is `default` if it had none.
    pub(super) fn entry(&mut self, network: IpNet, default: T) -> &mut T {
        let lengths = &mut self.lengths[usize::from(network.addr().is_ipv6())];
        let length = network.prefix_len();
        if let Err(at) = lengths.binary_search_by_key(&Reverse(length), |it| Reverse(*it)) {
            lengths.insert(at, length);
        }
        self.entries.entry(network.trunc()).or_insert(default)
    }

    /// Returns the networks that contain an address, longest first, with their values.
    pub(super) fn covering(&self, address: IpAddr) -> impl Iterator<Item = (IpNet, &T)> {
        self.lengths[usize::from(address.is_ipv6())].iter().filter_map(move |length| {
            let network = network_of(address, *length);
            self.entries.get(&network).map(|value| (network, value))
        })
    }
}

/// Returns the network of a length that contains an address.
pub(super) fn network_of(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(address, length).expect("a length of the address's version").trunc()
}
