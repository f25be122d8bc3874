//! Rewrites the addresses of packets that are sent again: Ethernet, IPv4, IPv6 and ARP.
//!
//! Corrects the checksums that cover an address by the difference (RFC 1624): a right one stays right,
//! a wrong one wrong. Changes only a packet's own headers, behind its VLAN tags: not those inside a
//! tunnel or quoted in ICMP errors, and no addresses in payloads.

mod change;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address of Ethernet.
type Mac = [u8; 6];

/// Other addresses for packets, by rules. Where several match, the first counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    macs: Vec<(Mac, Mac)>,
    v4: Vec<Prefixes<u32>>,
    v6: Vec<Prefixes<u128>>,
    source: Option<Mac>,
    destination: Option<Mac>,
}

/// One change of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An address of Ethernet becomes another, as source and as destination.
    Mac([u8; 6], [u8; 6]),
    /// Addresses of a prefix get the bits of another, and keep those behind it. The first has no more
    /// bits than the second, and is of the same family.
    Prefix((IpAddr, u8), (IpAddr, u8)),
    /// Every frame comes from this address, whatever other rules say.
    Source([u8; 6]),
    /// Every frame goes to this address, whatever other rules say.
    Destination([u8; 6]),
}

/// From one prefix to another, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefixes<N> {
    /// Required bits of an address under the mask.
    from: N,
    from_mask: N,
    /// New bits under the other mask.
    to: N,
    to_mask: N,
}

impl Rewrite {
    /// Adds a rule behind those there are.
    pub fn add(&mut self, rule: Rule) {
        match rule {
            Rule::Mac(from, to) => self.macs.push((from, to)),
            Rule::Source(mac) => self.source = Some(mac),
            Rule::Destination(mac) => self.destination = Some(mac),
            Rule::Prefix((IpAddr::V4(from), bits), (IpAddr::V4(to), to_bits)) => {
                let mask = |bits: u8| u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                let (from_mask, to_mask) = (mask(bits), mask(to_bits));
                let (from, to) = (from.to_bits() & from_mask, to.to_bits() & to_mask);
                self.v4.push(Prefixes { from, from_mask, to, to_mask });
            }
            Rule::Prefix((from, bits), (to, to_bits)) => {
                let number = |address| match address {
                    IpAddr::V4(address) => u128::from(Ipv4Addr::to_bits(address)),
                    IpAddr::V6(address) => Ipv6Addr::to_bits(address),
                };
                let mask = |bits: u8| u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                let (from_mask, to_mask) = (mask(bits), mask(to_bits));
                let (from, to) = (number(from) & from_mask, number(to) & to_mask);
                self.v6.push(Prefixes { from, from_mask, to, to_mask });
            }
        }
    }

    /// Reports whether there are no rules.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether a rule may change addresses above Ethernet's.
    fn changes_ip(&self) -> bool {
        !(self.v4.is_empty() && self.v6.is_empty())
    }

    fn mac(&self, mac: Mac) -> Mac {
        self.macs.iter().find(|(from, _)| *from == mac).map_or(mac, |(_, to)| *to)
    }

    fn v4(&self, address: [u8; 4]) -> [u8; 4] {
        let number = u32::from_be_bytes(address);
        let rule = self.v4.iter().find(|rule| number & rule.from_mask == rule.from);
        rule.map_or(address, |rule| (rule.to | number & !rule.to_mask).to_be_bytes())
    }

    fn v6(&self, address: [u8; 16]) -> [u8; 16] {
        let number = u128::from_be_bytes(address);
        let rule = self.v6.iter().find(|rule| number & rule.from_mask == rule.from);
        rule.map_or(address, |rule| (rule.to | number & !rule.to_mask).to_be_bytes())
    }
}

/// Adds each rule, in their order.
impl FromIterator<Rule> for Rewrite {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        let mut rewrite = Self::default();
        rules.into_iter().for_each(|rule| rewrite.add(rule));
        rewrite
    }
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotARule(String);

impl Rule {
    /// An address of Ethernet: `02:00:00:00:00:01`.
    ///
    /// # Errors
    /// It is none.
    pub fn address(text: &str) -> Result<[u8; 6], NotARule> {
        let mut mac = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len()));
            let number = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            *byte = number.ok_or_else(|| no_mac(text))?;
        }
        match parts.next() {
            None => Ok(mac),
            Some(_) => Err(no_mac(text)),
        }
    }

    /// A rule of the addresses of Ethernet: `OLD=NEW`.
    ///
    /// # Errors
    /// It is none.
    pub fn of_macs(text: &str) -> Result<Self, NotARule> {
        let (from, to) = halves(text)?;
        Ok(Self::Mac(Self::address(from)?, Self::address(to)?))
    }

    /// A rule of IP addresses: `PREFIX=PREFIX`, or an address on either side.
    ///
    /// # Errors
    /// It is none; the prefixes are not of one family, or the second is the shorter.
    pub fn of_prefixes(text: &str) -> Result<Self, NotARule> {
        let (from, to) = halves(text)?;
        let (from, to) = (prefix(from)?, prefix(to)?);
        if from.0.is_ipv4() != to.0.is_ipv4() {
            return Err(NotARule(format!("'{text}': both are to be IPv4, or both IPv6")));
        }
        if from.1 > to.1 {
            return Err(NotARule(format!(
                "'{text}': the bits between /{} and /{} would be nobody's: the second prefix is as \
                 long as the first, or longer",
                to.1, from.1
            )));
        }
        Ok(Self::Prefix(from, to))
    }
}

