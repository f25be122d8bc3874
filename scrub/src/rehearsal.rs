//! Rehearsals: a policy on recorded packets. The XDP program and the oracle decide on each, and must agree.
//!
//! ```
//! use sluicegate_scrub::policy::Policy;
//! use sluicegate_scrub::rehearsal::Rehearsal;
//!
//! let mut rehearsal = Rehearsal::by_oracle(&Policy::default());
//! rehearsal.decide(&[0; 60], 0)?;
//! assert_eq!(rehearsal.all().packets(), 1);
//! # Ok::<(), sluicegate_scrub::rehearsal::RehearsalError>(())
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use sluicegate::error::{Error, Result};
use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate::ring::Meta;

use crate::cause::{Cause, Decision};
use crate::counters;
use crate::oracle::{Explanation, Oracle, cause_text};
use crate::policy::{Policy, Verdict};
use crate::program::Program;
use crate::scrubber::{self, NamedCause, Names, StageName};

/// Bytes of an Ethernet header.
const MIN_FRAME: usize = 14;
/// The longest frame that BPF_PROG_RUN gives to a program in one piece, with pages of 4 KiB
/// (net/bpf/test_run.c, `bpf_prog_test_run_xdp`).
const MAX_FRAME_OF_PROGRAM: usize = 4096 - 256 - 320;

/// A policy on recorded packets, with its limits' state and counts.
#[derive(Debug)]
pub struct Rehearsal {
    policy: Policy,
    oracle: Oracle,
    program: Option<Program>,
    clock: Clock,
    all: Tally,
    /// By verdict.
    by_verdict: [Tally; Verdict::ALL.len()],
    /// By [counter](crate::counters).
    by_counter: BTreeMap<u16, Tally>,
}

/// Packets, and their different sources.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    packets: u64,
    sources: HashSet<IpAddr>,
}

impl Tally {
    fn add(&mut self, source: Option<IpAddr>) {
        self.packets += 1;
        self.sources.extend(source);
    }

    /// Returns the number of packets.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of different source addresses. Packets that are not IP have none.
    pub fn sources(&self) -> u64 {
        self.sources.len() as u64
    }
}

/// A reason why a recorded packet cannot be rehearsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// It was not recorded with an Ethernet header.
    NotEthernet,
    /// The capture has only its first bytes.
    Cut,
    /// It is shorter than an Ethernet header.
    Short,
    /// It is longer than the kernel rehearses.
    Long,
}

impl SkipReason {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotEthernet => "not_ethernet",
            Self::Cut => "cut",
            Self::Short => "short",
            Self::Long => "long",
        }
    }
}

impl Display for SkipReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEthernet => f.write_str("not Ethernet"),
            Self::Cut => f.write_str("cut by a snap length"),
            Self::Short => write!(f, "shorter than {MIN_FRAME} bytes"),
            Self::Long => write!(f, "longer than {MAX_FRAME_OF_PROGRAM} bytes"),
        }
    }
}

/// A packet on which the XDP program and the oracle decide differently.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The packet's bytes.
    pub frame: Vec<u8>,
    /// The program's verdict, and its cause in words.
    pub program: String,
    /// The oracle's way to its decision.
    pub oracle: Explanation,
    /// A limit decided, so the program may have forgotten a source for lack of room.
    pub is_by_limit: bool,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { frame, program, oracle, is_by_limit } = self;
        writeln!(f, "the XDP program and the oracle decide differently")?;
        writeln!(f, "XDP program: {program}")?;
        writeln!(f, "oracle: {}: {}", oracle.decision.verdict.name(), oracle.cause)?;
        oracle.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        if *is_by_limit {
            writeln!(f, "cause: perhaps more sources than limit keys")?;
        }
        f.write_str("bytes: ")?;
        frame.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A failure of a rehearsal.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// The decisions differ.
    #[error("{0}")]
    Difference(Box<Difference>),
    /// The kernel does not run the program.
    #[error(transparent)]
    Program(#[from] Error),
}

