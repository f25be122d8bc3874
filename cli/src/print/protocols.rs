//! Names of the protocols above IP (IANA's registry).

use sluicegate::headers::protocol::{
    AUTHENTICATION, DCCP, GRE, ICMP, ICMPV6, SCTP, TCP, UDP, UDP_LITE,
};

/// Number, name in counts and objects, and name in the lines of packets without details: tcpdump's, empty if
/// it prints the number.
const PROTOCOLS: [(u8, &str, &str); 18] = [
    (ICMP, "icmp", ""),
    (2, "igmp", "igmp"),
    (TCP, "tcp", ""),
    (UDP, "udp", ""),
    (DCCP, "dccp", "DCCP"),
    (46, "rsvp", "RSVP"),
    (GRE, "gre", "GRE"),
    (50, "esp", ""),
    (AUTHENTICATION, "ah", "AH"),
    (ICMPV6, "icmp6", ""),
    (88, "eigrp", "EIGRP"),
    (89, "ospf", "OSPF"),
    (103, "pim", "PIM"),
    (108, "ipcomp", "IPComp"),
    (112, "vrrp", "VRRP"),
    (SCTP, "sctp", ""),
    (135, "mobility", "mobility"),
    (UDP_LITE, "udplite", ""),
];

/// Returns a protocol's short name.
pub fn protocol_name(number: u8) -> Option<&'static str> {
    PROTOCOLS.iter().find(|(known, ..)| *known == number).map(|(_, name, _)| *name)
}

/// Returns a protocol's name in the lines of packets without details.
pub fn name_in_lines(number: u8) -> Option<&'static str> {
    let found = PROTOCOLS.iter().find(|(known, ..)| *known == number);
    found.map(|(.., name)| *name).filter(|name| !name.is_empty())
}
