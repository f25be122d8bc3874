//! Reports: the counters of a scrubber, by name.

use std::collections::BTreeMap;

use crate::cause::Cause;
use crate::counters;
use crate::policy::{
    AMPLIFICATION, ClassAction, Limit, LimitKey, Policy, Rate, RuleAction, SetAction, Verdict,
};
use crate::program::Count;

/// Stages, in the order in which a packet meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StageName {
    /// Parsing, and packets that no policy concerns.
    Parse,
    /// Sets.
    Set,
    /// Rules.
    Rule,
    /// Challenges of rules.
    Udp,
    /// Amplification classes.
    Amplification,
    /// Fragments.
    Fragment,
    /// TCP.
    Tcp,
    /// Limits, of all stages.
    Limit,
    /// The default.
    Default,
    /// The return path.
    Return,
}

impl StageName {
    /// All stages.
    pub(super) const ALL: [Self; 10] = [
        Self::Parse,
        Self::Set,
        Self::Rule,
        Self::Udp,
        Self::Amplification,
        Self::Fragment,
        Self::Tcp,
        Self::Limit,
        Self::Default,
        Self::Return,
    ];

    /// Returns true if its counters are shown while they are 0, too.
    pub(crate) fn is_always_shown(self) -> bool {
        matches!(self, Self::Set | Self::Rule | Self::Limit)
    }

    /// Returns its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Set => "set",
            Self::Rule => "rule",
            Self::Udp => "udp",
            Self::Amplification => "amplification",
            Self::Fragment => "fragment",
            Self::Tcp => "tcp",
            Self::Limit => "limit",
            Self::Default => "default",
            Self::Return => "return",
        }
    }
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCount {
    /// Its stage.
    pub stage: StageName,
    /// The name of the rule, set, class, limit or cause.
    pub name: String,
    /// The verdict on what it counts. None for rules after which packets go on.
    pub verdict: Option<Verdict>,
    /// Its packets and bytes.
    pub count: Count,
}

/// The meaning of a counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedCause {
    /// Its stage.
    pub stage: StageName,
    /// The name of the rule, set, class, limit or cause.
    pub name: String,
    /// The verdict. None for rules after which packets go on.
    pub verdict: Option<Verdict>,
}

/// Counters by stage and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// With their places in the policy.
    counts: BTreeMap<NamedCause, (u32, Count)>,
}

impl Report {
    /// Names a policy's counters. Those that cannot count are left out, and those that count seldom while they are 0.
    pub(super) fn new(policy: &Policy, counts: &[Count]) -> Self {
        let names = Names::of(policy);
        Self::of(counts, |counter| names.of_counter(counter))
    }

    pub(super) fn of(counts: &[Count], name: impl Fn(u16) -> Option<NamedCause>) -> Self {
        let mut report = Self::default();
        for (counter, count) in (0..).zip(counts) {
            let Some(cause) = name(counter) else { continue };
            if cause.stage.is_always_shown() || count.packets > 0 {
                // Two limits of one list may have the same name.
                let known =
                    report.counts.entry(cause).or_insert((counter.into(), Count::default()));
                known.1.add(*count);
            }
        }
        report
    }

    /// Adds the counts of another report. What only the other one has is kept if it counted.
    pub(super) fn add(&mut self, other: Self) {
        for (cause, (order, count)) in other.counts {
            match self.counts.get_mut(&cause) {
                Some((_, sum)) => sum.add(count),
                None if count.packets > 0 => {
                    self.counts.insert(cause, (order, count));
                }
                None => {}
            }
        }
    }

    /// Returns what was counted, by cause.
    pub(super) fn causes(&self) -> impl Iterator<Item = (&NamedCause, Count)> {
        self.counts.iter().map(|(cause, (_, count))| (cause, *count))
    }

    /// Sets a count, behind those of policies.
    pub(super) fn insert(&mut self, cause: NamedCause, count: Count) {
        self.counts.insert(cause, (u32::MAX, count));
    }

    /// Returns all counters, by stage, then in the order of the policy.
    pub fn counts(&self) -> Vec<NamedCount> {
        let mut all: Vec<_> = self.counts.iter().collect();
        all.sort_by_key(|(cause, (order, _))| (cause.stage, *order));
        let named = all.into_iter().map(|(cause, (_, count))| {
            let NamedCause { stage, name, verdict } = cause.clone();
            NamedCount { stage, name, verdict, count: *count }
        });
        named.collect()
    }

    /// Returns a counter.
    pub fn find(&self, cause: &NamedCause) -> Count {
        self.counts.get(cause).map_or(Count::default(), |(_, count)| *count)
    }

    /// Returns what was counted since an earlier report.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        for (cause, (_, count)) in &mut since.counts {
            let before = earlier.find(cause);
            count.packets = count.packets.saturating_sub(before.packets);
            count.bytes = count.bytes.saturating_sub(before.bytes);
        }
        since
    }

    /// Returns what has a verdict.
    pub fn total(&self, verdict: Verdict) -> Count {
        let mut total = Count::default();
        let counts = self.counts.iter().filter(|(cause, _)| cause.verdict == Some(verdict));
        counts.for_each(|(_, (_, count))| total.add(*count));
        total
    }
}

