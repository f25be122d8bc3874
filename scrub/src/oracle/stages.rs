//! The stages, in the order of the [policy](crate::policy).

use std::net::IpAddr;

use super::explanation::{Stage, Trace};
use super::fragments::Relation;
use super::limiter::Limiter;
use super::matching::{Subject, first_mismatch};
use super::udp::Reply;
use super::{Arrival, Oracle};
use crate::cause::{Cause, Decision};
use crate::packet::{Packet, Transport, fragment};
use crate::policy::{
    AMPLIFICATION, AmplificationClass, ClassAction, FragmentAction, RuleAction, SetAction,
    UdpQuery, Verdict,
};

impl Oracle {
    pub(super) fn decide_by_later_stages(
        &mut self,
        profile: usize,
        subject: &Subject<'_>,
        arrival: Arrival<'_>,
        trace: &mut Trace,
    ) -> Decision {
        self.decide_by_rules(profile, subject, arrival, trace)
            .or_else(|| self.decide_by_class(profile, arrival, trace))
            .or_else(|| self.decide_by_fragment(profile, arrival.packet, trace))
            .or_else(|| self.decide_by_tcp(profile, arrival, trace))
            .or_else(|| self.decide_by_profile_limits(profile, arrival, trace))
            .unwrap_or_else(|| {
                let profile = &self.policy.profiles[profile];
                let name = || format!("profile \"{}\"", profile.name);
                trace.add(Stage::Default, name, || verdict_text(profile.default).into());
                Decision { verdict: profile.default, cause: Cause::Default }
            })
    }

    pub(super) fn decide_by_first_fragment(
        &mut self,
        arrival: Arrival<'_>,
        first_passed: &mut bool,
        trace: &mut Trace,
    ) -> Option<Decision> {
        let packet = arrival.packet;
        if packet.fragment & fragment::LATER == 0 {
            return None;
        }
        let name = || format!("offset {}", u32::from(packet.fragment_offset) * 8);
        let (decision, text) = match self.first_fragments.relate(packet, arrival.now_ns) {
            Relation::Unknown => (None, "the first one is unknown"),
            Relation::Follows { dropped: false } => {
                *first_passed = true;
                (None, "the first one passed")
            }
            Relation::Follows { dropped: true } => {
                (Some(dropped(Cause::FirstFragment)), "the first one was dropped")
            }
            Relation::Contradicts => (
                Some(dropped(Cause::ContradictoryFragment)),
                "overlaps earlier ones, or is one too many",
            ),
        };
        trace.add(Stage::Fragments, name, || text.into());
        decision
    }

    /// Returns the place of the profile of the packet's destination, or none if it is not protected.
    pub(super) fn profile(&self, packet: &Packet<'_>, trace: &mut Trace) -> Option<usize> {
        let address = || packet.dst.to_string();
        if self.policy.networks.is_empty() {
            let name = &self.policy.profiles[0].name;
            trace.add(Stage::Network, address, || {
                format!("all is protected, by profile \"{name}\"")
            });
            return Some(0);
        }
        let Some((network, place)) = self.protected.covering(packet.dst).next() else {
            let inside = packet.tunnel.is_some();
            trace.add(Stage::Network, address, || {
                if inside { "not protected, the tunnel decides" } else { "not protected, passes" }
                    .into()
            });
            return None;
        };
        let protected = &self.policy.networks[*place];
        let name = &self.policy.profiles[protected.profile].name;
        trace.add(Stage::Network, address, || {
            format!("in {network} of \"{}\", profile \"{name}\"", protected.name)
        });
        Some(protected.profile)
    }

    /// Returns the sets that contain an address.
    pub(super) fn memberships(&self, address: IpAddr) -> u64 {
        self.sets.covering(address).fold(0, |all, (_, sets)| all | sets)
    }

    pub(super) fn decide_by_sets(
        &self,
        subject: &Subject<'_>,
        trace: &mut Trace,
    ) -> Option<Decision> {
        let with = |action| {
            let mut sets = self.policy.sets.iter().enumerate();
            sets.position(|(place, set)| set.action == action && subject.src_sets >> place & 1 == 1)
        };
        let address = || subject.packet.src.to_string();
        for (action, verdict) in
            [(SetAction::Pass, Verdict::Pass), (SetAction::Drop, Verdict::Drop)]
        {
            if let Some(place) = with(action) {
                trace.add(Stage::Sets, address, || {
                    let name = &self.policy.sets[place].name;
                    format!("in set {place} \"{name}\", {}", verdict_text(verdict))
                });
                return Some(Decision { verdict, cause: Cause::Set(place) });
            }
        }
        trace.add(Stage::Sets, address, || "in no set that passes or drops".into());
        None
    }

