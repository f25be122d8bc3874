//! Separates the clients' packets of a capture from the servers', to send them out of two ports.
//!
//! The sender of a TCP SYN is the client of its conversation. Otherwise it is the host whose port is 1024 or
//! more, if the other's is below; otherwise the client of the two hosts' first conversation; otherwise the
//! sender of the first packet. Packets without ports (ICMP, fragments, ARP) belong to their two hosts, which
//! are those of Ethernet in packets without IP addresses.

use std::collections::HashMap;
use std::net::IpAddr;

use sluicegate_base::headers::{self, Headers, Ip, be16, ethertype, protocol};

/// A side of the conversations in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that opens conversations.
    Client,
    /// The side that answers.
    Server,
}

/// An address of IP or Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Host {
    Ip(IpAddr),
    Mac([u8; 6]),
}

/// The two ends of a conversation, the lower one first, and its protocol.
type Conversation = ([(Host, u16); 2], u8);

/// Maximum of conversations, and of pairs of hosts, that are known: about 50 MB.
const MAX_KNOWN: usize = 1 << 18;

/// Assigns packets to sides. It knows the first conversations of the file; of others the port decides, then
/// the hosts' first conversation, then the lower address.
#[derive(Clone, Debug, Default)]
pub(super) struct Sides {
    /// The prefixes of clients; if there are none, conversations decide.
    clients: Vec<(IpAddr, u8)>,
    /// True if the lower end is the client.
    conversations: HashMap<Conversation, bool>,
    hosts: HashMap<[Host; 2], bool>,
}

impl Sides {
    pub(super) fn new(clients: &[(IpAddr, u8)]) -> Self {
        Self { clients: clients.to_vec(), ..Self::default() }
    }

    /// Forgets all conversations.
    pub(super) fn clear(&mut self) {
        self.conversations.clear();
        self.hosts.clear();
    }

    /// Returns the sender's side of an Ethernet frame, the next one in the file.
    pub(super) fn sender_of(&mut self, frame: &[u8]) -> Side {
        let Some(found) = headers::find(frame) else { return Side::Client };
        let [source, destination] = ends(frame, &found);
        if !self.clients.is_empty() {
            return match source {
                Host::Ip(address) if self.clients.iter().any(|it| contains(*it, address)) => {
                    Side::Client
                }
                _ => Side::Server,
            };
        }
        let sender_is_lower = source <= destination;
        let hosts = if sender_is_lower { [source, destination] } else { [destination, source] };
        let Some(transport) = found.ip.as_ref().and_then(|ip| Transport::of(frame, ip)) else {
            let client_is_lower = match self.hosts.get(&hosts) {
                Some(lower) => *lower,
                None if self.hosts.len() < MAX_KNOWN => {
                    self.hosts.insert(hosts, sender_is_lower);
                    sender_is_lower
                }
                None => true,
            };
            return side(client_is_lower == sender_is_lower);
        };
        let (from, to) = ((source, transport.ports[0]), (destination, transport.ports[1]));
        let from_is_lower = from <= to;
        let conversation = (if from_is_lower { [from, to] } else { [to, from] }, transport.kind);
        let known = self.conversations.get(&conversation).map(|lower| *lower == from_is_lower);
        let of_hosts = self.hosts.get(&hosts).map(|lower| *lower == sender_is_lower);
        let opens = transport.opens();
        let has_room = self.conversations.len() < MAX_KNOWN && self.hosts.len() < MAX_KNOWN;
        let first = if has_room { true } else { sender_is_lower };
        let is_client =
            opens.or(known).or(transport.has_client_port()).or(of_hosts).unwrap_or(first);
        if !has_room {
            return side(is_client);
        }
        if opens.is_some() || known.is_none() {
            self.conversations.insert(conversation, is_client == from_is_lower);
        }
        if opens.is_some() || of_hosts.is_none() {
            self.hosts.insert(hosts, is_client == sender_is_lower);
        }
        side(is_client)
    }
}

fn side(is_client: bool) -> Side {
    if is_client { Side::Client } else { Side::Server }
}

/// Returns the source and the destination of a frame, which has at least the Ethernet header.
fn ends(frame: &[u8], found: &Headers) -> [Host; 2] {
    let v4 = |at: usize| {
        let bytes = frame.get(at..)?.first_chunk::<4>()?;
        Some(Host::Ip(IpAddr::from(*bytes)))
    };
    let v6 = |at: usize| Some(Host::Ip(IpAddr::from(*frame.get(at..)?.first_chunk::<16>()?)));
    let by_ip = match &found.ip {
        Some(ip) if found.ethertype == ethertype::IPV6 => {
            v6(ip.source.start).zip(v6(ip.destination.start))
        }
        Some(ip) => v4(ip.source.start).zip(v4(ip.destination.start)),
        // The sender's and the target's address (RFC 826).
        None if found.ethertype == ethertype::ARP => {
            v4(found.network + 14).zip(v4(found.network + 24))
        }
        None => None,
    };
    let mac = |at: usize| {
        let bytes = frame.get(at..).and_then(<[u8]>::first_chunk::<6>);
        Host::Mac(bytes.copied().unwrap_or_default())
    };
    by_ip.map_or_else(|| [mac(6), mac(0)], |(source, destination)| [source, destination])
}

/// Reports whether a prefix contains an address.
fn contains((prefix, bits): (IpAddr, u8), address: IpAddr) -> bool {
    let differ = match (prefix, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
        _ => return false,
    };
    differ.leading_zeros() >= bits.into()
}

/// The ports and flags of a packet.
struct Transport {
    kind: u8,
    ports: [u16; 2],
    /// The flags of TCP.
    flags: u8,
}