/// Of either kind, as a line of a file has it.
impl FromStr for Rule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<Self, NotARule> {
        let (from, _) = halves(text)?;
        match Self::address(from) {
            Ok(_) => Self::of_macs(text),
            Err(_) => Self::of_prefixes(text),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mac = |mac: &Mac| mac.map(|byte| format!("{byte:02x}")).join(":");
        match self {
            Self::Mac(from, to) => write!(f, "{}={}", mac(from), mac(to)),
            Self::Prefix((from, bits), (to, to_bits)) => write!(f, "{from}/{bits}={to}/{to_bits}"),
            Self::Source(address) => write!(f, "from {}", mac(address)),
            Self::Destination(address) => write!(f, "to {}", mac(address)),
        }
    }
}

fn no_mac(text: &str) -> NotARule {
    NotARule(format!("'{text}' is no address of Ethernet, like 02:00:00:00:00:01"))
}

fn halves(text: &str) -> Result<(&str, &str), NotARule> {
    let halves = text.split_once('=');
    halves.ok_or_else(|| NotARule(format!("'{text}': a rule is OLD=NEW")))
}

fn prefix(text: &str) -> Result<(IpAddr, u8), NotARule> {
    let text = text.trim();
    let wrong = || NotARule(format!("'{text}' is no address or prefix, like 198.18.0.0/16"));
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
    fn rules_are_understood_and_written_back() {
        for (text, again) in [
            ("2:0:0:0:0:1=02:00:00:00:00:02", Some("02:00:00:00:00:01=02:00:00:00:00:02")),
            ("10.0.0.0/8=198.18.0.0/16", Some("10.0.0.0/8=198.18.0.0/16")),
            ("0.0.0.0/0=192.0.2.1", Some("0.0.0.0/0=192.0.2.1/32")),
            ("::/0=2001:db8::/32", Some("::/0=2001:db8::/32")),
            (" 192.0.2.1 = 192.0.2.2 ", Some("192.0.2.1/32=192.0.2.2/32")),
            ("198.18.0.0/16=10.0.0.0/8", None),
            ("198.18.0.0/16=2001:db8::/32", None),
            ("198.18.0.0/33=198.18.0.0/33", None),
            ("02:00:00:00:00:01=192.0.2.1", None),
            ("02:00:00:00:00:01:02=02:00:00:00:00:01", None),
            ("02:00:00:00:00=02:00:00:00:00:01", None),
            ("192.0.2.1", None),
            ("", None),
        ] {
            let rule = text.parse::<Rule>().map(|rule| rule.to_string());
            assert_eq!(rule.ok().as_deref(), again, "{text}");
        }
    }

    #[test]
    fn addresses_change_by_the_first_rule_that_matches() {
        let rules = [
            "192.0.2.1=198.18.9.9",
            "192.0.2.0/24=198.18.2.0/24",
            "10.0.0.0/8=198.18.0.0/24",
            "2001:db8::/32=2001:db8:1::/48",
            "02:00:00:00:00:01=02:00:00:00:00:02",
        ];
        let rewrite: Rewrite = rules.iter().map(|rule| rule.parse::<Rule>().unwrap()).collect();
        for (from, to) in [
            ("192.0.2.1", "198.18.9.9"),
            ("192.0.2.7", "198.18.2.7"),
            ("10.1.2.3", "198.18.0.3"),
            ("203.0.113.1", "203.0.113.1"),
        ] {
            let [from, to] = [from, to].map(|text| text.parse::<Ipv4Addr>().unwrap().octets());
            assert_eq!(rewrite.v4(from), to, "{from:?}");
        }
        let [from, to] =
            ["2001:db8:7::9", "2001:db8:1::9"].map(|a| a.parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(rewrite.v6(from), to);
        assert_eq!(rewrite.mac([2, 0, 0, 0, 0, 1]), [2, 0, 0, 0, 0, 2]);
        assert_eq!(rewrite.mac([2, 0, 0, 0, 0, 2]), [2, 0, 0, 0, 0, 2], "and only once");
        assert!(Rewrite::default().is_empty() && !rewrite.is_empty());
    }
}
