//! Reads the fields of a match.

use sluicegate_base::text_error::{Fault, Position};
use toml::de::{DeTable, DeValue};

use super::names::{self, Names, available};
use super::numbers::{self, named, narrow};
use super::table::{
    Value, choice, each, expect_table, expect_text, in_order, integer, not, place, unknown,
};
use super::{PolicyReader, contradiction, networks};
use crate::policy::{AddressCondition, Conditions, FlagCondition, PayloadCondition};

const KEYS: &[&str] = &[
    "version",
    "src",
    "dst",
    "src_set",
    "dst_set",
    "protocol",
    "port",
    "sport",
    "dport",
    "length",
    "ttl",
    "dscp",
    "tcp_flags",
    "fragment",
    "icmp_type",
    "icmp_code",
    "vlan",
    "flow_label",
    "payload",
];

/// The position of each field that has conditions.
pub(super) type Positions = Vec<(&'static str, Position)>;

/// Kinds of fragments: bits that matter, and their values.
const FRAGMENTS: &[(&str, &[FlagCondition])] = &[
    ("no", &[FlagCondition { mask: 6, value: 0 }]),
    ("any", &[FlagCondition { mask: 4, value: 4 }, FlagCondition { mask: 2, value: 2 }]),
    ("first", &[FlagCondition { mask: 4, value: 4 }]),
    ("later", &[FlagCondition { mask: 2, value: 2 }]),
    ("last", &[FlagCondition { mask: 8, value: 8 }]),
    ("dont-fragment", &[FlagCondition { mask: 1, value: 1 }]),
];

/// Maximum addresses of a field. Those of a longer list are not compared with each other.
const MAX_ADDRESSES: usize = 4096;
/// Maximum bytes of a payload that a rule compares.
const MAX_PAYLOAD: usize = 8;

impl PolicyReader<'_> {
    pub(super) fn fields(&self, table: &DeTable) -> Result<Conditions, Fault> {
        let mut conditions = Conditions::default();
        let mut positions = Vec::new();
        let mut entries = in_order(table);
        // Names of ICMP types depend on the protocol.
        entries.sort_by_key(|(key, _)| key.get_ref() == "icmp_type");
        for (key, value) in entries {
            let key =
                KEYS.iter().find(|it| *it == key.get_ref()).ok_or_else(|| unknown(key, KEYS))?;
            self.field(&mut conditions, key, value)?;
            for side in ["src", "dst"] {
                let has = |name: &str| positions.iter().any(|(key, _): &(&str, _)| *key == name);
                if key.strip_suffix("_set") == Some(side) && has(side)
                    || *key == side && has(&format!("{side}_set"))
                {
                    let problem =
                        format!("beside {side}_set, {side} is ambiguous: write a rule for each");
                    return Err(Fault::new(&place(value), *key, problem));
                }
            }
            positions.push((*key, place(value)));
        }
        contradiction::check(&conditions, &positions)?;
        Ok(conditions)
    }

    fn field(&self, to: &mut Conditions, key: &str, value: &Value) -> Result<(), Fault> {
        let none = |name: &str| Err(format!("'{name}' is no number, and this field has no names"));
        let numbers = |max| numbers::read(value, key, max, &none);
        let names = |max, names: Names, what: &str| {
            numbers::read(value, key, max, &|name| named(names, what, name))
        };
        match key {
            "version" => to.version = version(value)?,
            "src" => addresses(&mut to.src, value, key)?,
            "dst" => addresses(&mut to.dst, value, key)?,
            "src_set" => self.find_sets(&mut to.src, value, key)?,
            "dst_set" => self.find_sets(&mut to.dst, value, key)?,
            "protocol" => to.protocol = numbers::values(&names(255, names::PROTOCOLS, "protocol")?),
            "port" => to.port = narrow(&numbers(65_535)?),
            "sport" => to.sport = narrow(&numbers(65_535)?),
            "dport" => to.dport = narrow(&numbers(65_535)?),
            "length" => to.length = narrow(&numbers(65_535)?),
            "ttl" => to.ttl = narrow(&numbers(255)?),
            "dscp" => to.dscp = narrow(&names(63, names::DSCP, "class")?),
            "tcp_flags" => {
                for value in each(value, key)? {
                    to.tcp_flags.push(tcp_flags(value)?);
                }
            }
            "fragment" => {
                for value in each(value, key)? {
                    let kind = choice(value, key, FRAGMENTS)?;
                    to.fragment.extend(
                        kind.iter().filter(|it| !to.fragment.contains(it)).collect::<Vec<_>>(),
                    );
                }
            }
            "icmp_type" => {
                let by_name = |name: &str| icmp_type(to, name);
                to.icmp_type = narrow(&numbers::read(value, key, 255, &by_name)?);
            }
            "icmp_code" => to.icmp_code = narrow(&numbers(255)?),
            "vlan" => to.vlan = narrow(&numbers(4095)?),
            "flow_label" => to.flow_label = narrow(&numbers(0xf_ffff)?),
            _ => to.payload = Some(payload(value).map_err(|fault| fault.within(key))?),
        }
        Ok(())
    }

    fn find_sets(
        &self,
        to: &mut Vec<AddressCondition>,
        value: &Value,
        key: &str,
    ) -> Result<(), Fault> {
        let sets = &self.policy.sets;
        for value in each(value, key)? {
            let name = expect_text(value, key, "the name of a set")?;
            let set = sets.iter().position(|it| it.name == name).ok_or_else(|| {
                let known = available(sets.iter().map(|it| it.name.as_str()), name);
                Fault::new(&place(value), key, format!("there is no set '{name}'; {known}"))
            })?;
            push(to, AddressCondition::Set(set));
        }
        Ok(())
    }
}

