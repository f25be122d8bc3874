//! Terms: the conditions of an expression on each field, and how operators join them.

use std::collections::BTreeMap;
use std::ops::Range as Span;

use ipnet::IpNet;
use sluicegate_base::text_error::Position;

use super::ExpressionError;
use crate::policy::text::fields::Positions;
use crate::policy::text::numbers::{Ranges, common, complement, joined, narrow, values};
use crate::policy::{AddressCondition, Conditions, FlagCondition, Range};

/// Maximum alternatives of one field: products of them grow fast.
const MAX_ALTERNATIVES: usize = 256;

/// A field that expressions have conditions on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    /// 0 for IPv4 and 1 for IPv6, so that the complement is exact.
    Version,
    Src,
    Dst,
    Protocol,
    Port,
    Sport,
    Dport,
    Length,
    Vlan,
    TcpFlags,
    IcmpType,
    IcmpCode,
}

/// Alternatives.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Alternatives {
    Numbers(Ranges),
    Networks(Vec<IpNet>),
    Flags(Vec<FlagCondition>),
}

#[derive(Clone, Debug)]
struct Term {
    alternatives: Alternatives,
    at: Span<usize>,
}

/// Conditions on fields, all of which a packet meets.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms(BTreeMap<Field, Term>);

impl Field {
    /// The key of a match.
    fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Src => "src",
            Self::Dst => "dst",
            Self::Protocol => "protocol",
            Self::Port => "port",
            Self::Sport => "sport",
            Self::Dport => "dport",
            Self::Length => "length",
            Self::Vlan => "vlan",
            Self::TcpFlags => "tcp_flags",
            Self::IcmpType => "icmp_type",
            Self::IcmpCode => "icmp_code",
        }
    }

    /// The maximum, if all packets have the field.
    fn max_if_common(self) -> Option<u32> {
        match self {
            Self::Version => Some(1),
            Self::Protocol => Some(255),
            Self::Length => Some(65_535),
            Self::Vlan => Some(4095),
            _ => None,
        }
    }
}

impl Terms {
    /// Adds a field of a primitive.
    pub(super) fn with(
        mut self,
        field: Field,
        alternatives: Alternatives,
        at: &Span<usize>,
    ) -> Self {
        self.0.insert(field, Term { alternatives, at: at.clone() });
        self
    }

    /// Adds a field with a number, or a range.
    pub(super) fn number(self, field: Field, first: u32, last: u32, at: &Span<usize>) -> Self {
        self.with(field, Alternatives::Numbers(vec![Range { first, last }]), at)
    }

    pub(super) fn and(mut self, other: Self) -> Result<Self, ExpressionError> {
        for (field, right) in other.0 {
            let Some(left) = self.0.remove(&field) else {
                self.0.insert(field, right);
                continue;
            };
            let same = left.alternatives == right.alternatives;
            if field == Field::Port && !same {
                let problem = "two ports without direction: write src port and dst port";
                return Err(ExpressionError::new(right.at, problem));
            }
            let alternatives = match same {
                true => left.alternatives,
                false => left.alternatives.and(&right.alternatives),
            };
            match alternatives.len() {
                0 => {
                    let problem = format!(
                        "no packet matches: another {} comes before; join alternatives by or",
                        field.name()
                    );
                    return Err(ExpressionError::new(right.at, problem));
                }
                1..=MAX_ALTERNATIVES => {}
                _ => return Err(ExpressionError::new(right.at, TOO_MANY)),
            }
            self.0.insert(field, Term { alternatives, at: right.at });
        }
        Ok(self)
    }

    /// `at` is the operator's position.
    pub(super) fn or(mut self, other: Self, at: Span<usize>) -> Result<Self, ExpressionError> {
        let same_fields = self.0.keys().eq(other.0.keys());
        let differ = |(left, right): (&Term, &Term)| left.alternatives != right.alternatives;
        let count = self.0.values().zip(other.0.values()).filter(|it| differ(*it)).count();
        if !same_fields || count > 1 {
            let problem = "or joins alternatives of one field only: write a rule for each side";
            return Err(ExpressionError::new(at, problem));
        }
        for (left, right) in self.0.values_mut().zip(other.0.into_values()) {
            if left.alternatives != right.alternatives {
                left.alternatives.or(right.alternatives);
                left.at = left.at.start..right.at.end;
                if left.alternatives.len() > MAX_ALTERNATIVES {
                    return Err(ExpressionError::new(at, TOO_MANY));
                }
            }
        }
        Ok(self)
    }

