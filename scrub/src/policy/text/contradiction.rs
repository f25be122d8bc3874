//! Finds conditions that no packet meets together.

use sluicegate_base::text_error::{Fault, Position};

use super::fields::Positions;
use crate::policy::{AddressCondition, Conditions};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Fields of headers that only some protocols have: the protocols, and their names.
const TRANSPORT_FIELDS: &[(&str, &[u8], &str)] = &[
    ("port", &[TCP, UDP], "TCP and UDP have ports"),
    ("sport", &[TCP, UDP], "TCP and UDP have ports"),
    ("dport", &[TCP, UDP], "TCP and UDP have ports"),
    ("tcp_flags", &[TCP], "TCP has flags"),
    ("icmp_type", &[ICMP, ICMPV6], "ICMP and ICMPv6 have types"),
    ("icmp_code", &[ICMP, ICMPV6], "ICMP and ICMPv6 have codes"),
];

/// Bits of fragments (RFC 8955, 4.2.2.12).
const DONT_FRAGMENT: u8 = 1;
const LATER_FRAGMENT: u8 = 2 | 8;

/// Checks that some packet meets the conditions.
pub(super) fn check(conditions: &Conditions, positions: &Positions) -> Result<(), Fault> {
    protocols(conditions, positions)?;
    versions(conditions, positions)?;
    fragments(conditions, positions)
}

fn find<'a>(positions: &'a Positions, field: &str) -> Option<&'a Position> {
    positions.iter().find(|(name, _)| *name == field).map(|(_, place)| place)
}

fn protocols(conditions: &Conditions, positions: &Positions) -> Result<(), Fault> {
    let mut possible = conditions.protocol.clone();
    let mut by = "protocol";
    for (field, having, fact) in TRANSPORT_FIELDS {
        let Some(place) = find(positions, field) else { continue };
        let before = possible.len();
        match before {
            0 => possible = having.to_vec(),
            _ => possible.retain(|it| having.contains(it)),
        }
        if possible.is_empty() {
            let problem = format!(
                "no packet matches: only {fact}, and {by} excludes them: remove one of them"
            );
            return Err(Fault::new(place, *field, problem));
        }
        if possible.len() != before {
            by = field;
        }
    }
    Ok(())
}

fn versions(conditions: &Conditions, positions: &Positions) -> Result<(), Fault> {
    let of_addresses = |list: &[AddressCondition]| {
        let has = |v4: bool| {
            list.is_empty()
                || list.iter().any(|it| match it {
                    AddressCondition::Network(net) => net.addr().is_ipv4() == v4,
                    AddressCondition::Set(_) => true,
                })
        };
        [has(true), has(false)]
    };
    let only_df = !conditions.fragment.is_empty()
        && conditions.fragment.iter().all(|it| it.value & DONT_FRAGMENT != 0);
    let fields = [
        ("version", [conditions.version != Some(6), conditions.version != Some(4)]),
        ("src", of_addresses(&conditions.src)),
        ("dst", of_addresses(&conditions.dst)),
        ("flow_label", [conditions.flow_label.is_empty(), true]),
        ("fragment", [true, !only_df]),
    ];
    let mut possible = [true, true];
    let mut by = "";
    for (field, versions) in fields {
        let [v4, v6] = [possible[0] && versions[0], possible[1] && versions[1]];
        if !v4 && !v6 {
            let version = if versions[0] { 4 } else { 6 };
            let problem = format!(
                "no packet matches: it is of IPv{version}, and {by} is not: remove one of them, or add an alternative"
            );
            return Err(Fault::new(
                find(positions, field).unwrap_or(&Position::Nowhere),
                field,
                problem,
            ));
        }
        if [v4, v6] != possible {
            (possible, by) = ([v4, v6], field);
        }
    }
    Ok(())
}

fn fragments(conditions: &Conditions, positions: &Positions) -> Result<(), Fault> {
    let Some(place) = find(positions, "fragment") else { return Ok(()) };
    if !conditions.fragment.iter().all(|it| it.value & LATER_FRAGMENT != 0) {
        return Ok(());
    }
    let needs = TRANSPORT_FIELDS.iter().find(|(field, ..)| find(positions, field).is_some());
    let Some((field, ..)) = needs else { return Ok(()) };
    let problem = format!(
        "no packet matches: later fragments have no header with {field}: remove one of them"
    );
    Err(Fault::new(place, "fragment", problem))
}