impl Rehearsal {
    /// Rehearses a policy by the XDP program with maps of its own, and by the oracle. `limit_keys` is the number of
    /// sources and others that the program's limits can tell apart.
    ///
    /// # Errors
    /// A missing privilege; too little memory; a policy that does not fit.
    pub fn by_program(policy: &Policy, limit_keys: u32) -> Result<Self> {
        let mut program = Program::for_rehearsal(limit_keys)?;
        program.install(&scrubber::build(policy)?)?;
        let mut rehearsal = Self::by_oracle(policy);
        // No sender sees these cookies.
        let key = [1, 2];
        program.set_cookie_key(key);
        rehearsal.oracle.set_cookie_key(key);
        rehearsal.program = Some(program);
        Ok(rehearsal)
    }

    /// Rehearses a policy by the oracle alone, which needs no privilege.
    pub fn by_oracle(policy: &Policy) -> Self {
        Self {
            policy: policy.clone(),
            oracle: Oracle::new(policy),
            program: None,
            clock: Clock::default(),
            all: Tally::default(),
            by_verdict: Default::default(),
            by_counter: BTreeMap::new(),
        }
    }

    /// Returns the reason why a recorded frame cannot be rehearsed, if any.
    pub fn skip_reason(&self, frame: &[u8], meta: &Meta, link_type: u16) -> Option<SkipReason> {
        if link_type != LINKTYPE_ETHERNET {
            Some(SkipReason::NotEthernet)
        } else if frame.len() < meta.wire_bytes as usize {
            Some(SkipReason::Cut)
        } else if frame.len() < MIN_FRAME {
            Some(SkipReason::Short)
        } else if self.program.is_some() && frame.len() > MAX_FRAME_OF_PROGRAM {
            Some(SkipReason::Long)
        } else {
            None
        }
    }

    /// Decides on a frame of at least 14 bytes, and counts it. The time, in ns, is the recorded one; it stands still
    /// while recorded times go back.
    ///
    /// # Errors
    /// The program and the oracle decide differently; the kernel refuses.
    pub fn decide(&mut self, frame: &[u8], recorded_ns: u64) -> Result<(), RehearsalError> {
        let now_ns = self.clock.advance(recorded_ns);
        let decision = self.oracle.decide(frame, now_ns);
        if let Some(program) = &self.program {
            program.set_time(now_ns);
            let by_program = program.rehearse(frame)?;
            if by_program != decision {
                return Err(self.difference(frame, now_ns, by_program, decision));
            }
        }
        let source = self.oracle.source_inside(frame).or_else(|| source(frame));
        let counter = counters::of(decision.cause, decision.verdict);
        self.by_verdict[decision.verdict as usize].add(source);
        self.all.add(source);
        self.by_counter.entry(counter).or_default().add(source);
        Ok(())
    }

    fn difference(
        &mut self,
        frame: &[u8],
        now_ns: u64,
        by_program: Decision,
        by_oracle: Decision,
    ) -> RehearsalError {
        let oracle = self.oracle.explain_last(frame, now_ns, by_oracle);
        let is_limit = |it: Decision| matches!(it.cause, Cause::Limit(_));
        let program = cause_text(&self.policy, by_program.cause);
        RehearsalError::Difference(Box::new(Difference {
            frame: frame.to_vec(),
            program: format!("{}: {program}", by_program.verdict.name()),
            is_by_limit: is_limit(by_program) || is_limit(oracle.decision),
            oracle,
        }))
    }

    /// Explains the oracle's decision on a frame after those that were decided on.
    pub fn explain(&mut self, frame: &[u8], recorded_ns: u64) -> Explanation {
        let now_ns = self.clock.advance(recorded_ns);
        self.oracle.explain(frame, now_ns)
    }

    /// Returns all packets.
    pub fn all(&self) -> &Tally {
        &self.all
    }

    /// Returns the packets with a verdict.
    pub fn of_verdict(&self, verdict: Verdict) -> &Tally {
        &self.by_verdict[verdict as usize]
    }

    /// Returns the packets on which a part of the policy decided, if any.
    pub fn decided_by(&self, part: &DecidingPart) -> Option<&Tally> {
        self.by_counter.get(&part.counter)
    }
}

/// A part of a policy that decides on packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidingPart {
    counter: u16,
    /// Its stage.
    pub stage: StageName,
    /// The name of the rule, set, class, limit or cause.
    pub name: String,
    /// Its verdict.
    pub verdict: Verdict,
}

