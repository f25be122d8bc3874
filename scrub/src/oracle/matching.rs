//! Conditions on packets.

use std::net::IpAddr;

use crate::packet::{Packet, Transport};
use crate::policy::{AddressCondition, Conditions, FlagCondition, PayloadCondition, Range};

/// A packet and the sets of its addresses.
pub(super) struct Subject<'a> {
    pub(super) packet: &'a Packet<'a>,
    pub(super) src_sets: u64,
    pub(super) dst_sets: u64,
}

impl Subject<'_> {
    /// Describes a field's value.
    pub(super) fn field_text(&self, field: &str) -> String {
        let packet = self.packet;
        let known = |is_known: bool, value: &dyn ToString| {
            if is_known { value.to_string() } else { "none".into() }
        };
        let has_ports = packet.has_ports();
        let is_icmp = packet.transport == Transport::Icmp;
        let value = match field {
            "version" => packet.version().to_string(),
            "src" => packet.src.to_string(),
            "dst" => packet.dst.to_string(),
            "protocol" => packet.protocol.to_string(),
            "port" if has_ports => format!("{} and {}", packet.sport, packet.dport),
            "sport" => known(has_ports, &packet.sport),
            "dport" => known(has_ports, &packet.dport),
            "length" => packet.length.to_string(),
            "ttl" => packet.ttl.to_string(),
            "dscp" => packet.dscp.to_string(),
            "tcp_flags" if packet.transport == Transport::Tcp => {
                format!("{:#04x}", packet.tcp_flags)
            }
            "fragment" => format!("{:#x}", packet.fragment),
            "icmp_type" => known(is_icmp, &packet.icmp_type),
            "icmp_code" => known(is_icmp, &packet.icmp_code),
            "vlan" => packet.vlan.to_string(),
            "flow_label" => known(packet.version() == 6, &packet.flow_label),
            "payload" => format!("{} bytes", packet.payload.len()),
            _ => "none".into(),
        };
        format!("{field} is {value}")
    }
}

/// Returns the name of the first field that does not meet its condition, or none if the packet matches.
pub(super) fn first_mismatch(
    conditions: &Conditions,
    subject: &Subject<'_>,
) -> Option<&'static str> {
    let packet = subject.packet;
    let has_ports = packet.has_ports();
    let is_tcp = packet.transport == Transport::Tcp;
    let is_icmp = packet.transport == Transport::Icmp;
    let is_v6 = packet.version() == 6;
    let either_port = |ranges: &[Range<u16>]| {
        ranges.is_empty()
            || (has_ports && (in_range(ranges, packet.sport) || in_range(ranges, packet.dport)))
    };
    let results = [
        ("version", conditions.version.is_none_or(|it| it == packet.version())),
        ("src", is_at(&conditions.src, packet.src, subject.src_sets)),
        ("dst", is_at(&conditions.dst, packet.dst, subject.dst_sets)),
        (
            "protocol",
            conditions.protocol.is_empty() || conditions.protocol.contains(&packet.protocol),
        ),
        ("port", either_port(&conditions.port)),
        ("sport", meets_range(&conditions.sport, has_ports, packet.sport)),
        ("dport", meets_range(&conditions.dport, has_ports, packet.dport)),
        ("length", meets_range(&conditions.length, true, packet.length)),
        ("ttl", meets_range(&conditions.ttl, true, packet.ttl)),
        ("dscp", meets_range(&conditions.dscp, true, packet.dscp)),
        ("tcp_flags", meets_flags(&conditions.tcp_flags, is_tcp, packet.tcp_flags)),
        ("fragment", meets_flags(&conditions.fragment, true, packet.fragment)),
        ("icmp_type", meets_range(&conditions.icmp_type, is_icmp, packet.icmp_type)),
        ("icmp_code", meets_range(&conditions.icmp_code, is_icmp, packet.icmp_code)),
        ("vlan", meets_range(&conditions.vlan, true, packet.vlan)),
        ("flow_label", meets_range(&conditions.flow_label, is_v6, packet.flow_label)),
        ("payload", conditions.payload.as_ref().is_none_or(|it| has_bytes(it, packet.payload))),
    ];
    results.iter().find(|(_, is_met)| !is_met).map(|(field, _)| *field)
}

fn is_at(conditions: &[AddressCondition], address: IpAddr, sets: u64) -> bool {
    conditions.is_empty()
        || conditions.iter().any(|it| match it {
            AddressCondition::Network(network) => network.contains(&address),
            AddressCondition::Set(place) => sets >> place & 1 == 1,
        })
}

fn in_range<T: Copy + Into<u32>>(ranges: &[Range<T>], value: impl Into<u32>) -> bool {
    let value = value.into();
    ranges.iter().any(|range| (range.first.into()..=range.last.into()).contains(&value))
}

/// Reports whether a packet that has a field or not meets a condition on it.
fn meets_range<T>(ranges: &[Range<T>], has_field: bool, value: impl Into<u32>) -> bool
where
    T: Copy + Into<u32>,
{
    ranges.is_empty() || (has_field && in_range(ranges, value))
}

fn meets_flags(conditions: &[FlagCondition], has_field: bool, bits: u8) -> bool {
    let is_met = |it: &FlagCondition| (bits ^ it.value) & it.mask == 0;
    conditions.is_empty() || (has_field && conditions.iter().any(is_met))
}

fn has_bytes(condition: &PayloadCondition, payload: &[u8]) -> bool {
    let start = usize::from(condition.offset);
    let Some(found) = payload.get(start..start + condition.value.len()) else { return false };
    let mut bytes = found.iter().zip(&condition.value).zip(&condition.mask);
    bytes.all(|((found, value), mask)| (found ^ value) & mask == 0)
}
