//! Rules that change packets, and their text form.

use std::net::IpAddr;
use std::str::FromStr;

use sluicegate::forward::Vlan;
use sluicegate::link;

/// A rule that changes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Replaces an Ethernet address by another, as source and as destination.
    Mac([u8; 6], [u8; 6]),
    /// Replaces the first prefix by the second, and keeps the bits after it. Both have the same family. The
    /// first is not longer than the second.
    Prefix((IpAddr, u8), (IpAddr, u8)),
    /// Sets the source of every frame; overrides other rules.
    Source([u8; 6]),
    /// Sets the destination of every frame; overrides other rules.
    Destination([u8; 6]),
    /// Replaces a port of TCP, UDP, UDP-Lite or DCCP by another, as source and as destination.
    Port(u16, u16),
    /// Sets IPv4's time to live and IPv6's hop limit.
    HopLimit(u8),
    /// Changes the outermost VLAN tag.
    Vlan(Vlan),
    /// Recomputes the checksums of IPv4, TCP, UDP, ICMP and ICMPv6, as far as all covered bytes are known.
    Checksums,
}

/// The error for an invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(String);

impl Rule {
    /// Parses an Ethernet address: `02:00:00:00:00:01`.
    ///
    /// # Errors
    /// The text is no address.
    pub fn address(text: &str) -> Result<[u8; 6], InvalidRule> {
        let mac = text.trim().parse::<link::Mac>();
        mac.map(|mac| mac.0).map_err(|error| InvalidRule(format!("'{text}': {error}")))
    }

    /// Parses an address or a prefix: `198.18.0.0/16`.
    ///
    /// # Errors
    /// The text is neither.
    pub fn prefix(text: &str) -> Result<(IpAddr, u8), InvalidRule> {
        prefix(text)
    }

    /// Parses a rule of Ethernet addresses: `OLD=NEW`.
    ///
    /// # Errors
    /// The text is no rule.
    pub fn of_macs(text: &str) -> Result<Self, InvalidRule> {
        let (from, to) = halves(text)?;
        Ok(Self::Mac(Self::address(from)?, Self::address(to)?))
    }

    /// Parses a rule of IP addresses: `PREFIX=PREFIX`, or an address on either side.
    ///
    /// # Errors
    /// The text is no rule; the prefixes are of different families, or the new one is shorter.
    pub fn of_prefixes(text: &str) -> Result<Self, InvalidRule> {
        let (from, to) = halves(text)?;
        let (from, to) = (prefix(from)?, prefix(to)?);
        if from.0.is_ipv4() != to.0.is_ipv4() {
            return Err(InvalidRule(format!("'{text}': use IPv4 on both sides, or IPv6")));
        }
        if from.1 > to.1 {
            return Err(InvalidRule(format!(
                "'{text}': the new prefix is shorter; use {}/{2}={}/{2}",
                from.0, to.0, from.1
            )));
        }
        Ok(Self::Prefix(from, to))
    }

    /// Returns true if the rule makes different addresses of one network equal.
    pub fn merges_addresses(&self) -> bool {
        // All addresses, or a single one, are what somebody meant to have so.
        let is_meant = |from, (to, bits): (IpAddr, u8)| {
            from == 0 || bits == if to.is_ipv4() { 32 } else { 128 }
        };
        matches!(*self, Self::Prefix((_, from), to) if from < to.1 && !is_meant(from, to))
    }

    /// Parses a rule of ports: `OLD=NEW`.
    ///
    /// # Errors
    /// The text is no rule.
    pub fn of_ports(text: &str) -> Result<Self, InvalidRule> {
        let (from, to) = halves(text)?;
        Ok(Self::Port(port(from)?, port(to)?))
    }
}

/// Parses a rule of MAC addresses, IP addresses or ports, as in a line of a file.
impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (from, _) = halves(text)?;
        if Self::address(from).is_ok() {
            Self::of_macs(text)
        } else if port(from).is_ok() {
            Self::of_ports(text)
        } else {
            Self::of_prefixes(text)
        }
    }
}

fn halves(text: &str) -> Result<(&str, &str), InvalidRule> {
    let halves = text.split_once('=');
    halves.ok_or_else(|| InvalidRule(format!("'{text}': a rule is OLD=NEW")))
}

fn port(text: &str) -> Result<u16, InvalidRule> {
    let text = text.trim();
    text.parse().map_err(|_| InvalidRule(format!("'{text}' is no port, 0 to 65535")))
}

fn prefix(text: &str) -> Result<(IpAddr, u8), InvalidRule> {
    let text = text.trim();
    let wrong = || InvalidRule(format!("'{text}' is no address or prefix, like 198.18.0.0/16"));
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.unwrap_or(most) {
        bits if bits <= most => Ok((address, bits)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_to_rules() {
        let ip = |text: &str, bits| (text.parse::<IpAddr>().unwrap(), bits);
        let prefixes = |from, to| Some(Rule::Prefix(from, to));
        for (text, rule) in [
            (
                "2:0:0:0:0:1=02:00:00:00:00:02",
                Some(Rule::Mac([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])),
            ),
            ("10.0.0.0/16=198.18.0.0/16", prefixes(ip("10.0.0.0", 16), ip("198.18.0.0", 16))),
            ("0.0.0.0/0=198.18.0.0/15", prefixes(ip("0.0.0.0", 0), ip("198.18.0.0", 15))),
            ("10.0.0.0/8=192.0.2.1", prefixes(ip("10.0.0.0", 8), ip("192.0.2.1", 32))),
            ("10.0.0.0/8=198.18.0.0/16", prefixes(ip("10.0.0.0", 8), ip("198.18.0.0", 16))),
            ("0.0.0.0/0=192.0.2.1", prefixes(ip("0.0.0.0", 0), ip("192.0.2.1", 32))),
            ("::/0=2001:db8::/32", prefixes(ip("::", 0), ip("2001:db8::", 32))),
            (" 192.0.2.1 = 192.0.2.2 ", prefixes(ip("192.0.2.1", 32), ip("192.0.2.2", 32))),
            ("80 = 8080", Some(Rule::Port(80, 8080))),
            ("80=65536", None),
            ("80=192.0.2.1", None),
            ("198.18.0.0/16=10.0.0.0/8", None),
            ("198.18.0.0/16=2001:db8::/32", None),
            ("198.18.0.0/33=198.18.0.0/33", None),
            ("02:00:00:00:00:01=192.0.2.1", None),
            ("02:00:00:00:00:01:02=02:00:00:00:00:01", None),
            ("02:00:00:00:00=02:00:00:00:00:01", None),
            ("192.0.2.1", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Rule>().ok(), rule, "{text}");
        }
    }

    #[test]
    fn a_rule_that_merges_addresses_is_known() {
        for (text, merges) in [
            ("10.0.0.0/8=172.16.0.0/12", true),
            ("10.0.0.0/8=172.0.0.0/8", false),
            ("0.0.0.0/0=198.18.0.0/15", false),
            ("10.0.0.0/8=192.0.2.1", false),
            ("2001:db8::/32=2001:db8:1::/48", true),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().merges_addresses(), merges, "{text}");
        }
    }
}
