//! Other addresses for packets that are sent once more: of Ethernet, IPv4, IPv6 and ARP.
//!
//! ```text
//!   rules: which address becomes which --> change: where they stand in a frame --> sum: checksums
//! ```
//!
//! Checksums that cover an address are corrected by what has changed (RFC 1624): what was right stays
//! right, and what was wrong stays wrong. Only a packet's own headers are changed, behind its VLAN
//! tags: not those inside a tunnel or quoted in ICMP errors, and no addresses in what it carries.

mod change;
mod rules;

pub use rules::{Rewrite, Rule};
