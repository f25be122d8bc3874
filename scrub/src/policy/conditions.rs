//! The conditions of a rule: for each field, the values that match.

use ipnet::IpNet;

/// Conditions on fields. An empty list is no condition; otherwise one of its entries must be met.
/// Conditions on ports, TCP flags and ICMP are met only by packets that have these fields, so never by later fragments.
/// Those on flow labels are met only by IPv6.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The IP version, 4 or 6.
    pub version: Option<u8>,
    /// Source addresses.
    pub src: Vec<AddressCondition>,
    /// Destination addresses.
    pub dst: Vec<AddressCondition>,
    /// Numbers of protocols: of IPv6, those behind the extension headers.
    pub protocol: Vec<u8>,
    /// Source or destination ports.
    pub port: Vec<Range<u16>>,
    /// Source ports.
    pub sport: Vec<Range<u16>>,
    /// Destination ports.
    pub dport: Vec<Range<u16>>,
    /// Bytes of IP packets.
    pub length: Vec<Range<u16>>,
    /// Times to live, or hop limits.
    pub ttl: Vec<Range<u8>>,
    /// DSCP.
    pub dscp: Vec<Range<u8>>,
    /// TCP flags.
    pub tcp_flags: Vec<FlagCondition>,
    /// Kinds of fragments, as bits of RFC 8955, 4.2.2.12.
    pub fragment: Vec<FlagCondition>,
    /// Types of ICMP or ICMPv6.
    pub icmp_type: Vec<Range<u8>>,
    /// Codes of ICMP or ICMPv6.
    pub icmp_code: Vec<Range<u8>>,
    /// VLAN numbers of the outer tag; 0 is no tag, or a priority tag.
    pub vlan: Vec<Range<u16>>,
    /// Flow labels of IPv6.
    pub flow_label: Vec<Range<u32>>,
    /// Bytes of the payload.
    pub payload: Option<PayloadCondition>,
}

/// An inclusive range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range<T> {
    /// The first value.
    pub first: T,
    /// The last value.
    pub last: T,
}

/// A condition on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressCondition {
    /// It is in a network.
    Network(IpNet),
    /// It is in a set, by its place in the policy.
    Set(usize),
}

/// A condition on bits: those of the mask have these values. Values of other bits do not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlagCondition {
    /// The bits that matter.
    pub mask: u8,
    /// Their values.
    pub value: u8,
}

/// A condition on bytes behind the transport header; of other protocols and later fragments, behind the IP headers.
/// A packet that ends before the last byte does not meet it. Values of bits outside the mask do not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadCondition {
    /// The first byte's offset.
    pub offset: u16,
    /// The values, at most 8 bytes.
    pub value: Vec<u8>,
    /// The bits that matter, as many bytes.
    pub mask: Vec<u8>,
}
