//! Records: conditions of rules, and their form in an image.
//!
//! A record takes a line, which decides most packets. A second one, in another table, has what few rules ask for, and is read
//! if the first one matches.

use std::ops::RangeInclusive;

use crate::image::LINE_BYTES;
use crate::policy::FlagCondition;
use crate::prefix::Prefix;
use crate::sets::SetBits;

/// Bytes of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadMatch {
    /// The offset from the end of the known headers.
    pub offset: u16,
    /// The bytes there.
    pub value: [u8; 8],
    /// The bits that are compared.
    pub mask: [u8; 8],
    /// The number of bytes that the payload must have from the offset on.
    pub bytes: u8,
}

/// The conditions of one record, all of which a packet meets. Ranges are inclusive.
///
/// A field that a packet does not have is 0: conditions on ports, flags, and ICMP need one on the protocol beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConditions {
    /// 4 or 6; None for both.
    pub version: Option<u8>,
    /// Source; of the version, if not any.
    pub src: Prefix,
    /// Destination; of the version, if not any.
    pub dst: Prefix,
    /// Sets, one of which has the source; 0 for any address.
    pub src_sets: SetBits,
    /// As `src_sets`, of the destination.
    pub dst_sets: SetBits,
    /// The protocol; None for any.
    pub protocol: Option<u8>,
    /// Source port.
    pub sport: RangeInclusive<u16>,
    /// Destination port.
    pub dport: RangeInclusive<u16>,
    /// Bytes of the IP packet; the last number includes all longer packets.
    pub length: RangeInclusive<u16>,
    /// Time to live.
    pub ttl: RangeInclusive<u8>,
    /// Differentiated services.
    pub dscp: RangeInclusive<u8>,
    /// The number of the VLAN; 0 for packets without tag.
    pub vlan: RangeInclusive<u16>,
    /// TCP flags.
    pub tcp_flags: FlagCondition,
    /// Bits of [`crate::packet::fragment`].
    pub fragment: FlagCondition,
    /// ICMP type.
    pub icmp_type: RangeInclusive<u8>,
    /// ICMP code.
    pub icmp_code: RangeInclusive<u8>,
    /// The flow label of IPv6, of 20 bits.
    pub flow_label: RangeInclusive<u32>,
    /// Bytes of the payload.
    pub payload: Option<PayloadMatch>,
}

/// The highest flow label.
const MAX_FLOW_LABEL: u32 = 0xf_ffff;

impl Default for RecordConditions {
    /// Returns the conditions that any packet meets.
    fn default() -> Self {
        Self {
            version: None,
            src: Prefix::default(),
            dst: Prefix::default(),
            src_sets: 0,
            dst_sets: 0,
            protocol: None,
            sport: 0..=u16::MAX,
            dport: 0..=u16::MAX,
            length: 0..=u16::MAX,
            ttl: 0..=u8::MAX,
            dscp: 0..=u8::MAX,
            vlan: 0..=u16::MAX,
            tcp_flags: FlagCondition::default(),
            fragment: FlagCondition::default(),
            icmp_type: 0..=u8::MAX,
            icmp_code: 0..=u8::MAX,
            flow_label: 0..=MAX_FLOW_LABEL,
            payload: None,
        }
    }
}

impl RecordConditions {
    /// Returns true if some packet meets the version's condition.
    pub(super) fn has_version(&self, version: u8) -> bool {
        self.version.is_none_or(|it| it == version)
    }

    /// Returns true if the vectors of version, protocol, ports, length, and 16 bits of addresses decide on all conditions.
    pub(super) fn vectors_decide(&self) -> bool {
        let short = |prefix: Prefix| if prefix.bits <= 16 { Prefix::default() } else { prefix };
        let rest = Self {
            version: None,
            src: short(self.src),
            dst: short(self.dst),
            protocol: None,
            sport: 0..=u16::MAX,
            dport: 0..=u16::MAX,
            length: 0..=u16::MAX,
            ..self.clone()
        };
        rest == Self::default()
    }

    fn has_rest(&self) -> bool {
        let any = Self::default();
        self.src.bits > 64
            || self.dst.bits > 64
            || (self.src_sets, self.dst_sets) != (any.src_sets, any.dst_sets)
            || self.flow_label != any.flow_label
            || self.payload.is_some()
    }
}

/// Flags of records (bpf/record.h).
const V4: u8 = 1;
const V6: u8 = 2;
const ANY_PROTOCOL: u8 = 4;

/// The order, action and links in the first line of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordHead {
    pub order: u32,
    pub action: u32,
    /// The number of the record to compare next; 0 for none.
    pub next: u32,
    /// The number of the second line; 0 for none.
    pub rest: u32,
}

impl RecordConditions {
    /// Returns `struct scrub_rule`.
    pub(super) fn encode(&self, head: RecordHead) -> [u8; LINE_BYTES] {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.has_version(4), V4)
            | flag(self.has_version(6), V6)
            | flag(self.protocol.is_none(), ANY_PROTOCOL);
        let mut line = Vec::with_capacity(LINE_BYTES);
        for address in [self.src.address, self.dst.address] {
            line.extend(((address >> 64) as u64).to_ne_bytes());
        }
        line.extend(head.order.to_ne_bytes());
        line.extend(head.action.to_ne_bytes());
        for range in [&self.sport, &self.dport, &self.length, &self.vlan] {
            line.extend(range.start().to_ne_bytes());
            line.extend(range.end().to_ne_bytes());
        }
        for range in [&self.ttl, &self.dscp, &self.icmp_type, &self.icmp_code] {
            line.extend([*range.start(), *range.end()]);
        }
        for bits in [self.tcp_flags, self.fragment] {
            line.extend([bits.mask, bits.value & bits.mask]);
        }
        line.extend([self.src.bits, self.dst.bits, self.protocol.unwrap_or(0), flags]);
        line.extend(head.next.to_ne_bytes());
        line.extend(head.rest.to_ne_bytes());
        line.try_into().expect("it fills a line")
    }

    /// Returns `struct scrub_rule_rest`; none if no condition needs it.
    pub(super) fn encode_rest(&self) -> Option<[u8; LINE_BYTES]> {
        if !self.has_rest() {
            return None;
        }
        let place = self.payload.map_or(0, |it| u64::from(it.offset) | u64::from(it.bytes) << 16);
        let last = u64::from(*self.flow_label.end().min(&MAX_FLOW_LABEL));
        let labels = match u64::from(*self.flow_label.start()) {
            first if first <= last => first | last << 20,
            // No label: the first one is above the last.
            _ => 1,
        };
        let mut rest = Vec::with_capacity(LINE_BYTES);
        for address in [self.src.address, self.dst.address] {
            rest.extend((address as u64).to_ne_bytes());
        }
        rest.extend(self.src_sets.to_ne_bytes());
        rest.extend(self.dst_sets.to_ne_bytes());
        rest.extend(self.payload.map_or([0; 8], |it| it.value));
        rest.extend(self.payload.map_or([0; 8], |it| it.mask));
        rest.extend((labels | place << 40).to_ne_bytes());
        rest.resize(LINE_BYTES, 0);
        rest.try_into().ok()
    }
}
