//! The return path: the interface by which packets to protected networks leave, and their headers there.

use std::net::Ipv4Addr;
use std::sync::Arc;

use sluicegate::link::{Interface, Mac};
use sluicegate::xdp::live::SharedCounters;

/// Bytes of a header of IPv4.
const IPV4_BYTES: u32 = 20;
/// Bytes of a header of TCP.
const TCP_BYTES: u32 = 20;
/// The lowest MSS: a path of IPv6 takes packets of 1,280 bytes, one of IPv4 of 576.
pub const MIN_MSS: u32 = 536;
/// Words of `struct scrub_next_hop`.
pub(super) const NEXT_HOP_WORDS: usize = 4;

/// Where packets that pass leave to protected networks. All other packets that pass go to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnPath {
    /// The interface.
    pub interface: Interface,
    /// The number of the VLAN tag that packets get.
    pub vlan: Option<u16>,
    /// The tunnel that packets enter.
    pub gre: Option<Gre>,
    /// The next hop at the start.
    pub next_hop: NextHop,
}

/// A tunnel by GRE over IPv4 (RFC 2784, RFC 2890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gre {
    /// The outer source address.
    pub src: Ipv4Addr,
    /// The outer destination address.
    pub dst: Ipv4Addr,
    /// The key.
    pub key: Option<u32>,
}

/// The next hop of a return path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Its Ethernet address.
    pub dst_mac: Mac,
    /// The interface's Ethernet address.
    pub src_mac: Mac,
    /// Maximum bytes of a packet there, with the tunnel's headers.
    pub mtu: u32,
    /// Maximum MSS of TCP over IPv4; over IPv6 it is 20 less. None leaves it unchanged.
    pub mss: Option<u16>,
}

impl Gre {
    /// Returns the bytes of its headers, IPv4 included.
    pub fn bytes(&self) -> u32 {
        IPV4_BYTES + if self.key.is_some() { 8 } else { 4 }
    }
}

/// Returns the MSS over IPv4 whose segments fit into an MTU, within a tunnel.
pub fn fitting_mss(mtu: u32, gre: Option<Gre>) -> u16 {
    let headers = gre.map_or(0, |it| it.bytes()) + IPV4_BYTES + TCP_BYTES;
    mtu.saturating_sub(headers).clamp(MIN_MSS, u16::MAX.into()) as u16
}

impl ReturnPath {
    /// Returns the bytes of `struct scrub_return`.
    pub(super) fn encode(&self) -> [u8; 24] {
        let gre = self.gre.unwrap_or(Gre {
            src: Ipv4Addr::UNSPECIFIED,
            dst: Ipv4Addr::UNSPECIFIED,
            key: None,
        });
        let words = [
            self.interface.index,
            self.gre.map_or(0, |it| it.bytes()),
            gre.src.into(),
            gre.dst.into(),
            gre.key.unwrap_or(0),
        ];
        let mut bytes = [0; 24];
        bytes[..20].copy_from_slice(words.map(u32::to_ne_bytes).as_flattened());
        bytes[20..22].copy_from_slice(&self.vlan.unwrap_or(0).to_ne_bytes());
        bytes
    }
}

/// Changes the next hop of a running program.
#[derive(Clone)]
pub struct NextHopWriter(pub(super) Arc<SharedCounters>);

impl std::fmt::Debug for NextHopWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NextHopWriter").finish_non_exhaustive()
    }
}

impl NextHopWriter {
    /// Sets the next hop, a word at a time: a packet meanwhile may leave with the new address and the old MTU.
    pub fn set(&self, next_hop: &NextHop) {
        let NextHop { dst_mac, src_mac, mtu, mss } = next_hop;
        let word = |Mac([a, b, c, d, e, f]): Mac| u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
        // The length of a packet has 16 bits.
        let mtu = (*mtu).min(u16::MAX.into());
        let words = [word(*dst_mac), word(*src_mac), mtu.into(), mss.unwrap_or(0).into()];
        (0..NEXT_HOP_WORDS).zip(words).for_each(|(at, word)| self.0.set(at, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mss_leaves_room_for_the_headers() {
        let gre = Gre { src: Ipv4Addr::LOCALHOST, dst: Ipv4Addr::LOCALHOST, key: None };
        let keyed = Gre { key: Some(0), ..gre };
        for (mtu, gre, mss) in [
            (1500, None, 1460),
            (1500, Some(gre), 1436),
            (1500, Some(keyed), 1432),
            (1524, Some(gre), 1460),
            (68, Some(gre), 536),
            (65_536, None, 65_496),
        ] {
            assert_eq!(fitting_mss(mtu, gre), mss, "{mtu} {gre:?}");
        }
    }
}
