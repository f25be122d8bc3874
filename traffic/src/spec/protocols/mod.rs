//! One file a protocol family: where its fields stand, and what follows from the layers around.

pub(crate) mod arp;
pub(crate) mod bytes;
pub(crate) mod ethernet;
pub(crate) mod icmp;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod mpls;
pub(crate) mod tcp;
pub(crate) mod tunnel;
pub(crate) mod udp;

/// Differentiated services (RFC 8126's registry): classes of traffic with names.
const DSCP: &[(&str, u64)] = &[
    ("cs0", 0),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Explicit congestion notification (RFC 3168).
const ECN: &[(&str, u64)] = &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];

/// IP protocols and IPv6 next headers that have names here.
const IP_PROTOCOLS: &[(&str, u64)] = &[
    ("hop-by-hop", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("ipv6", 41),
    ("routing", 43),
    ("fragment", 44),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("destination", 60),
    ("ospf", 89),
    ("sctp", 132),
];
