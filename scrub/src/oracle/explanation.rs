//! Explanations: the steps to a decision, in words.

use std::fmt::{self, Display, Formatter};

use crate::cause::{Cause, Decision};
use crate::packet::{Packet, Transport, fragment};
use crate::policy::{AMPLIFICATION, Policy};

/// A decision and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The decision.
    pub decision: Decision,
    /// Its cause in words, with the names of the policy.
    pub cause: String,
    /// The steps, in their order.
    pub steps: Vec<Step>,
}

/// A step to a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: Stage,
    /// The address, rule, limit or profile that the stage looks at.
    pub subject: String,
    /// The result.
    pub result: String,
}

/// A stage of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The frame is parsed.
    Frame,
    /// The packet inside of a tunnel.
    Tunnel,
    /// Neighbor discovery passes.
    Neighbor,
    /// The protected network of the destination.
    Network,
    /// Sets that pass or drop, by the source.
    Sets,
    /// Rules and their limits.
    Rules,
    /// Amplification classes and their limits.
    Amplification,
    /// The profile's action on fragments.
    Fragments,
    /// The profile's protection of TCP.
    Tcp,
    /// The profile's limits.
    Limits,
    /// The profile's default.
    Default,
}

impl Stage {
    /// Returns its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Tunnel => "tunnel",
            Self::Neighbor => "neighbor",
            Self::Network => "network",
            Self::Sets => "sets",
            Self::Rules => "rules",
            Self::Amplification => "amplification",
            Self::Fragments => "fragments",
            Self::Tcp => "tcp",
            Self::Limits => "limits",
            Self::Default => "default",
        }
    }
}

impl Display for Stage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.stage, self.subject, self.result)
    }
}

impl Display for Explanation {
    /// Writes a line for each step, and one for the decision.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        write!(f, "{}: {}", self.decision.verdict.name(), self.cause)
    }
}

/// Collects steps, if they are asked for.
pub(super) struct Trace(Option<Vec<Step>>);

impl Trace {
    pub(super) fn on() -> Self {
        Self(Some(Vec::new()))
    }

    pub(super) fn off() -> Self {
        Self(None)
    }

    pub(super) fn add(
        &mut self,
        stage: Stage,
        subject: impl FnOnce() -> String,
        result: impl FnOnce() -> String,
    ) {
        if let Some(steps) = &mut self.0 {
            steps.push(Step { stage, subject: subject(), result: result() });
        }
    }

    pub(super) fn into_steps(self) -> Vec<Step> {
        self.0.unwrap_or_default()
    }
}

/// Returns a cause in words.
pub(crate) fn cause_text(policy: &Policy, cause: Cause) -> String {
    match cause {
        Cause::NotIp => "not IP".into(),
        Cause::Neighbor => "neighbor discovery".into(),
        Cause::Malformed(defect) => format!("malformed, {}", defect.name()),
        Cause::Unprotected => "the destination is not protected".into(),
        Cause::Set(place) => format!("set {place} \"{}\"", policy.sets[place].name),
        Cause::Rule(place) => format!("rule {place} \"{}\"", policy.rules[place].name),
        Cause::ChallengeA2s => "A2S query of a source that is not verified".into(),
        Cause::ChallengeDns => "DNS query of a source that is not verified".into(),
        Cause::CachedA2s => "A2S query, answered from the cache".into(),
        Cause::Amplification(place) => {
            format!("amplification class \"{}\"", AMPLIFICATION[place].name)
        }
        Cause::Fragment => "fragment".into(),
        Cause::FirstFragment => "as the first fragment".into(),
        Cause::ContradictoryFragment => "overlapping or superfluous fragment".into(),
        Cause::Challenge => "SYN of a source that is not verified".into(),
        Cause::FirstSyn => "first SYN of a source that is not verified".into(),
        Cause::ChallengeAnswered => "answer to a challenge".into(),
        Cause::UnknownFlow => "unknown TCP flow".into(),
        Cause::Limit(number) => format!("limit {number} exceeded"),
        Cause::Default => "the profile's default".into(),
        Cause::ReturnExpired => "time to live ends before the return path".into(),
        Cause::ReturnTooLong => "too long for the return path".into(),
    }
}

/// Returns a packet in words.
pub(super) fn packet_text(packet: &Packet<'_>) -> String {
    let Packet { src, dst, protocol, sport, dport, length, ttl, .. } = packet;
    let mut text = match packet.transport {
        Transport::Tcp => {
            let flags = packet.tcp_flags;
            format!("TCP {src} port {sport} to {dst} port {dport}, flags {flags:#04x}")
        }
        Transport::Udp => format!("UDP {src} port {sport} to {dst} port {dport}"),
        Transport::Icmp => {
            let (kind, code) = (packet.icmp_type, packet.icmp_code);
            format!("ICMP {src} to {dst}, type {kind}, code {code}")
        }
        Transport::None => format!("protocol {protocol} {src} to {dst}"),
    };
    text += &format!(", {length} bytes, ttl {ttl}");
    if packet.fragment & fragment::FIRST != 0 {
        text += ", first fragment";
    }
    if packet.fragment & fragment::LATER != 0 {
        text += ", later fragment";
    }
    if packet.vlan != 0 {
        text += &format!(", vlan {}", packet.vlan);
    }
    text
}