fn push(to: &mut Vec<AddressCondition>, condition: AddressCondition) {
    if !to.contains(&condition) {
        to.push(condition);
    }
}

fn addresses(to: &mut Vec<AddressCondition>, value: &Value, key: &str) -> Result<(), Fault> {
    let values = each(value, key)?;
    if values.len() > MAX_ADDRESSES {
        let problem = format!(
            "more than {MAX_ADDRESSES} addresses: put them into a set, and write {key}_set"
        );
        return Err(Fault::new(&place(value), key, problem));
    }
    for value in values {
        push(to, AddressCondition::Network(networks::read(value, key)?));
    }
    Ok(())
}

/// Reads the version; both are no condition.
fn version(value: &Value) -> Result<Option<u8>, Fault> {
    let mut versions = Vec::new();
    for value in each(value, "version")? {
        let named = value.get_ref().as_str().and_then(|name| names::find(names::VERSIONS, name));
        match named.map(u64::from).or_else(|| integer(value)) {
            Some(version @ (4 | 6)) => versions.push(version as u8),
            _ => return Err(not(value, "version", "4 or 6")),
        }
    }
    Ok(Some(versions[0]).filter(|first| versions.iter().all(|it| it == first)))
}

/// Reads flags: `"syn,!ack"`.
fn tcp_flags(value: &Value) -> Result<FlagCondition, Fault> {
    const RIGHT: &str = "flags like \"syn,!ack\"";
    let text = expect_text(value, "tcp_flags", RIGHT)?;
    let wrong = |problem: String| Fault::new(&place(value), "tcp_flags", problem);
    let mut flags = FlagCondition { mask: 0, value: 0 };
    for flag in text.split(',') {
        let flag = flag.trim();
        let name = flag.strip_prefix('!').unwrap_or(flag).trim();
        let Some(bit) = names::find(names::TCP_FLAGS, name) else {
            let known = available(names::TCP_FLAGS.iter().map(|(name, _)| *name), name);
            return Err(wrong(format!("there is no flag '{name}': write {RIGHT}; {known}")));
        };
        let bit = bit as u8;
        if flags.mask & bit != 0 {
            return Err(wrong(format!("'{name}' appears twice: write it once")));
        }
        flags.mask |= bit;
        flags.value |= if flag.starts_with('!') { 0 } else { bit };
    }
    Ok(flags)
}

/// Returns the number of a type of ICMP or ICMPv6, by the protocol of the match.
fn icmp_type(conditions: &Conditions, name: &str) -> Result<u32, String> {
    match conditions.protocol.as_slice() {
        [1] => named(names::ICMP_TYPES, "type of ICMP", name),
        [58] => named(names::ICMPV6_TYPES, "type of ICMPv6", name),
        _ => Err(format!(
            "types of ICMP and ICMPv6 differ: '{name}' needs protocol = \"icmp\" or \"icmpv6\""
        )),
    }
}

fn payload(value: &Value) -> Result<PayloadCondition, Fault> {
    const KEYS: &[&str] = &["offset", "bytes", "mask"];
    const RIGHT: &str = "{ offset = 0, bytes = \"ff ff\" }";
    let (mut offset, mut bytes, mut mask) = (0, None, None);
    for (key, value) in in_order(expect_table(value, "", RIGHT)?) {
        match key.get_ref().as_ref() {
            "offset" => {
                let number = integer(value).and_then(|it| u16::try_from(it).ok());
                offset = number.ok_or_else(|| not(value, "offset", "a number from 0 to 65535"))?;
            }
            "bytes" => bytes = Some((hex(value, "bytes")?, value)),
            "mask" => mask = Some((hex(value, "mask")?, value)),
            _ => return Err(unknown(key, KEYS)),
        }
    }
    let Some((bytes, bytes_value)) = bytes else {
        return Err(Fault::new(&place(value), "", format!("it has no bytes: write {RIGHT}")));
    };
    let Some((mask, mask_value)) = mask else {
        return Ok(PayloadCondition { offset, mask: vec![0xff; bytes.len()], value: bytes });
    };
    if mask.len() != bytes.len() {
        let problem =
            format!("it has {} bytes: give it as many as bytes, {}", mask.len(), bytes.len());
        return Err(Fault::new(&place(mask_value), "mask", problem));
    }
    if mask.iter().all(|it| *it == 0) {
        let problem = "no bit matters: leave the payload out, or set bits that do";
        return Err(Fault::new(&place(mask_value), "mask", problem));
    }
    if let Some((byte, mask)) = bytes.iter().zip(&mask).find(|(byte, mask)| **byte & !**mask != 0) {
        let problem = format!(
            "no packet matches: {byte:02x} has bits outside of the mask {mask:02x}: clear them"
        );
        return Err(Fault::new(&place(bytes_value), "bytes", problem));
    }
    Ok(PayloadCondition { offset, value: bytes, mask })
}

/// Reads bytes in hexadecimal.
fn hex(value: &Value, object: &str) -> Result<Vec<u8>, Fault> {
    let right = format!("1 to {MAX_PAYLOAD} bytes in hexadecimal, like \"ff 00 1b\"");
    let DeValue::String(text) = value.get_ref() else { return Err(not(value, object, &right)) };
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|c| *c != ' ')
        .map(|digit| digit.to_digit(16).map(|it| it as u8))
        .collect();
    let bytes = digits.filter(|it| it.len() % 2 == 0 && (2..=2 * MAX_PAYLOAD).contains(&it.len()));
    let bytes = bytes.ok_or_else(|| not(value, object, &right))?;
    Ok(bytes.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
