//! The oracle: the verdict and cause of each packet, by plain code that shares nothing with the tables and BPF programs.
//!
//! It checks compiled policies, explains decisions and rehearses policies. The order of its stages is that of the
//! [policy](crate::policy).
//!
//! ```
//! use sluicegate_scrub::oracle::Oracle;
//! use sluicegate_scrub::policy::{Policy, Verdict};
//!
//! let mut oracle = Oracle::new(&Policy::default());
//! let arp = [[0xff; 12].as_slice(), &[0x08, 0x06], &[0; 46]].concat();
//! assert_eq!(oracle.decide(&arp, 0).verdict, Verdict::Pass);
//! println!("{}", oracle.explain(&arp, 1000));
//! ```

mod explanation;
mod fragments;
mod limiter;
mod matching;
mod network_map;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::net::IpAddr;

pub(crate) use explanation::cause_text;
pub use explanation::{Explanation, Stage, Step};
use explanation::{Trace, packet_text};
use fragments::{FirstFragments, Relation};
use limiter::Limiter;
use matching::{Subject, first_mismatch};
use network_map::NetworkMap;
use tcp::TcpState;
use udp::Reply;

use crate::cause::{Cause, Decision};
use crate::packet::{Packet, Parsed, Transport, fragment, parse, parse_inside};
use crate::policy::{
    AMPLIFICATION, AmplificationClass, ClassAction, FragmentAction, MAX_SETS, Policy, Profile,
    RuleAction, SetAction, UdpQuery, Verdict,
};

/// Decides on packets as a policy says. It holds the state of limits and of TCP's protection.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// The policy, with at least one profile.
    policy: Policy,
    /// Places in `policy.networks`. Of two with the same network, the first has it.
    protected: NetworkMap<usize>,
    /// Memberships in sets, a bit each.
    sets: NetworkMap<u64>,
    limiters: Vec<Limiter>,
    numbers: LimitNumbers,
    tcp: TcpState,
    first_fragments: FirstFragments,
    /// The limits that the last frame was charged to.
    charged: Vec<usize>,
}

/// The number of the first limit in each list.
#[derive(Clone, Debug, Default)]
struct LimitNumbers {
    rules: Vec<usize>,
    /// Of each profile, those of its classes.
    classes: Vec<Vec<usize>>,
    profiles: Vec<usize>,
}

/// A frame, its packet and time, as limits charge them.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    packet: &'a Packet<'a>,
    frame: &'a [u8],
    now_ns: u64,
}

impl Arrival<'_> {
    /// Returns the last four bytes before the payload: of TCP with timestamps, the one that the client echoes.
    fn end_of_headers(&self) -> u32 {
        let at = self.packet.payload.as_ptr().addr() - self.frame.as_ptr().addr();
        self.frame[..at].last_chunk().map_or(0, |it| u32::from_be_bytes(*it))
    }
}

impl Oracle {
    /// Returns the oracle of a valid policy, with all limits at rest.
    ///
    /// # Panics
    ///
    /// If the policy has more than [`MAX_SETS`] sets.
    pub fn new(policy: &Policy) -> Self {
        assert!(policy.sets.len() <= MAX_SETS, "{} sets, at most {MAX_SETS}", policy.sets.len());
        let mut policy = policy.clone();
        if policy.profiles.is_empty() {
            policy.profiles.push(Profile::default());
        }
        let mut protected = NetworkMap::default();
        for (place, it) in policy.networks.iter().enumerate() {
            for network in &it.networks {
                protected.entry(*network, place);
            }
        }
        let mut sets = NetworkMap::default();
        for (place, set) in policy.sets.iter().enumerate() {
            set.networks.iter().for_each(|network| *sets.entry(*network, 0) |= 1 << place);
        }
        let limiters = policy.limits().map(|limit| Limiter::new(*limit)).collect();
        let numbers = LimitNumbers::new(&policy);
        Self {
            policy,
            protected,
            sets,
            limiters,
            numbers,
            tcp: TcpState::default(),
            first_fragments: FirstFragments::default(),
            charged: Vec::new(),
        }
    }

