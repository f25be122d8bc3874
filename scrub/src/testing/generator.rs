//! Random frames, near a policy's edges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::policies::random_network;
use super::udp::random_query;
use super::{Fragment, FrameSpec, Random, TunnelSpec};
use crate::packet::{fragment, protocol};
use crate::policy::{
    AMPLIFICATION, AddressCondition, Conditions, FlagCondition, PayloadCondition, Policy, Range,
    RuleAction, UdpQuery,
};

/// Maximum of an IP packet's length that a condition makes.
const MAX_LENGTH: u16 = 2000;

/// Makes frames whose fields are in the networks and ranges of a policy, or just beside.
///
/// Half of the frames try to meet the conditions of one rule. Some are answers of amplification classes, some have VLAN
/// tags, options, extension headers or are fragments. One in five is a tunnel with a packet inside, and one in eight is
/// damaged.
#[derive(Clone, Debug)]
pub struct FrameGenerator {
    sources: [Vec<IpNet>; 2],
    destinations: [Vec<IpNet>; 2],
    /// With the queries that they challenge.
    rules: Vec<(Conditions, Option<UdpQuery>)>,
    sets: Vec<Vec<IpNet>>,
}

impl FrameGenerator {
    /// Returns the generator for a policy.
    pub fn new(policy: &Policy) -> Self {
        let sets: Vec<_> = policy.sets.iter().map(|set| set.networks.clone()).collect();
        let rules = policy.rules.iter().map(|rule| {
            let query = match &rule.action {
                RuleAction::Challenge(challenge) => Some(challenge.query),
                _ => None,
            };
            (rule.conditions.clone(), query)
        });
        let mut generator = Self {
            sources: Default::default(),
            destinations: Default::default(),
            rules: rules.collect(),
            sets,
        };
        for network in policy.networks.iter().flat_map(|it| &it.networks) {
            generator.destinations[family(network)].push(*network);
        }
        for network in generator.sets.iter().flatten() {
            generator.sources[family(network)].push(*network);
        }
        generator
    }

    /// Returns a frame.
    pub fn frame(&self, random: &mut Random) -> Vec<u8> {
        if random.one_in(40) {
            return other_frame(random);
        }
        let mut spec = self.spec(random);
        if random.one_in(5) {
            spec = self.tunnel(&spec, random);
            if random.one_in(8) {
                spec = self.tunnel(&spec, random);
            }
        }
        let mut frame = spec.build();
        if random.one_in(8) {
            damage(&mut frame, random);
        }
        frame
    }

    /// Returns the fields of a frame with a packet inside of a tunnel.
    fn tunnel(&self, inner: &FrameSpec, random: &mut Random) -> FrameSpec {
        let flags = random.pick(&[0, 0, 0, 0x2000, 0x3000, 0x8000, 0xb000, 0x4000, 0x0001, 0x0880]);
        let kind = random.pick(&[TunnelSpec::IpIp, TunnelSpec::Gre(flags)]);
        let outer = self.spec(random);
        let mut spec = inner.inside(&FrameSpec { fragment: None, ..outer.clone() }, kind);
        if random.one_in(8) {
            spec.fragment = outer.fragment;
        }
        if random.one_in(8) {
            // Bytes that belong to the tunnel, and not to the packet inside; or too few.
            let length = (spec.payload.len() + 20).saturating_sub(random.below(60));
            spec.payload.resize(length, 0xee);
        }
        spec
    }