    /// `at` is the operator's position.
    pub(super) fn not(mut self, at: Span<usize>) -> Result<Self, ExpressionError> {
        let mut terms = self.0.iter_mut();
        let (Some((field, term)), None) = (terms.next(), terms.next()) else {
            let problem = "not inverts one condition only: write a rule for each, or match = { } with \"!\" before values";
            return Err(ExpressionError::new(at, problem));
        };
        if matches!(field, Field::Port | Field::Sport | Field::Dport) {
            let problem = format!(
                "packets without ports match this, too: write match = {{ {} = \"!…\" }} to match others only",
                field.name()
            );
            return Err(ExpressionError::new(at, problem));
        }
        let (Some(max), Alternatives::Numbers(ranges)) =
            (field.max_if_common(), &mut term.alternatives)
        else {
            let problem = format!(
                "rules cannot exclude {}: write a rule before this one that matches it, with action = \"continue\"",
                field.name()
            );
            return Err(ExpressionError::new(at, problem));
        };
        *ranges = complement(ranges, max);
        if ranges.is_empty() {
            return Err(ExpressionError::new(at, "no packet matches: remove not"));
        }
        term.at.start = at.start;
        Ok(self)
    }

    /// Returns the conditions, and the position of each field.
    pub(super) fn conditions(
        self,
        place: &dyn Fn(Span<usize>) -> Position,
    ) -> (Conditions, Positions) {
        let mut to = Conditions::default();
        let mut places = Vec::new();
        for (field, Term { alternatives, at }) in self.0 {
            match (field, alternatives) {
                (Field::Version, Alternatives::Numbers(it)) => {
                    // Both are no condition.
                    to.version = Some(it[0])
                        .filter(|it| it.first == it.last)
                        .map(|it| 4 + 2 * it.first as u8);
                }
                (Field::Protocol, Alternatives::Numbers(it)) => to.protocol = values(&it),
                (Field::Port, Alternatives::Numbers(it)) => to.port = narrow(&it),
                (Field::Sport, Alternatives::Numbers(it)) => to.sport = narrow(&it),
                (Field::Dport, Alternatives::Numbers(it)) => to.dport = narrow(&it),
                (Field::Length, Alternatives::Numbers(it)) => to.length = narrow(&it),
                (Field::Vlan, Alternatives::Numbers(it)) => to.vlan = narrow(&it),
                (Field::IcmpType, Alternatives::Numbers(it)) => to.icmp_type = narrow(&it),
                (Field::IcmpCode, Alternatives::Numbers(it)) => to.icmp_code = narrow(&it),
                (Field::Src, Alternatives::Networks(it)) => to.src = networks(it),
                (Field::Dst, Alternatives::Networks(it)) => to.dst = networks(it),
                (Field::TcpFlags, Alternatives::Flags(it)) => to.tcp_flags = it,
                (field, it) => unreachable!("{field:?} has no {it:?}"),
            }
            places.push((field.name(), place(at)));
        }
        (to, places)
    }
}

const TOO_MANY: &str = "one field has more than 256 alternatives: use a set, or several rules";

fn networks(networks: Vec<IpNet>) -> Vec<AddressCondition> {
    networks.into_iter().map(AddressCondition::Network).collect()
}

impl Alternatives {
    fn len(&self) -> usize {
        match self {
            Self::Numbers(it) => it.len(),
            Self::Networks(it) => it.len(),
            Self::Flags(it) => it.len(),
        }
    }

    fn or(&mut self, other: Self) {
        match (self, other) {
            (Self::Numbers(one), Self::Numbers(other)) => {
                one.extend(other);
                *one = joined(std::mem::take(one));
            }
            (Self::Networks(one), Self::Networks(other)) => extend(one, other),
            (Self::Flags(one), Self::Flags(other)) => extend(one, other),
            (one, other) => unreachable!("{one:?} and {other:?} are of one field"),
        }
    }

    /// Returns the alternatives that meet one of each.
    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Numbers(one), Self::Numbers(other)) => Self::Numbers(common(one, other)),
            (Self::Networks(one), Self::Networks(other)) => {
                Self::Networks(pairs(one, other, |a, b| {
                    // If two networks overlap, one contains the other.
                    [(a, b), (b, a)]
                        .into_iter()
                        .find(|(a, b)| a.contains(*b))
                        .map(|(_, longer)| *longer)
                }))
            }
            (Self::Flags(one), Self::Flags(other)) => Self::Flags(pairs(one, other, |a, b| {
                let agree = (a.value ^ b.value) & a.mask & b.mask == 0;
                let both = FlagCondition { mask: a.mask | b.mask, value: a.value | b.value };
                agree.then_some(both)
            })),
            (one, other) => unreachable!("{one:?} and {other:?} are of one field"),
        }
    }
}

fn extend<T: PartialEq>(to: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !to.contains(&one) {
            to.push(one);
        }
    }
}

fn pairs<T: PartialEq>(one: &[T], other: &[T], join: impl Fn(&T, &T) -> Option<T>) -> Vec<T> {
    let mut joined = Vec::new();
    for a in one {
        extend(&mut joined, other.iter().filter_map(|b| join(a, b)).collect());
    }
    joined
}
