//! Expressions that filters are tried with, and the link types of capture files.

use std::path::Path;

/// One of each thing the language can ask for.
pub const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "not ip",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "igmp",
    "ah",
    "esp",
    "vrrp",
    "ip proto 47",
    "ip6 proto 58",
    "ip protochain 6",
    "ip6 protochain 17",
    "ether proto 0x88cc",
    "ether proto \\arp",
    "ether host 01:80:c2:00:00:0e",
    "ether src 00:00:00:00:00:00 or ether dst ff:ff:ff:ff:ff:ff",
    "ether broadcast",
    "ether multicast",
    "ether[0] & 1 = 0 and ip[16] >= 224",
    "ip broadcast",
    "ip multicast",
    "ip6 multicast",
    "host 10.0.0.1",
    "src host 192.168.0.1 or dst host 192.168.0.1",
    "net 10.0.0.0/8",
    "src net 192.168 and not dst net 192.168",
    "net 172.16.0.0 mask 255.240.0.0",
    "ip6 net fe80::/10",
    "ip6 host ::1",
    "port 53",
    "udp port 53 or tcp port 80",
    "src port 179 or dst port 179",
    "portrange 1-1023",
    "udp dst portrange 5000-65535",
    "sctp port 2905",
    "vlan",
    "vlan 100",
    "vlan and ip",
    "vlan and vlan and udp",
    "mpls",
    "mpls and mpls",
    "mpls and ip",
    "pppoed",
    "pppoes",
    "pppoes and ip",
    "geneve",
    "geneve and ip",
    "llc",
    "stp",
    "iso",
    "isis",
    "atalk or ipx or decnet",
    "len > 100",
    "len = 60 or len <= 42",
    "greater 1000",
    "less 64",
    "ip[6:2] & 0x1fff != 0",
    "ip[6] & 0x20 != 0 and not udp",
    "ip[8] < 5",
    "ip[0] & 0xf != 5",
    "ip[2:2] != len - 14",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[tcpflags] == tcp-ack",
    "tcp[13] = 2 and tcp[14:2] > 1000",
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "icmp[icmptype] = icmp-echo or icmp[icmptype] = icmp-echoreply",
    "icmp[icmptype] != 8",
    "icmp6[icmp6type] = icmp6-neighborsolicit",
    "ip6[6] = 17 and ip6[40:2] = 53",
    "udp[8:4] > udp[4:2]",
    "ip[ip[0] & 0xf] = 6",
    "ether[ether[14] & 0x3f:2] > 0x100",
    "ether[ip[2:2]:4] = 0",
    "udp[udp[4:2] - 4:4] != 0",
    "ether[len - 1] = 0",
    "ether[len - 4:4] % 7 = 3",
    "ip[4:2] / (ip[8] & 7) > 3000",
    "ip[4:2] % ip[8] = 1 or ip[4:2] ^ 0xffff < 100",
    "ip[12] << (ip[15] & 0x3f) > 0x100 or ip[12] >> ip[15] = 1",
    "-ip[12] < 0xffffff80",
    "(tcp or udp) and not (port 53 or port 80) and (ip or ip6 or vlan)",
    "not (not (not udp) and not (tcp or not icmp))",
    "udp and (net 10.0.0.0/8 or ip6) or tcp[0:2] = tcp[2:2] or arp[6:2] = 1",
];

/// The LINKTYPE_ number as it stands in the file, which libpcap shows only translated.
pub fn link_type(path: &Path) -> u16 {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize, size: usize, big_endian: bool| {
        let mut bytes = bytes[at..at + size].to_vec();
        if big_endian {
            bytes.reverse();
        }
        bytes.iter().rev().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte))
    };
    // Of the number in a pcap header the upper bits speak of the frame check sequence.
    match bytes[..4] {
        [0xa1, ..] => number(20, 4, true) as u16,
        [0x0a, 0x0d, 0x0d, 0x0a] => {
            let big_endian = bytes[8] == 0x1a;
            let mut at = 0;
            while number(at, 4, big_endian) != 1 {
                at += number(at + 4, 4, big_endian) as usize;
            }
            number(at + 8, 2, big_endian) as u16
        }
        _ => number(20, 4, false) as u16,
    }
}