    /// Forgets verified sources and TCP flows, and sets the key of cookies.
    pub fn set_cookie_key(&mut self, key: [u64; 2]) {
        self.tcp = TcpState::new(key);
    }

    /// Sets the time until which packets of unknown TCP flows pass.
    pub fn learn_flows_until(&mut self, time_ns: u64) {
        self.tcp.learn_until = time_ns;
    }

    /// Sets the time until which SYN cookies come back.
    pub fn expect_cookies_until(&mut self, time_ns: u64) {
        self.tcp.cookies_until = time_ns;
    }

    /// Returns the source address inside of a tunnel. None if the frame is decided on as it is.
    pub(crate) fn source_inside(&self, frame: &[u8]) -> Option<IpAddr> {
        match parse_inside(frame, self.policy.tunnels) {
            Parsed::Packet(packet) if packet.tunnel.is_some() => {
                self.profile(&packet, &mut Trace::off()).map(|_| packet.src)
            }
            _ => None,
        }
    }

    /// Returns a SYN cookie: the sequence number of an answer to a SYN that is handed over. None if the frame is no TCP
    /// packet.
    pub fn syn_cookie(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        match parse(frame) {
            Parsed::Packet(packet) if packet.transport == Transport::Tcp => {
                Some(self.tcp.syn_cookie(&packet, packet.seq, now_ns >> tcp::EPOCH_BITS).number)
            }
            _ => None,
        }
    }

    /// Returns the timestamp in an answer to a SYN that is handed over, without the options that it encodes. None if the
    /// frame is no TCP packet.
    pub fn syn_timestamp(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        match parse(frame) {
            Parsed::Packet(packet) if packet.transport == Transport::Tcp => {
                Some(self.tcp.syn_cookie(&packet, packet.seq, now_ns >> tcp::EPOCH_BITS).timestamp)
            }
            _ => None,
        }
    }

    /// Returns the number that the answer to a SYN acknowledges. None if the frame is no TCP packet.
    pub fn acknowledgement(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        match parse(frame) {
            Parsed::Packet(packet) if packet.transport == Transport::Tcp => {
                Some(self.tcp.acknowledgement(&packet, now_ns))
            }
            _ => None,
        }
    }

    /// Returns the cookie in the answer to an A2S query. None if the frame is no UDP packet.
    pub fn cookie(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        match parse(frame) {
            Parsed::Packet(packet) if packet.transport == Transport::Udp => {
                Some(self.tcp.cookies(&packet, now_ns)[0])
            }
            _ => None,
        }
    }

    /// Decides on a frame, without its frame check sequence, and charges limits. Times do not decrease.
    pub fn decide(&mut self, frame: &[u8], now_ns: u64) -> Decision {
        self.run(frame, now_ns, &mut Trace::off())
    }

    /// Decides on a frame like [`decide`](Self::decide), and lists the steps to the decision. It charges limits too.
    pub fn explain(&mut self, frame: &[u8], now_ns: u64) -> Explanation {
        let mut trace = Trace::on();
        let decision = self.run(frame, now_ns, &mut trace);
        let cause = cause_text(&self.policy, decision.cause);
        Explanation { decision, cause, steps: trace.into_steps() }
    }

    /// Explains the last decision, on this frame at the same time. Limits are charged once. Without steps if the state that the
    /// frame has left leads to another decision, as of a fragment that would come twice.
    pub(crate) fn explain_last(
        &mut self,
        frame: &[u8],
        now_ns: u64,
        decision: Decision,
    ) -> Explanation {
        self.charged.iter().for_each(|number| self.limiters[*number].take_back());
        let again = self.explain(frame, now_ns);
        if again.decision == decision {
            return again;
        }
        let cause = cause_text(&self.policy, decision.cause);
        Explanation { decision, cause, steps: Vec::new() }
    }

