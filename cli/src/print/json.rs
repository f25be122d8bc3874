//! A packet as one JSON object, on a line of its own.

use std::fmt::{Display, Write as _};
use std::net::IpAddr;

use sluicegate::headers::protocol::{DCCP, ICMP, ICMPV6, SCTP, TCP, UDP, UDP_LITE};
use sluicegate::headers::{self, Headers, Ip, MAC_ADDRESSES_BYTES, VLAN_TAG_BYTES, ethertype};
use sluicegate::link::Mac;
use sluicegate::ring::{Direction, LINKTYPE_ETHERNET, Packet};

use super::{link, protocol_name, tcp};

/// An object under construction. A write to memory cannot fail.
struct Object<'o>(&'o mut String);

impl Object<'_> {
    fn number(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, ",\"{name}\":{value}");
    }

    /// Writes a text that needs no escapes.
    fn text(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, ",\"{name}\":\"{value}\"");
    }
}

/// Appends the packet's object, newline included, to `out`. `data` is its captured part; `interface` the name
/// as a JSON string, or nothing.
pub fn print(out: &mut String, link_type: u16, interface: &str, packet: &Packet, data: &[u8]) {
    let meta = packet.meta();
    let _ = write!(out, "{{\"time_ns\":{}", meta.timestamp_ns);
    let mut object = Object(out);
    if !interface.is_empty() {
        object.number("interface", interface);
    }
    match meta.direction {
        Direction::In => object.text("direction", "in"),
        Direction::Out => object.text("direction", "out"),
        Direction::Unknown => {}
    }
    object.number("bytes", meta.wire_bytes);
    object.number("captured", data.len());
    if meta.drops_before > 0 {
        object.number("drops_before", meta.drops_before);
    }
    if let Some(found) = link::find(link_type, data) {
        print_headers(&mut object, link_type, data, &found);
    }
    out.push_str("}\n");
}

fn print_headers(object: &mut Object, link_type: u16, data: &[u8], found: &Headers) {
    if link_type == LINKTYPE_ETHERNET {
        let mac = |at: usize| data.get(at..)?.first_chunk().map(|bytes| Mac(*bytes));
        for (name, at) in [("smac", 6), ("dmac", 0)] {
            if let Some(mac) = mac(at) {
                object.text(name, mac);
            }
        }
        print_vlans(object, data, found.network);
    }
    object.text("ethertype", format_args!("{:#06x}", found.ethertype));
    let Some(ip) = &found.ip else { return };
    for (name, range) in [("src", &ip.source), ("dst", &ip.destination)] {
        if let Some(address) = data.get(range.clone()).and_then(address) {
            object.text(name, address);
        }
    }
    print_payload(object, data, found, ip);
}

/// Writes the numbers of the VLANs, the outer one first.
fn print_vlans(object: &mut Object, data: &[u8], network: usize) {
    let tags = (MAC_ADDRESSES_BYTES + 2..network.saturating_sub(2)).step_by(VLAN_TAG_BYTES);
    for (index, control) in tags.filter_map(|at| headers::be16(data, at)).enumerate() {
        object.0.push_str(if index == 0 { ",\"vlans\":[" } else { "," });
        let _ = write!(object.0, "{}", control & 0xfff);
    }
    if network > MAC_ADDRESSES_BYTES + 2 {
        object.0.push(']');
    }
}

fn print_payload(object: &mut Object, data: &[u8], found: &Headers, ip: &Ip) {
    let hop_limit = if found.ethertype == ethertype::IPV4 { 8 } else { 7 };
    if let Some(ttl) = data.get(found.network + hop_limit) {
        object.number("ttl", ttl);
    }
    if ip.fragment {
        object.number("fragment", true);
    }
    match protocol_name(ip.protocol) {
        Some(name) => object.text("protocol", name),
        None => object.number("protocol", ip.protocol),
    }
    let Some(range) = &ip.transport else { return };
    let payload = data.get(range.clone()).unwrap_or_default();
    match ip.protocol {
        TCP | UDP | UDP_LITE | SCTP | DCCP => {
            for (name, at) in [("sport", 0), ("dport", 2)] {
                if let Some(port) = headers::be16(payload, at) {
                    object.number(name, port);
                }
            }
        }
        ICMP | ICMPV6 => {
            for (name, at) in [("type", 0), ("code", 1)] {
                if let Some(number) = payload.get(at) {
                    object.number(name, number);
                }
            }
        }
        _ => {}
    }
    if ip.protocol == TCP
        && let Some(&flags) = payload.get(13)
    {
        object.0.push_str(",\"flags\":\"");
        object.0.extend(tcp::flag_letters(flags));
        object.0.push('"');
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        _ => bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use serde_json::Value;
    use sluicegate::ring::Meta;

    use super::*;

    fn object(link_type: u16, bytes: &[u8]) -> Value {
        let meta = Meta { timestamp_ns: 5, wire_bytes: 99, ..Meta::default() };
        let mut text = String::new();
        print(&mut text, link_type, "\"eth0\"", &Packet::new(&meta, bytes), bytes);
        assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn a_segment_has_its_addresses_ports_and_flags() {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .double_vlan(7u16.try_into().unwrap(), 5u16.try_into().unwrap())
            .ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64)
            .tcp(5000, 80, 1, 1000)
            .syn()
            .ack(1)
            .write(&mut frame, &[])
            .expect("memory takes it");
        let expected = serde_json::json!({
            "time_ns": 5, "interface": "eth0", "bytes": 99, "captured": 62,
            "smac": "02:00:00:00:00:01", "dmac": "02:00:00:00:00:02", "vlans": [7, 5],
            "ethertype": "0x0800", "src": "198.18.0.1", "dst": "198.18.0.2", "ttl": 64,
            "protocol": "tcp", "sport": 5000, "dport": 80, "flags": "S.",
        });
        assert_eq!(object(1, &frame), expected);
        let raw = object(101, &frame[22..]);
        assert_eq!(
            (&raw["src"], &raw["sport"], &raw["smac"]),
            (&expected["src"], &expected["sport"], &Value::Null)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_give_one_object(
            link_type in prop_oneof![Just(0), Just(1), Just(101), Just(113), Just(276), any::<u16>()],
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            prop_assert!(object(link_type, &bytes).is_object());
        }
    }
}