    /// Returns the fields of a frame, which may contradict each other.
    pub fn spec(&self, random: &mut Random) -> FrameSpec {
        let rule = match self.rules.len() {
            0 => None,
            count => Some(random.below(count)).filter(|_| random.one_in(2)),
        };
        let rule = rule.map(|place| &self.rules[place]);
        let version = rule.and_then(|(it, _)| self.version_of(it, random));
        let is_v6 = version.unwrap_or(if random.below(5) < 3 { 4 } else { 6 }) == 6;
        let mut spec = FrameSpec {
            src: self.address(&self.sources[usize::from(is_v6)], is_v6, random),
            dst: self.address(&self.destinations[usize::from(is_v6)], is_v6, random),
            ttl: random.pick(&[1, 64, 128, 254, 255]),
            dscp: random.pick(&[0, 0, 10, 46, 63]),
            flow_label: random.pick(&[0, 1, 0x1234, 0xf_ffff]),
            protocol: random.pick(&[6, 6, 6, 17, 17, 17, 1, 58, 47, 59]),
            sport: random_port(random),
            dport: random_port(random),
            tcp_flags: random.pick(&[0x02, 0x10, 0x10, 0x12, 0x14, 0x18, 0x11, 0x04, 0xd8]),
            icmp_type: random.pick(&[0, 3, 8, 128, 129, 133, 135, 137]),
            icmp_code: random.pick(&[0, 0, 1, 4]),
            df: random.one_in(2),
            ..FrameSpec::default()
        };
        let length = random.pick(&[0, 1, 8, 11, 12, 40, 64, 100, 201, 472, 1460]);
        spec.payload = random.bytes(length);
        add_structure(&mut spec, is_v6, random);
        if random.one_in(8) {
            make_answer(&mut spec, random);
        } else if let Some((conditions, query)) = rule {
            self.meet(conditions, &mut spec, is_v6, random);
            if let Some(query) = *query
                && !random.one_in(4)
            {
                spec.protocol = protocol::UDP;
                spec.payload = random_query(query, random);
            }
        } else if is_v6 && random.one_in(10) {
            spec.protocol = protocol::ICMPV6;
            spec.ttl = random.pick(&[255, 255, 254]);
            spec.icmp_type = random.pick(&[132, 133, 134, 135, 136, 137, 138]);
        }
        if random.one_in(64) {
            spec.dst = spec.src;
            if random.one_in(2) {
                // BFD Echo, or nearly.
                (spec.protocol, spec.dport) = (protocol::UDP, 3785 + u16::from(random.one_in(4)));
                spec.ttl = random.pick(&[253, 254, 255]);
            }
        }
        spec
    }

    /// Returns the version of the packets that meet conditions, if only one can.
    fn version_of(&self, conditions: &Conditions, random: &mut Random) -> Option<u8> {
        if conditions.version.is_some() || !conditions.flow_label.is_empty() {
            return conditions.version.or(Some(6));
        }
        let lists: Vec<_> =
            [&conditions.src, &conditions.dst].into_iter().filter(|it| !it.is_empty()).collect();
        let networks = self.networks_of(lists.first()?);
        let network = networks.get(random.below(networks.len().max(1)))?;
        Some(if family(network) == 1 { 6 } else { 4 })
    }

    fn networks_of(&self, conditions: &[AddressCondition]) -> Vec<IpNet> {
        let networks = conditions.iter().flat_map(|it| match it {
            AddressCondition::Network(network) => std::slice::from_ref(network),
            AddressCondition::Set(place) => &self.sets[*place],
        });
        networks.copied().collect()
    }

    /// Returns an address in one of some networks or beside, or near those of random policies.
    fn address(&self, networks: &[IpNet], is_v6: bool, random: &mut Random) -> IpAddr {
        if !networks.is_empty() && !random.one_in(5) {
            let network = random.pick(networks);
            return address_near(&network, random);
        }
        if random.one_in(16) {
            let odd = ["127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0", "240.0.0.1"];
            let odd6 = ["::1", "ff02::1", "::", "::ffff:192.0.2.1", "fe80::1"];
            return random.pick(if is_v6 { &odd6 } else { &odd }).parse().expect("an address");
        }
        loop {
            let network = random_network(random);
            if family(&network) == usize::from(is_v6) {
                return address_near(&network, random);
            }
        }
    }

