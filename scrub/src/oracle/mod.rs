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
mod stages;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::net::IpAddr;

pub(crate) use explanation::cause_text;
pub use explanation::{Explanation, Stage, Step};
use explanation::{Trace, packet_text};
use fragments::FirstFragments;
use limiter::{LimitNumbers, Limiter};
use matching::Subject;
use network_map::NetworkMap;
use stages::{dropped, pass};
use tcp::TcpState;

use crate::cause::{Cause, Decision};
use crate::packet::{Packet, Parsed, Transport, fragment, parse, parse_inside};
use crate::policy::{MAX_SETS, Policy, Profile, Verdict};

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
        let packet = packet_of(frame, Transport::Tcp)?;
        Some(self.tcp.syn_cookie(&packet, packet.seq, now_ns >> tcp::EPOCH_BITS).number)
    }

    /// Returns the timestamp in an answer to a SYN that is handed over, without the options that it encodes. None if the
    /// frame is no TCP packet.
    pub fn syn_timestamp(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        let packet = packet_of(frame, Transport::Tcp)?;
        Some(self.tcp.syn_cookie(&packet, packet.seq, now_ns >> tcp::EPOCH_BITS).timestamp)
    }

    /// Returns the number that the answer to a SYN acknowledges. None if the frame is no TCP packet.
    pub fn acknowledgement(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        let packet = packet_of(frame, Transport::Tcp)?;
        Some(self.tcp.acknowledgement(&packet, now_ns))
    }

    /// Returns the cookie in the answer to an A2S query. None if the frame is no UDP packet.
    pub fn cookie(&self, frame: &[u8], now_ns: u64) -> Option<u32> {
        let packet = packet_of(frame, Transport::Udp)?;
        Some(self.tcp.cookies(&packet, now_ns)[0])
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
}

/// Returns the packet of a frame, if it has this transport.
fn packet_of(frame: &[u8], transport: Transport) -> Option<Packet<'_>> {
    match parse(frame) {
        Parsed::Packet(packet) if packet.transport == transport => Some(packet),
        _ => None,
    }
}