/// Returns the parts of a policy that may decide, in the order of stages: all sets, rules and limits; others that
/// decided in one of these rehearsals.
pub fn deciding_parts(policy: &Policy, rehearsals: &[&Rehearsal]) -> Vec<DecidingPart> {
    let names = Names::of(policy);
    let part = |counter| {
        let NamedCause { stage, name, verdict } = names.of_counter(counter)?;
        let decided = rehearsals.iter().any(|it| it.by_counter.contains_key(&counter));
        let part = DecidingPart { counter, stage, name, verdict: verdict? };
        (stage.is_always_shown() || decided).then_some(part)
    };
    let mut parts: Vec<_> = (0..counters::COUNTERS).filter_map(part).collect();
    parts.sort_by_key(|it| (it.stage, it.counter));
    parts
}

/// The time of a rehearsal, which does not go back.
#[derive(Clone, Debug)]
struct Clock {
    /// The recorded time of the first packet.
    first_ns: Option<u64>,
    now_ns: u64,
}

impl Clock {
    /// The time of the first packet: 0 would be the kernel's clock.
    const START_NS: u64 = 1_000_000_000;
    /// The longest time from the first packet on, 18 years: the program's limits count sixteenths of ns in 64 bits.
    const MAX_NS: u64 = 1 << 59;

    fn advance(&mut self, recorded_ns: u64) -> u64 {
        let first_ns = *self.first_ns.get_or_insert(recorded_ns);
        let since = recorded_ns.saturating_sub(first_ns).min(Self::MAX_NS);
        self.now_ns = self.now_ns.max(Self::START_NS + since);
        self.now_ns
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self { first_ns: None, now_ns: Self::START_NS }
    }
}