    /// Makes the fields meet conditions, most of the time.
    fn meet(
        &self,
        conditions: &Conditions,
        spec: &mut FrameSpec,
        is_v6: bool,
        random: &mut Random,
    ) {
        let of_family = |list: &[AddressCondition]| -> Vec<_> {
            let networks = self.networks_of(list).into_iter();
            networks.filter(|it| family(it) == usize::from(is_v6)).collect()
        };
        for (list, address) in [(&conditions.src, &mut spec.src), (&conditions.dst, &mut spec.dst)]
        {
            let networks = of_family(list);
            if !networks.is_empty() && !random.one_in(16) {
                *address = address_near(&random.pick(&networks), random);
            }
        }
        if !conditions.icmp_type.is_empty() || !conditions.icmp_code.is_empty() {
            spec.protocol = if is_v6 { protocol::ICMPV6 } else { protocol::ICMP };
        }
        let ports = [&conditions.port, &conditions.sport, &conditions.dport];
        if ports.iter().any(|it| !it.is_empty()) {
            spec.protocol = random.pick(&[protocol::TCP, protocol::UDP]);
        }
        if !conditions.tcp_flags.is_empty() {
            spec.protocol = protocol::TCP;
        }
        if !conditions.protocol.is_empty() && !random.one_in(8) {
            spec.protocol = random.pick(&conditions.protocol);
        }
        if random.one_in(2) {
            set_near(&mut spec.sport, &conditions.port, random);
        } else {
            set_near(&mut spec.dport, &conditions.port, random);
        }
        set_near(&mut spec.sport, &conditions.sport, random);
        set_near(&mut spec.dport, &conditions.dport, random);
        set_near(&mut spec.ttl, &conditions.ttl, random);
        set_near(&mut spec.dscp, &conditions.dscp, random);
        set_near(&mut spec.icmp_type, &conditions.icmp_type, random);
        set_near(&mut spec.icmp_code, &conditions.icmp_code, random);
        set_near(&mut spec.flow_label, &conditions.flow_label, random);
        spec.dscp &= 0x3f;
        if !conditions.vlan.is_empty() {
            let mut vlan = 0;
            set_near(&mut vlan, &conditions.vlan, random);
            if spec.tags.is_empty() && vlan != 0 {
                spec.tags.push((0x8100, 0));
            }
            if let Some((_, tci)) = spec.tags.first_mut() {
                *tci = vlan & 0x0fff | (random.below(8) as u16) << 13;
            }
        }
        if let Some(flags) = pick_flags(&conditions.tcp_flags, random) {
            spec.tcp_flags = spec.tcp_flags & !flags.mask | flags.value & flags.mask;
        }
        if let Some(bits) = pick_flags(&conditions.fragment, random) {
            spec.df = bits.value & fragment::DF != 0;
            spec.fragment = match bits.value & (fragment::FIRST | fragment::LATER) {
                0 => None,
                fragment::FIRST => Some(Fragment { offset: 0, more: true }),
                _ => {
                    let more = bits.mask & fragment::LAST != 0 && bits.value & fragment::LAST == 0;
                    Some(Fragment { offset: 185, more })
                }
            };
        }
        if let Some(payload) = &conditions.payload {
            put_payload(&mut spec.payload, payload, random);
        }
        if !conditions.length.is_empty() {
            let ip = spec.build().len() - 14 - 4 * spec.tags.len() - spec.padding;
            let headers = ip - spec.payload.len();
            let mut length = 0;
            set_near(&mut length, &conditions.length, random);
            let length = usize::from(length.min(MAX_LENGTH));
            spec.payload.resize(length.saturating_sub(headers), 0);
        }
    }
}

/// Adds VLAN tags, options, extension headers, fragments and padding.
fn add_structure(spec: &mut FrameSpec, is_v6: bool, random: &mut Random) {
    let tags = random.pick(&[0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3]);
    let tags = if tags == 3 && !random.one_in(3) { 0 } else { tags };
    for _ in 0..tags {
        let tpid = random.pick(&[0x8100, 0x88a8]);
        spec.tags.push((tpid, random.pick(&[0, 1, 100, 4094, 0xe000, 0xf064])));
    }
    if random.one_in(6) {
        spec.options = 4 * random.below(11);
    }
    if random.one_in(4) {
        spec.tcp_options = 4 * random.below(11);
    }
    if is_v6 && random.one_in(3) {
        let count = random.pick(&[1, 1, 1, 2, 2, 3, 4, 5, 6, 7]);
        spec.extensions = (0..count).map(|_| random.pick(&[0, 43, 44, 51, 60])).collect();
    }
    if random.one_in(10) {
        let offset = random.pick(&[0, 0, 1, 2, 185, 0x1f00, 0x1fff]);
        spec.fragment = Some(Fragment { offset, more: random.one_in(2) });
    }
    if random.one_in(6) {
        spec.padding = random.below(47);
    }
}

/// Makes an answer of an amplification class, or nearly one.
fn make_answer(spec: &mut FrameSpec, random: &mut Random) {
    let class = random.pick(AMPLIFICATION);
    spec.protocol = protocol::UDP;
    spec.sport = class.port;
    let length = i32::from(class.min_payload) + random.pick(&[-1, 0, 0, 1, 30]);
    spec.payload = random.bytes(length as usize);
    if let Some(byte) = class.byte
        && let Some(at) = spec.payload.get_mut(usize::from(byte.offset))
        && !random.one_in(4)
    {
        *at = *at & !byte.mask | byte.value;
    }
}