impl Count {
    fn add(&mut self, other: Self) {
        // Counts of a file may be any.
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The names of a policy's counters.
pub(crate) struct Names<'a> {
    policy: &'a Policy,
    limits: Vec<String>,
}

impl<'a> Names<'a> {
    pub(crate) fn of(policy: &'a Policy) -> Self {
        let named = |owner: String, limits: &[Limit]| {
            limits.iter().map(|limit| format!("{owner}: {limit}")).collect::<Vec<_>>()
        };
        let mut all = Vec::new();
        for rule in &policy.rules {
            if let RuleAction::Limit(limits) = &rule.action {
                all.extend(named(format!("rule {}", rule.name), limits));
            }
        }
        for profile in &policy.profiles {
            for (class, action) in AMPLIFICATION.iter().zip(&profile.amplification) {
                if let ClassAction::Limit(limits) = action {
                    all.extend(named(format!("profile {}, {}", profile.name, class.name), limits));
                }
            }
            all.extend(named(format!("profile {}", profile.name), &profile.limits));
        }
        Self { policy, limits: all }
    }

    /// Describes a counter. None if the policy has no such part.
    pub(crate) fn of_counter(&self, counter: u16) -> Option<NamedCause> {
        let (stage, name, verdict) = self.describe(counters::cause(counter)?, counter)?;
        Some(NamedCause { stage, name, verdict })
    }

    fn describe(&self, cause: Cause, counter: u16) -> Option<(StageName, String, Option<Verdict>)> {
        use Verdict::{Answer, Drop, Pass};
        let (stage, name, verdict) = match cause {
            Cause::Malformed(defect) => (StageName::Parse, defect.name(), Some(Drop)),
            Cause::NotIp => (StageName::Parse, "not-ip", Some(Pass)),
            Cause::Neighbor => (StageName::Parse, "neighbor-discovery", Some(Pass)),
            Cause::Unprotected => (StageName::Parse, "not-protected", Some(Pass)),
            Cause::Set(at) => {
                let set = self.policy.sets.get(at)?;
                let verdict = match set.action {
                    SetAction::None => return None,
                    SetAction::Pass => Pass,
                    SetAction::Drop => Drop,
                };
                (StageName::Set, set.name.as_str(), Some(verdict))
            }
            Cause::Rule(at) => {
                let rule = self.policy.rules.get(at)?;
                let verdict = match rule.action {
                    RuleAction::Drop => Some(Drop),
                    RuleAction::Pass => Some(Pass),
                    RuleAction::Limit(_) | RuleAction::Challenge(_) | RuleAction::Continue => None,
                };
                (StageName::Rule, rule.name.as_str(), verdict)
            }
            Cause::ChallengeA2s => (StageName::Udp, "challenge-a2s", Some(Answer)),
            Cause::ChallengeDns => (StageName::Udp, "challenge-dns", Some(Answer)),
            Cause::CachedA2s => (StageName::Udp, "a2s-cached", Some(Answer)),
            Cause::Amplification(at) => {
                (StageName::Amplification, AMPLIFICATION.get(at)?.name, Some(Drop))
            }
            Cause::Fragment => (StageName::Fragment, "fragment", Some(Drop)),
            Cause::ContradictoryFragment => (StageName::Fragment, "contradictory", Some(Drop)),
            Cause::FirstFragment if counter == counters::of(cause, Pass) => {
                (StageName::Fragment, "follows-first", Some(Pass))
            }
            Cause::FirstFragment => (StageName::Fragment, "follows-first", Some(Drop)),
            Cause::Challenge => (StageName::Tcp, "challenge", Some(Answer)),
            Cause::FirstSyn => (StageName::Tcp, "first-syn", Some(Drop)),
            Cause::ChallengeAnswered => (StageName::Tcp, "challenge-answered", Some(Drop)),
            Cause::UnknownFlow => (StageName::Tcp, "unknown-flow", Some(Drop)),
            Cause::Limit(number) => {
                (StageName::Limit, self.limits.get(number)?.as_str(), Some(Drop))
            }
            Cause::Default if counter == counters::of(cause, Pass) => {
                (StageName::Default, "default", Some(Pass))
            }
            Cause::Default => (StageName::Default, "default", Some(Drop)),
            Cause::ReturnExpired => (StageName::Return, "expired", Some(Drop)),
            Cause::ReturnTooLong => (StageName::Return, "too-long", Some(Drop)),
        };
        Some((stage, name.to_owned(), verdict))
    }
}

/// `10000 packets/s by source`.
impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rate {
            Rate::Packets(rate) => write!(f, "{rate} packets/s")?,
            Rate::Bits(rate) => write!(f, "{rate} bit/s")?,
        }
        f.write_str(match self.by {
            LimitKey::Source => " by source",
            LimitKey::SourceNetwork => " by source network",
            LimitKey::Destination => " by destination",
            LimitKey::All => "",
        })
    }
}
