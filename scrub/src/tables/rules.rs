//! Records of rules: a rule with alternatives has a record for each combination of them.

use std::ops::RangeInclusive;

use super::TablesError;
use crate::packet::{fragment, protocol};
use crate::policy::{AddressCondition, Conditions, FlagCondition, Policy, Range, Rule, RuleAction};
use crate::prefix::Prefix;
use crate::rules::{PayloadMatch, Record, RecordConditions};
use crate::sets::SetBits;

/// Maximum of records of one rule.
const MAX_RECORDS: usize = 4096;

/// Flags beside the rule's place in an action: the rule only passes, or only drops (bpf/record.h).
const PASSES: u32 = 1 << 31;
const DROPS: u32 = 1 << 30;

/// Returns the records of all rules. Their orders are the rules' places.
pub(super) fn records(policy: &Policy) -> Result<Vec<Record>, TablesError> {
    let mut records = Vec::new();
    for (at, rule) in policy.rules.iter().enumerate() {
        let all = expand(&rule.conditions);
        if all.len() > MAX_RECORDS {
            return Err(TablesError::TooManyAlternatives {
                rule: rule.name.clone(),
                count: all.len(),
            });
        }
        let record = |conditions| Record { order: at as u32, action: action(rule, at), conditions };
        records.extend(all.into_iter().map(record));
    }
    Ok(records)
}

/// Returns the action of a rule's records.
fn action(rule: &Rule, at: usize) -> u32 {
    let alone = rule.sample == 0 && rule.mark.is_none();
    let only = match rule.action {
        RuleAction::Pass if alone => PASSES,
        RuleAction::Drop if alone => DROPS,
        _ => 0,
    };
    at as u32 | only
}

/// Alternatives, each a change of a record's conditions.
type Alternatives = Vec<Box<dyn Fn(&mut RecordConditions)>>;

/// Returns the records of a rule; some more than the maximum if there are too many, none if no packet matches.
fn expand(conditions: &Conditions) -> Vec<RecordConditions> {
    let Some(protocols) = protocols(conditions) else { return Vec::new() };
    let mut records = vec![RecordConditions::default()];
    for alternatives in fields(conditions, protocols) {
        if alternatives.is_empty() {
            continue;
        }
        let with = |record: &RecordConditions, alternative: &dyn Fn(&mut RecordConditions)| {
            let mut record = record.clone();
            alternative(&mut record);
            record
        };
        let all = records.iter().flat_map(|it| alternatives.iter().map(|change| with(it, change)));
        records = all.filter(is_possible).take(MAX_RECORDS + 1).collect();
    }
    records
}

/// Returns false if no packet meets conditions on the version and both addresses.
fn is_possible(conditions: &RecordConditions) -> bool {
    conditions.version != Some(0)
}

/// Requires a version beside one that is required already; 0 if they differ.
fn require_version(conditions: &mut RecordConditions, version: u8) {
    let known = conditions.version.unwrap_or(version);
    conditions.version = Some(if known == version { version } else { 0 });
}

/// Returns the alternatives of each field.
fn fields(conditions: &Conditions, protocols: Vec<u8>) -> Vec<Alternatives> {
    let Conditions { version, src, dst, port, sport, dport, .. } = conditions;
    let mut fields: Vec<Alternatives> = vec![
        version.iter().map(|&version| change(move |it| require_version(it, version))).collect(),
        addresses(src, |it| (&mut it.src, &mut it.src_sets)),
        addresses(dst, |it| (&mut it.dst, &mut it.dst_sets)),
        protocols.into_iter().map(|number| change(move |it| it.protocol = Some(number))).collect(),
        ranges(sport, |it, range| it.sport = range),
        ranges(dport, |it, range| it.dport = range),
    ];
    // Either port.
    let either = port.iter().flat_map(|&range| {
        let of_source = change(move |it| it.sport = common(&it.sport, inclusive(range)));
        let of_destination = change(move |it| it.dport = common(&it.dport, inclusive(range)));
        [of_source, of_destination]
    });
    fields.push(either.collect());
    fields.extend([
        ranges(&conditions.length, |it, range| it.length = range),
        ranges(&conditions.ttl, |it, range| it.ttl = range),
        ranges(&conditions.dscp, |it, range| it.dscp = range),
        ranges(&conditions.vlan, |it, range| it.vlan = range),
        ranges(&conditions.icmp_type, |it, range| it.icmp_type = range),
        ranges(&conditions.icmp_code, |it, range| it.icmp_code = range),
        ranges(&conditions.flow_label, |it, range| {
            require_version(it, 6);
            it.flow_label = range;
        }),
        flags(&conditions.tcp_flags, |it| &mut it.tcp_flags),
        flags(&conditions.fragment, |it| &mut it.fragment),
    ]);
    if needs_transport(conditions) {
        let not_later = FlagCondition { mask: fragment::LATER, value: 0 };
        fields.push(flags(&[not_later], |it| &mut it.fragment));
    }
    fields.push(payload(conditions));
    fields
}