/// Returns the source address of a frame, also of a malformed one.
fn source(frame: &[u8]) -> Option<IpAddr> {
    let mut at = 12;
    let ethertype = loop {
        match frame.get(at..at + 2)? {
            [0x81, 0x00] | [0x88, 0xa8] => at += 4,
            other => break other,
        }
    };
    let packet = &frame[at + 2..];
    match ethertype {
        [0x08, 0x00] => Some(packet.get(12..)?.first_chunk::<4>().copied()?.into()),
        [0x86, 0xdd] => Some(packet.get(8..)?.first_chunk::<16>().copied()?.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::parse;
    use crate::policy::{Limit, LimitKey, Profile, Rate};
    use crate::testing::{Fragment, FrameGenerator, FrameSpec, Random, TunnelSpec, random_policy};

    /// A policy that passes one packet a second.
    fn one_packet() -> Policy {
        let limit =
            Limit { by: LimitKey::All, rate: Rate::Packets(1), burst: std::time::Duration::ZERO };
        let profile = Profile { limits: vec![limit], ..Profile::default() };
        Policy { profiles: vec![profile], ..Policy::default() }
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let mut clock = Clock::default();
        let times = [1 << 60, (1 << 60) + 5, (1 << 60) - 7, (1 << 60) + 6, 0, u64::MAX];
        let times = times.map(|it| clock.advance(it));
        let start = Clock::START_NS;
        assert_eq!(
            times,
            [start, start + 5, start + 5, start + 6, start + 6, start + Clock::MAX_NS]
        );
    }

    #[test]
    fn packets_and_sources_are_counted_by_part() {
        let policy = one_packet();
        let mut rehearsal = Rehearsal::by_oracle(&policy);
        for (src, ms) in [
            ("192.0.2.1", 0),
            ("192.0.2.1", 1),
            ("192.0.2.2", 2),
            ("192.0.2.1", 3),
            ("192.0.2.2", 1000),
        ] {
            let frame = FrameSpec::default().between(src, "198.51.100.1").build();
            rehearsal.decide(&frame, ms * 1_000_000).unwrap();
        }
        let count = |it: &Tally| (it.packets(), it.sources());
        assert_eq!(count(rehearsal.all()), (5, 2));
        assert_eq!(count(rehearsal.of_verdict(Verdict::Pass)), (2, 2));
        assert_eq!(count(rehearsal.of_verdict(Verdict::Drop)), (3, 2));
        let parts = deciding_parts(&policy, &[&rehearsal]);
        let rows: Vec<_> = parts
            .iter()
            .map(|it| (it.name.as_str(), rehearsal.decided_by(it).map(count)))
            .collect();
        assert_eq!(
            rows,
            [("profile default: 1 packets/s", Some((3, 2))), ("default", Some((2, 2)))]
        );
        let unused = Rehearsal::by_oracle(&policy);
        let parts = deciding_parts(&policy, &[&unused]);
        assert_eq!(parts.len(), 1, "limits are shown without a packet: {parts:?}");
        assert!(unused.decided_by(&parts[0]).is_none());
    }

    #[test]
    fn the_source_in_a_tunnel_is_that_of_the_packet_inside() {
        let text = "tunnels = ['gre']\nprotect.web.networks = '198.51.100.0/24'\n";
        let mut rehearsal = Rehearsal::by_oracle(&Policy::parse(text).unwrap());
        let outer = FrameSpec::default();
        let mut sources = 0;
        for (src, dst, is_new) in [
            ("192.0.2.7", "198.51.100.9", true),
            ("192.0.2.8", "198.51.100.9", true),
            // Not protected: that of the tunnel, and always the same.
            ("192.0.2.9", "203.0.113.1", true),
            ("192.0.2.10", "203.0.113.1", false),
        ] {
            let packet = FrameSpec::udp(1, 2, &[]).between(src, dst);
            rehearsal.decide(&packet.inside(&outer, TunnelSpec::Gre(0)).build(), 0).unwrap();
            sources += u64::from(is_new);
            assert_eq!(rehearsal.all().sources(), sources, "{src} {dst}");
        }
    }

    #[test]
    fn the_source_of_a_frame_is_that_of_its_packet() {
        let mut random = Random::new(3);
        let frames = FrameGenerator::new(&random_policy(&mut random));
        let mut packets = 0;
        for _ in 0..10_000 {
            let frame = frames.frame(&mut random);
            if let crate::packet::Parsed::Packet(packet) = parse(&frame) {
                assert_eq!(source(&frame), Some(packet.src), "{frame:02x?}");
                packets += 1;
            }
        }
        assert!(packets > 1000, "{packets}");
        assert_eq!(source(&[0; 14]), None);
        assert_eq!(source(&[[0; 12].as_slice(), &[0x08, 0x00]].concat()), None);
    }

    /// Returns a rehearsal of the empty policy by the program; without the privilege for it, prints that the test is skipped.
    fn by_program() -> Option<Rehearsal> {
        match Rehearsal::by_program(&Policy::default(), 64) {
            Err(error @ Error::Privilege { .. }) => {
                println!("skipped: {error}");
                None
            }
            made => Some(made.unwrap()),
        }
    }

    #[test]
    fn a_difference_has_both_decisions_and_the_explanation() {
        let Some(mut rehearsal) = by_program() else { return };
        // The program has another policy than the oracle.
        rehearsal.oracle = Oracle::new(&one_packet());
        let frame = FrameSpec::default().build();
        rehearsal.decide(&frame, 5).unwrap();
        let error = rehearsal.decide(&frame, 6).unwrap_err().to_string();
        assert!(
            error.contains(
                "XDP program: pass: the profile's default\noracle: drop: limit 0 exceeded\n"
            ),
            "{error}"
        );
        assert!(
            error.contains("\n  limits: limit 0: 1 packets/s in all, burst 0ns: exceeded, drops\n"),
            "{error}"
        );
        assert!(
            error.ends_with(&frame.iter().map(|it| format!("{it:02x}")).collect::<String>()),
            "{error}"
        );
        assert_eq!(rehearsal.all().packets(), 1);
    }

    #[test]
    fn a_difference_has_the_decision_on_a_fragment_that_comes_once() {
        let Some(mut rehearsal) = by_program() else { return };
        rehearsal.oracle = Oracle::new(&one_packet());
        let fragment = |offset, more| {
            let fragment = Some(Fragment { offset, more });
            FrameSpec { fragment, ..FrameSpec::udp(9, 9, &[0; 32]) }.build()
        };
        rehearsal.decide(&fragment(0, true), 5).unwrap();
        let error = rehearsal.decide(&fragment(5, false), 6).unwrap_err().to_string();
        assert!(error.contains("\noracle: drop: limit 0 exceeded\n"), "{error}");
        assert!(!error.contains("overlaps"), "{error}");
    }

    #[test]
    fn the_longest_frame_is_rehearsed_alike() {
        let Some(mut rehearsal) = by_program() else { return };
        let spec = FrameSpec::udp(9, 9, &[0; MAX_FRAME_OF_PROGRAM - 42]);
        let frame = spec.build();
        assert_eq!(frame.len(), MAX_FRAME_OF_PROGRAM);
        rehearsal.decide(&frame, 1).unwrap();
    }
}
