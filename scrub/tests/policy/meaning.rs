//! Conditions of an expression match the packets that the expression's program matches.

use std::net::IpAddr;

use sluicegate_filter::Filter;
use sluicegate_scrub::policy::{AddressCondition, Conditions, FlagCondition, Range};

use crate::conditions;

const ETHERNET: u16 = 1;

/// Expressions of one condition, or few.
const PRIMITIVES: &[&str] = &[
    "ip",
    "ip6",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "igmp",
    "esp",
    "proto 47",
    "ip proto 6",
    "ip6 proto 17",
    "port 53",
    "src port 53",
    "dst port 5",
    "udp port 53",
    "tcp dst port 80",
    "udp src port 5 or 80",
    "portrange 5-60",
    "dst portrange 80-53",
    "src host 198.18.0.1",
    "dst host 2001:db8::1",
    "src net 198.18.0.0/15",
    "dst net 198",
    "src net 2001:db8::/32",
    "ip dst net 198.18.0.0/24",
    "less 64",
    "less 13",
    "greater 64",
    "greater 9",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
    "tcp[13] & tcp-ack != 0",
    "tcp[13] & 0x12 != 2",
    "tcp[13] = 2",
    "tcp[13] != 16",
    "icmp[icmptype] = icmp-echo",
    "icmp[icmpcode] = 1",
    "(tcp or udp)",
    "(src net 198.18.0.0/24 or 10)",
];

struct Packet {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    is_later_fragment: bool,
    sport: u16,
    dport: u16,
    flags: u8,
    icmp: [u8; 2],
    payload: u16,
}

impl Packet {
    fn has_ports(&self) -> bool {
        matches!(self.protocol, 6 | 17) && !self.is_later_fragment
    }

    fn has_icmp(&self) -> bool {
        matches!(self.protocol, 1 | 58) && !self.is_later_fragment
    }

    /// Returns the frame, and the length of the IP packet.
    fn frame(&self) -> (Vec<u8>, u16) {
        let mut transport = [self.sport.to_be_bytes(), self.dport.to_be_bytes()].concat();
        if matches!(self.protocol, 1 | 58) {
            transport = self.icmp.to_vec();
        }
        transport.resize(20 + usize::from(self.payload), 0);
        if self.protocol == 6 {
            transport[12..14].copy_from_slice(&[5 << 4, self.flags]);
        }
        let mut frame = vec![0; 12];
        let length = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let length = 20 + transport.len() as u16;
                frame.extend([8, 0, 0x45, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([0, 0, 0, u8::from(self.is_later_fragment), 64, self.protocol, 0, 0]);
                frame.extend([src.octets(), dst.octets()].concat());
                length
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((transport.len() as u16).to_be_bytes());
                frame.extend([self.protocol, 64]);
                frame.extend([src.octets(), dst.octets()].concat());
                40 + transport.len() as u16
            }
            _ => unreachable!("addresses are of one version"),
        };
        frame.extend(transport);
        (frame, length)
    }

    fn meets(&self, it: &Conditions, length: u16) -> bool {
        let version = if self.src.is_ipv4() { 4 } else { 6 };
        let icmp =
            |list: &[Range<u8>], value| list.is_empty() || (self.has_icmp() && any(list, value));
        let port = |list: &[Range<u16>], values: &[u16]| {
            list.is_empty() || (self.has_ports() && values.iter().any(|port| any(list, *port)))
        };
        it.version.is_none_or(|it| it == version)
            && (it.protocol.is_empty() || it.protocol.contains(&self.protocol))
            && has(&it.src, self.src)
            && has(&it.dst, self.dst)
            && port(&it.port, &[self.sport, self.dport])
            && port(&it.sport, &[self.sport])
            && port(&it.dport, &[self.dport])
            && any(&it.length, length)
            && icmp(&it.icmp_type, self.icmp[0])
            && icmp(&it.icmp_code, self.icmp[1])
            && (it.tcp_flags.is_empty() || (self.protocol == 6 && self.has_flags(&it.tcp_flags)))
    }

    fn has_flags(&self, list: &[FlagCondition]) -> bool {
        !self.is_later_fragment && list.iter().any(|it| self.flags & it.mask == it.value)
    }
}

fn any<T: PartialOrd>(list: &[Range<T>], value: T) -> bool {
    list.is_empty() || list.iter().any(|it| it.first <= value && value <= it.last)
}

fn has(list: &[AddressCondition], address: IpAddr) -> bool {
    let has = |it: &AddressCondition| matches!(it, AddressCondition::Network(net) if net.contains(&address));
    list.is_empty() || list.iter().any(has)
}

/// Returns packets whose values occur in the expressions, or next to them.
fn packets() -> Vec<Packet> {
    let mut state = 1_u64;
    let mut below = |count: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    let v4 = ["198.18.0.1", "198.18.7.9", "198.19.0.1", "198.20.0.1", "10.0.0.1"];
    let v6 = ["2001:db8::1", "2001:db8::2", "2001:db9::1"];
    let packet = |_| {
        let addresses: &[&str] = if below(3) > 0 { &v4 } else { &v6 };
        let [src, dst] =
            [(); 2].map(|()| addresses[below(addresses.len())].parse::<IpAddr>().unwrap());
        Packet {
            is_later_fragment: src.is_ipv4() && below(6) == 0,
            src,
            dst,
            protocol: [1, 2, 6, 6, 6, 17, 17, 17, 47, 50, 58][below(11)],
            sport: [4, 5, 6, 53, 60, 61, 80][below(7)],
            dport: [4, 5, 6, 53, 60, 61, 80][below(7)],
            flags: [0, 2, 16, 18, 20, 255][below(6)],
            icmp: [[0, 8, 9][below(3)], below(3) as u8],
            payload: [0, 9, 10, 11, 99][below(5)],
        }
    };
    (0..400).map(packet).collect()
}

#[test]
fn conditions_match_what_the_expression_matches() {
    let packets: Vec<_> = packets().into_iter().map(|it| (it.frame(), it)).collect();
    let mut expressions: Vec<_> = PRIMITIVES.iter().map(|it| (*it).to_owned()).collect();
    for one in PRIMITIVES {
        expressions.push(format!("not {one}"));
        for other in PRIMITIVES {
            expressions.push(format!("{one} and {other}"));
            expressions.push(format!("{one} or {other}"));
            expressions.push(format!("not ({one}) and {other}"));
            expressions.push(format!("udp or {one} and {other}"));
        }
    }
    let (mut compared, mut none_match) = (0, 0);
    for expression in expressions {
        let read = conditions(&format!("'{expression}'"));
        // Next to `or` or `not`, an operand that never matches is an error, too.
        let joins_all = !expression.contains("or") && !expression.contains("not");
        let never = match &read {
            Ok(_) => false,
            Err(error) if error.to_string().contains("no packet matches") && joins_all => true,
            // No rule matches that.
            Err(_) => continue,
        };
        let filter = match Filter::compile(&expression, ETHERNET) {
            Ok(filter) => filter,
            // "expression rejects all packets"
            Err(error) => {
                assert!(error.to_string().contains("rejects all"), "{expression}: {error}");
                assert!(never, "{expression}: {error}");
                continue;
            }
        };
        for ((frame, length), packet) in &packets {
            let expected = filter.matches(frame, frame.len() as u32);
            let meets = read.as_ref().is_ok_and(|it| packet.meets(it, *length));
            assert_eq!(meets, expected, "{expression}: {read:?} on {frame:02x?}");
        }
        compared += usize::from(!never);
        none_match += usize::from(never);
    }
    assert!(compared > 1000 && none_match > 50, "{compared} {none_match}");
}