    fn run(&mut self, frame: &[u8], now_ns: u64, trace: &mut Trace) -> Decision {
        self.charged.clear();
        let size = || format!("{} bytes", frame.len());
        let mut packet = match parse_inside(frame, self.policy.tunnels) {
            Parsed::NotIp => {
                trace.add(Stage::Frame, size, || "not IP".into());
                return pass(Cause::NotIp);
            }
            Parsed::Malformed(defect) => {
                trace.add(Stage::Frame, size, || format!("malformed: {}", defect.name()));
                return dropped(Cause::Malformed(defect));
            }
            Parsed::Packet(packet) => packet,
        };
        let outer = packet.tunnel.and_then(|_| match parse(frame) {
            Parsed::Packet(outer) => Some(outer),
            _ => None,
        });
        trace.add(Stage::Frame, size, || packet_text(&outer.unwrap_or(packet)));
        if let Some(tunnel) = packet.tunnel {
            trace.add(Stage::Tunnel, || tunnel.name().into(), || packet_text(&packet));
        }
        if packet.is_neighbor_discovery() {
            let message = || format!("ICMPv6 type {}", packet.icmp_type);
            trace.add(Stage::Neighbor, message, || "passes".into());
            return pass(Cause::Neighbor);
        }
        let mut profile = self.profile(&packet, trace);
        if let (None, Some(outer)) = (profile, outer) {
            packet = outer;
            profile = self.profile(&packet, trace);
        }
        let Some(profile) = profile else {
            return pass(Cause::Unprotected);
        };
        let subject = Subject {
            packet: &packet,
            src_sets: self.memberships(packet.src),
            dst_sets: self.memberships(packet.dst),
        };
        let arrival = Arrival { packet: &packet, frame, now_ns };
        let mut first_passed = false;
        let decision = self
            .decide_by_first_fragment(arrival, &mut first_passed, trace)
            .or_else(|| self.decide_by_sets(&subject, trace));
        let decision = match decision {
            Some(decision) => decision,
            // Its rules and later stages have decided on the first one.
            None if first_passed => self
                .decide_by_profile_limits(profile, arrival, trace)
                .unwrap_or(pass(Cause::FirstFragment)),
            None => self.decide_by_later_stages(profile, &subject, arrival, trace),
        };
        if packet.fragment & fragment::FIRST != 0 {
            self.first_fragments.remember(&packet, decision.verdict != Verdict::Pass, now_ns);
        }
        decision
    }

    fn decide_by_later_stages(
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

    fn decide_by_first_fragment(
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
    fn profile(&self, packet: &Packet<'_>, trace: &mut Trace) -> Option<usize> {
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
    fn memberships(&self, address: IpAddr) -> u64 {
        self.sets.covering(address).fold(0, |all, (_, sets)| all | sets)
    }

    fn decide_by_sets(&self, subject: &Subject<'_>, trace: &mut Trace) -> Option<Decision> {
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

    fn decide_by_profile_limits(
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

impl LimitNumbers {
    fn new(policy: &Policy) -> Self {
        let mut next = 0;
        let mut take = |count: usize| {
            next += count;
            next - count
        };
        let mut numbers = Self::default();
        for rule in &policy.rules {
            let count = match &rule.action {
                RuleAction::Limit(limits) => limits.len(),
                _ => 0,
            };
            numbers.rules.push(take(count));
        }
        for profile in &policy.profiles {
            let of_class = |class: &ClassAction| match class {
                ClassAction::Limit(limits) => limits.len(),
                _ => 0,
            };
            let classes = profile.amplification.iter().map(of_class);
            numbers.classes.push(classes.map(&mut take).collect());
            numbers.profiles.push(take(profile.limits.len()));
        }
        numbers
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

fn pass(cause: Cause) -> Decision {
    Decision { verdict: Verdict::Pass, cause }
}

fn dropped(cause: Cause) -> Decision {
    Decision { verdict: Verdict::Drop, cause }
}

fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "passes",
        Verdict::Drop => "drops",
        Verdict::Answer => "answers",
    }
}