/// Returns a frame that is not IP, or any bytes.
fn other_frame(random: &mut Random) -> Vec<u8> {
    let length = random.pick(&[14, 17, 18, 22, 33, 34, 54, 60]);
    let mut frame = random.bytes(length);
    let ethertype: u16 = random.pick(&[0x0806, 0x88cc, 0x8100, 0x88a8, 0x0800, 0x86dd, 46]);
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

/// Changes or cuts some bytes. At least 14 stay.
fn damage(frame: &mut Vec<u8>, random: &mut Random) {
    match random.below(4) {
        0 => frame.truncate(14 + random.below(frame.len() - 13)),
        1 => {
            let end = frame.len().min(90);
            let at = 12 + random.below(end - 12);
            frame[at] = random_byte(random);
        }
        2 => {
            let end = frame.len().min(90);
            let at = 12 + random.below(end - 12);
            frame[at] ^= 1 << random.below(8);
        }
        _ => {
            for _ in 0..=random.below(4) {
                let at = 12 + random.below(frame.len() - 12);
                frame[at] = random.pick(&[0, 1, 0x45, 0x7f, 0xff]);
            }
        }
    }
}

fn put_payload(payload: &mut Vec<u8>, condition: &PayloadCondition, random: &mut Random) {
    let offset = usize::from(condition.offset);
    let end = offset + condition.value.len();
    if payload.len() < end {
        payload.resize(end, 0);
    }
    let target = payload[offset..].iter_mut().zip(&condition.value).zip(&condition.mask);
    target.for_each(|((byte, value), mask)| *byte = *byte & !mask | value & mask);
    match random.below(8) {
        0 => payload.truncate(end - 1),
        1 => payload[end - 1] ^= 1 << random.below(8),
        2 => payload.truncate(end),
        _ => {}
    }
}

/// Sets a field to a value in one of some ranges, mostly at an edge, and seldom just outside.
fn set_near<T>(field: &mut T, ranges: &[Range<T>], random: &mut Random)
where
    T: Copy + Into<u64> + TryFrom<u64>,
{
    if ranges.is_empty() {
        return;
    }
    let range = random.pick(ranges);
    let (first, last) = (range.first.into(), range.last.into());
    let value = match random.below(10) {
        0 => first.wrapping_sub(1),
        1 => last + 1,
        2..=4 => first,
        5..=7 => last,
        _ => random.between(first, last),
    };
    if let Ok(value) = T::try_from(value) {
        *field = value;
    }
}

/// Returns one of the conditions, and seldom one that contradicts it.
fn pick_flags(conditions: &[FlagCondition], random: &mut Random) -> Option<FlagCondition> {
    if conditions.is_empty() {
        return None;
    }
    let mut flags = random.pick(conditions);
    if random.one_in(8) {
        flags.value ^= 1 << random.below(8);
    }
    Some(flags)
}

/// Returns a network's first or last address, one within, or one just outside.
fn address_near(network: &IpNet, random: &mut Random) -> IpAddr {
    let kind = random.below(8);
    match network {
        IpNet::V4(it) => {
            let (first, last) = (u32::from(it.network()), u32::from(it.broadcast()));
            Ipv4Addr::from(match kind {
                0 => first.wrapping_sub(1),
                1 => last.wrapping_add(1),
                2 => first,
                3 => last,
                _ => first | random.number() as u32 & u32::from(it.hostmask()),
            })
            .into()
        }
        IpNet::V6(it) => {
            let (first, last) = (u128::from(it.network()), u128::from(it.broadcast()));
            let bits = u128::from(random.number()) << 64 | u128::from(random.number());
            Ipv6Addr::from(match kind {
                0 => first.wrapping_sub(1),
                1 => last.wrapping_add(1),
                2 => first,
                3 => last,
                _ => first | bits & u128::from(it.hostmask()),
            })
            .into()
        }
    }
}

fn family(network: &IpNet) -> usize {
    usize::from(matches!(network, IpNet::V6(_)))
}

fn random_port(random: &mut Random) -> u16 {
    let any = random.number() as u16;
    random.pick(&[1, 53, 80, 123, 443, 1024, 11_211, 40_000, 65_535, any, any, any])
}

fn random_byte(random: &mut Random) -> u8 {
    random.number() as u8
}