impl Transport {
    /// Returns `None` for fragments, of which only the first has ports, and protocols without.
    fn of(frame: &[u8], ip: &Ip) -> Option<Self> {
        use protocol::{DCCP, SCTP, TCP, UDP, UDP_LITE};
        let at = ip.transport.clone().filter(|_| !ip.fragment)?;
        let kind = ip.protocol;
        if !matches!(kind, TCP | UDP | SCTP | DCCP | UDP_LITE) {
            return None;
        }
        let carried = &frame[at];
        let ports = [be16(carried, 0)?, be16(carried, 2)?];
        let flags = if kind == TCP { carried.get(13).copied().unwrap_or(0) } else { 0 };
        Some(Self { kind, ports, flags })
    }

    /// Reports whether the sender is the client, if the packet opens a TCP connection.
    fn opens(&self) -> Option<bool> {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        (self.flags & SYN != 0).then_some(self.flags & ACK == 0)
    }

    /// Reports whether the sender is the client, if one end has a server's port.
    fn has_client_port(&self) -> Option<bool> {
        let [is_server, to_server] = self.ports.map(|port| port < 1024);
        (is_server != to_server).then_some(to_server)
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use crate::rewrite::tests::frame;

    const A: [u8; 4] = [198, 18, 0, 1];
    const B: [u8; 4] = [198, 18, 0, 2];

    fn packet(from: [u8; 4], to: [u8; 4], kind: &str, ports: [u16; 2]) -> Vec<u8> {
        let ip = PacketBuilder::ethernet2([2, 0, 0, 0, 0, from[3]], [2, 0, 0, 0, 0, to[3]]);
        let ip = ip.ipv4(from, to, 64);
        let mut frame = Vec::new();
        let tcp = |ip: etherparse::PacketBuilderStep<etherparse::IpHeaders>| {
            ip.tcp(ports[0], ports[1], 1, 1)
        };
        match kind {
            "syn" => tcp(ip).syn().write(&mut frame, &[]),
            "syn-ack" => tcp(ip).syn().ack(2).write(&mut frame, &[]),
            "ack" => tcp(ip).ack(2).write(&mut frame, &[]),
            "icmp" => ip.icmpv4_echo_request(1, 1).write(&mut frame, &[]),
            _ => ip.udp(ports[0], ports[1]).write(&mut frame, &[]),
        }
        .unwrap();
        frame
    }

    fn arp(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, from[3]];
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, from[3]]);
        frame.extend([&from[..], &[0; 6], &to].concat());
        frame
    }

    #[test]
    fn the_client_of_a_conversation_is_known_by_its_packets() {
        use Side::{Client, Server};
        let (there, back) = ([40_000, 5000], [5000, 40_000]);
        for (sentence, packets) in [
            (
                "the sender of a SYN",
                vec![(packet(B, A, "syn", there), Client), (packet(A, B, "ack", back), Server)],
            ),
            (
                "the receiver of the answer to a SYN",
                vec![(packet(A, B, "syn-ack", back), Server), (packet(B, A, "ack", there), Client)],
            ),
            (
                "a SYN that follows older packets",
                vec![
                    (packet(A, B, "ack", back), Client),
                    (packet(B, A, "syn", there), Client),
                    (packet(A, B, "ack", back), Server),
                ],
            ),
            (
                "the higher port beside a server's, also second",
                vec![
                    (packet(A, B, "udp", [53, 40_000]), Server),
                    (packet(B, A, "udp", [40_000, 53]), Client),
                ],
            ),
            (
                "the first sender",
                vec![(packet(B, A, "udp", there), Client), (packet(A, B, "udp", back), Server)],
            ),
            (
                "hosts whose conversation is known, without ports and with others",
                vec![
                    (packet(B, A, "syn", there), Client),
                    (packet(A, B, "icmp", [0; 2]), Server),
                    (packet(B, A, "icmp", [0; 2]), Client),
                    (arp(A, B), Server),
                    (packet(A, B, "udp", [6000, 6000]), Server),
                ],
            ),
            (
                "both, in different conversations",
                vec![
                    (packet(A, B, "syn", there), Client),
                    (packet(B, A, "syn", [40_001, 80]), Client),
                    (packet(B, A, "ack", back), Server),
                    (packet(A, B, "ack", [80, 40_001]), Server),
                ],
            ),
            (
                "the first sender of neither IP nor ARP",
                vec![
                    (vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x88, 0xb5], Client),
                    (vec![2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0x88, 0xb5], Server),
                ],
            ),
        ] {
            let mut sides = Sides::default();
            for (number, (packet, side)) in packets.iter().enumerate() {
                assert_eq!(sides.sender_of(packet), *side, "{sentence}: packet {number}");
            }
        }
    }

    #[test]
    fn prefixes_name_the_clients() {
        let clients = [("198.18.0.0/31"), ("2001:db8::1/128")].map(|text| {
            let (address, bits) = text.split_once('/').unwrap();
            (address.parse().unwrap(), bits.parse().unwrap())
        });
        let mut sides = Sides::new(&clients);
        for (packet, side) in [
            (packet(A, B, "syn-ack", [80, 40_000]), Side::Client),
            (packet(B, A, "syn", [40_000, 80]), Side::Server),
            (arp(A, B), Side::Client),
            (arp(B, A), Side::Server),
            (frame(1, true, 17, &[0; 8]), Side::Client),
            (vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x88, 0xb5], Side::Server),
        ] {
            assert_eq!(sides.sender_of(&packet), side, "{packet:?}");
        }
    }

    #[test]
    fn every_prefix_of_a_packet_has_a_side() {
        for packet in [packet(A, B, "syn", [1, 2]), arp(A, B), frame(1, true, 17, &[0; 8])] {
            for bytes in 0..packet.len() {
                Sides::default().sender_of(&packet[..bytes]);
            }
        }
    }
}