fn change(change: impl Fn(&mut RecordConditions) + 'static) -> Box<dyn Fn(&mut RecordConditions)> {
    Box::new(change)
}

fn inclusive<T>(range: Range<T>) -> RangeInclusive<T> {
    range.first..=range.last
}

/// Returns the numbers in both ranges; none if they have none in common.
fn common(a: &RangeInclusive<u16>, b: RangeInclusive<u16>) -> RangeInclusive<u16> {
    *a.start().max(b.start())..=*a.end().min(b.end())
}

fn ranges<T: Copy + 'static>(
    all: &[Range<T>],
    set: fn(&mut RecordConditions, RangeInclusive<T>),
) -> Alternatives {
    all.iter().map(|&range| change(move |it| set(it, inclusive(range)))).collect()
}

/// Adds conditions on flags to those that a record has; contradictions are conditions that no packet meets.
fn flags(
    all: &[FlagCondition],
    of: fn(&mut RecordConditions) -> &mut FlagCondition,
) -> Alternatives {
    let add = |FlagCondition { mask, value }: FlagCondition| {
        change(move |it: &mut RecordConditions| {
            let known = of(it);
            let contradicts = (known.value ^ value) & known.mask & mask != 0;
            known.value |= value & mask;
            known.mask |= mask;
            if contradicts {
                it.version = Some(0);
            }
        })
    };
    all.iter().copied().map(add).collect()
}

/// Networks are alternatives; all sets together are one.
fn addresses(
    all: &[AddressCondition],
    of: fn(&mut RecordConditions) -> (&mut Prefix, &mut SetBits),
) -> Alternatives {
    let mut sets = 0;
    let mut alternatives = Alternatives::new();
    for condition in all {
        match *condition {
            AddressCondition::Set(at) => sets |= 1 << at,
            AddressCondition::Network(net) => alternatives.push(change(move |it| {
                require_version(it, if net.network().is_ipv4() { 4 } else { 6 });
                *of(it).0 = net.into();
            })),
        }
    }
    if sets != 0 {
        alternatives.push(change(move |it| *of(it).1 = sets));
    }
    alternatives
}

/// Returns true if only packets with a transport header meet the conditions.
fn needs_transport(conditions: &Conditions) -> bool {
    let Conditions { port, sport, dport, tcp_flags, icmp_type, icmp_code, .. } = conditions;
    !(port.is_empty()
        && sport.is_empty()
        && dport.is_empty()
        && tcp_flags.is_empty()
        && icmp_type.is_empty()
        && icmp_code.is_empty())
}

/// Returns the protocols that packets may have, those of the rule that also have its other fields; empty for any. None if
/// there are none.
fn protocols(conditions: &Conditions) -> Option<Vec<u8>> {
    let Conditions { port, sport, dport, tcp_flags, icmp_type, icmp_code, .. } = conditions;
    let has_ports = !(port.is_empty() && sport.is_empty() && dport.is_empty());
    let fields: [(bool, &[u8]); 3] = [
        (has_ports, &[protocol::TCP, protocol::UDP]),
        (!tcp_flags.is_empty(), &[protocol::TCP]),
        (!(icmp_type.is_empty() && icmp_code.is_empty()), &[protocol::ICMP, protocol::ICMPV6]),
    ];
    let mut wanted = conditions.protocol.clone();
    for (_, possible) in fields.into_iter().filter(|(required, _)| *required) {
        if wanted.is_empty() {
            wanted = possible.to_vec();
            continue;
        }
        wanted.retain(|it| possible.contains(it));
        if wanted.is_empty() {
            return None;
        }
    }
    Some(wanted)
}

fn payload(conditions: &Conditions) -> Alternatives {
    let wanted = conditions.payload.as_ref().map(|it| {
        let (mut value, mut mask) = ([0; 8], [0; 8]);
        value[..it.value.len()].copy_from_slice(&it.value);
        mask[..it.mask.len()].copy_from_slice(&it.mask);
        value.iter_mut().zip(mask).for_each(|(value, mask)| *value &= mask);
        PayloadMatch { offset: it.offset, value, mask, bytes: it.value.len() as u8 }
    });
    wanted.into_iter().map(|wanted| change(move |it| it.payload = Some(wanted))).collect()
}