    fn decide_by_rules(
        &mut self,
        profile: usize,
        subject: &Subject<'_>,
        arrival: Arrival<'_>,
        trace: &mut Trace,
    ) -> Option<Decision> {
        for (place, rule) in self.policy.rules.iter().enumerate() {
            let name = || format!("rule {place} \"{}\"", rule.name);
            if let Some(field) = first_mismatch(&rule.conditions, subject) {
                trace.add(Stage::Rules, name, || {
                    format!("does not match: {}", subject.field_text(field))
                });
                continue;
            }
            trace.add(Stage::Rules, name, || {
                let action = match &rule.action {
                    RuleAction::Drop => "drops",
                    RuleAction::Pass => "passes",
                    RuleAction::Limit(_) => "limits",
                    RuleAction::Challenge(_) => "challenges",
                    RuleAction::Continue => "continues",
                };
                format!("matches, {action}")
            });
            return match &rule.action {
                RuleAction::Drop => Some(dropped(Cause::Rule(place))),
                RuleAction::Pass => Some(pass(Cause::Rule(place))),
                RuleAction::Limit(limits) => {
                    let first = self.numbers.rules[place];
                    let limiters = &mut self.limiters[first..][..limits.len()];
                    charge(limiters, first, arrival, &mut self.charged, (Stage::Rules, trace))
                }
                RuleAction::Challenge(challenge) => {
                    let time = self.policy.profiles[profile].tcp.verified_for;
                    let reply = self.tcp.challenge(arrival.packet, challenge, time, arrival.now_ns);
                    let name = || format!("challenge \"{}\"", challenge.query.name());
                    trace.add(Stage::Rules, name, || reply.text().into());
                    let cause = match challenge.query {
                        UdpQuery::A2s => Cause::ChallengeA2s,
                        UdpQuery::Dns => Cause::ChallengeDns,
                    };
                    let answer = Decision { verdict: Verdict::Answer, cause };
                    (reply == Reply::Answer).then_some(answer)
                }
                RuleAction::Continue => None,
            };
        }
        trace.add(
            Stage::Rules,
            || format!("{} rules", self.policy.rules.len()),
            || "none matches".into(),
        );
        None
    }

    fn decide_by_class(
        &mut self,
        profile: usize,
        arrival: Arrival<'_>,
        trace: &mut Trace,
    ) -> Option<Decision> {
        let place = AMPLIFICATION.iter().position(|class| is_answer(class, arrival.packet))?;
        let name = || format!("class \"{}\"", AMPLIFICATION[place].name);
        let stage = Stage::Amplification;
        match self.policy.profiles[profile].amplification.get(place)? {
            ClassAction::Continue => {
                trace.add(stage, name, || "continues".into());
                None
            }
            ClassAction::Drop => {
                trace.add(stage, name, || "drops".into());
                Some(dropped(Cause::Amplification(place)))
            }
            ClassAction::Limit(limits) => {
                trace.add(stage, name, || "limits".into());
                let first = self.numbers.classes[profile][place];
                let limiters = &mut self.limiters[first..][..limits.len()];
                charge(limiters, first, arrival, &mut self.charged, (stage, trace))
            }
        }
    }

    fn decide_by_fragment(
        &self,
        profile: usize,
        packet: &Packet<'_>,
        trace: &mut Trace,
    ) -> Option<Decision> {
        if !packet.is_fragment() {
            return None;
        }
        let profile = &self.policy.profiles[profile];
        let name = || format!("profile \"{}\"", profile.name);
        let drops = match profile.fragments {
            FragmentAction::Follow => false,
            FragmentAction::Known => packet.fragment & fragment::LATER != 0,
            FragmentAction::Drop => true,
        };
        trace.add(Stage::Fragments, name, || if drops { "drops" } else { "continues" }.into());
        drops.then(|| dropped(Cause::Fragment))
    }

    fn decide_by_tcp(
        &mut self,
        profile: usize,
        arrival: Arrival<'_>,
        trace: &mut Trace,
    ) -> Option<Decision> {
        let profile = &self.policy.profiles[profile];
        if arrival.packet.transport != Transport::Tcp || !profile.tcp.is_on() {
            return None;
        }
        let cause = self.tcp.decide(arrival, &profile.tcp);
        let verdict =
            cause.map(|it| if it == Cause::Challenge { Verdict::Answer } else { Verdict::Drop });
        let name = || format!("profile \"{}\"", profile.name);
        trace.add(Stage::Tcp, name, || verdict.map_or("continues", verdict_text).into());
        Some(Decision { verdict: verdict?, cause: cause? })
    }

    pub(super) fn decide_by_profile_limits(
        &mut self,
        profile: usize,
        arrival: Arrival<'_>,
        trace: &mut Trace,
    ) -> Option<Decision> {
        let first = self.numbers.profiles[profile];
        let count = self.policy.profiles[profile].limits.len();
        let limiters = &mut self.limiters[first..][..count];
        charge(limiters, first, arrival, &mut self.charged, (Stage::Limits, trace))
    }
}

/// Charges limits, of which `first` is the first one's number, until one refuses the packet.
fn charge(
    limiters: &mut [Limiter],
    first: usize,
    arrival: Arrival<'_>,
    charged: &mut Vec<usize>,
    (stage, trace): (Stage, &mut Trace),
) -> Option<Decision> {
    for (number, limiter) in (first..).zip(limiters) {
        let accepted = limiter.charge(arrival.packet, arrival.frame.len(), arrival.now_ns);
        trace.add(
            stage,
            || format!("limit {number}: {}", limiter.text(arrival.packet)),
            || {
                if accepted { "accepted".into() } else { "exceeded, drops".into() }
            },
        );
        if !accepted {
            return Some(dropped(Cause::Limit(number)));
        }
        charged.push(number);
    }
    None
}

/// Reports whether a packet is an answer of a class.
fn is_answer(class: &AmplificationClass, packet: &Packet<'_>) -> bool {
    packet.transport == Transport::Udp
        && packet.sport == class.port
        && packet.payload.len() >= class.min_payload.into()
        && class.byte.is_none_or(|byte| {
            let found = packet.payload.get(usize::from(byte.offset));
            found.is_some_and(|it| (it ^ byte.value) & byte.mask == 0)
        })
}

pub(super) fn pass(cause: Cause) -> Decision {
    Decision { verdict: Verdict::Pass, cause }
}

pub(super) fn dropped(cause: Cause) -> Decision {
    Decision { verdict: Verdict::Drop, cause }
}

fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "passes",
        Verdict::Drop => "drops",
        Verdict::Answer => "answers",
    }
}
