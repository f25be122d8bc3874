//! Protection of TCP, with unbounded tables ([`TcpProtection`] describes it).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::Arrival;
use super::network_map::network_of;
use crate::cause::Cause;
use crate::packet::Packet;
use crate::policy::{Challenge, HOLD_SECONDS, TcpProtection, UdpQuery};

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

const SECOND: u64 = 1_000_000_000;
/// The key of cookies changes with the epoch.
pub(super) const EPOCH_BITS: u32 = 36;
/// Bits of a cookie's timestamp that encode options.
const TIMESTAMP_BITS: u32 = 6;
/// Verification by a retransmission.
const MAX_WEAK: Duration = Duration::from_secs(60);
const MIN_RETRANSMIT_MS: u64 = 700;
const MAX_RETRANSMIT_MS: u64 = 8000;
/// The life of a flow without packets.
const IDLE: u64 = 300 * SECOND;
/// The time after which a flow that did not begin with a SYN is known.
const PROOF_TIME: u64 = 5 * SECOND;

type Flow = (IpAddr, u16, IpAddr, u16);

/// The state of the stage.
#[derive(Clone, Debug, Default)]
pub(super) struct TcpState {
    cookie_key: [u64; 2],
    sources: HashMap<IpAddr, Source>,
    flows: HashMap<Flow, FlowState>,
    /// When SYNs were dropped, in ms.
    syns: HashMap<(Flow, u32), u64>,
    syn_meters: HashMap<IpAddr, Meter>,
    unknown_meters: HashMap<IpAddr, Meter>,
    /// Of queries over UDP, by the rate above which they are challenged.
    pub(super) query_meters: HashMap<(IpAddr, UdpQuery, u32), Meter>,
    /// Before, packets of unknown flows pass.
    pub(super) learn_until: u64,
    /// Before, SYN cookies come back.
    pub(super) cookies_until: u64,
}

/// The numbers in an answer to a SYN that is handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct SynCookie {
    pub(super) number: u32,
    pub(super) timestamp: u32,
}

/// A verified source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    until: u64,
    /// It has only repeated a SYN.
    pub(super) weak: bool,
}

/// A flow that was seen.
#[derive(Clone, Copy, Debug)]
struct FlowState {
    until: u64,
    /// Before, it is not known.
    known_from: u64,
}

/// The packets to a destination in a second, and its level.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    second: u64,
    packets: u32,
    /// The last second that kept the level.
    busy: u64,
    level: usize,
}

impl Meter {
    /// Counts a packet. Returns the level, of at most `max`.
    pub(super) fn count(&mut self, tcp: &TcpProtection, max: usize, now_ns: u64) -> usize {
        let second = now_ns / SECOND;
        let thresholds = tcp.thresholds();
        if second > self.second {
            self.end_second(second, tcp);
            (self.second, self.packets) = (second, 0);
        }
        self.packets += 1;
        let reached =
            thresholds[..max].iter().rposition(|it| self.packets > it.above).map_or(0, |at| at + 1);
        if reached > self.level {
            (self.level, self.busy) = (reached, second);
        }
        self.level
    }

    /// Returns the level, without counting a packet.
    fn level_at(&self, now_ns: u64) -> usize {
        if now_ns / SECOND > self.second + u64::from(HOLD_SECONDS) { 0 } else { self.level }
    }

    /// Lowers the level in calm times; `next` is the second of the next packet.
    fn end_second(&mut self, next: u64, tcp: &TcpProtection) {
        let hold = u64::from(HOLD_SECONDS);
        if next - self.second > hold {
            self.level = 0;
        }
        let Some(lower) = self.level.checked_sub(1) else { return };
        if self.packets >= tcp.thresholds()[lower].below {
            self.busy = self.second;
        }
        if next - self.busy > hold {
            (self.level, self.busy) = (lower, next);
        }
    }
}

impl TcpState {
    pub(super) fn new(cookie_key: [u64; 2]) -> Self {
        Self { cookie_key, ..Self::default() }
    }

    /// Returns why a TCP packet does not go on.
    pub(super) fn decide(&mut self, arrival: Arrival<'_>, tcp: &TcpProtection) -> Option<Cause> {
        let Arrival { packet, now_ns, .. } = arrival;
        if packet.tcp_flags & (SYN | ACK) == SYN {
            let cause = self.decide_syn(packet, tcp, now_ns);
            if cause.is_none() && tcp.state && self.find_flow(packet, now_ns) != Some(true) {
                self.learn(packet, now_ns, now_ns);
            }
            return cause;
        }
        if packet.tcp_flags & RST != 0
            && tcp.challenge != Challenge::Off
            && self.is_answer(packet, now_ns)
        {
            self.verify(packet, tcp.verified_for, false, now_ns);
            return Some(Cause::ChallengeAnswered);
        }
        if packet.tcp_flags & (SYN | RST | ACK) == ACK
            && tcp.challenge != Challenge::Off
            && let Some(cookie) = self.acknowledged_cookie(packet, now_ns)
        {
            // 28 bits alone are guessed within seconds.
            if cookie.timestamp >> TIMESTAMP_BITS == arrival.end_of_headers() >> TIMESTAMP_BITS {
                self.verify(packet, tcp.verified_for, false, now_ns);
            }
            if tcp.state && self.find_flow(packet, now_ns) != Some(true) {
                self.learn(packet, now_ns, now_ns);
            }
            return None;
        }
        if !tcp.state {
            return None;
        }
        let flow = self.find_flow(packet, now_ns);
        if flow == Some(true) {
            return None;
        }
        let meter = self.unknown_meters.entry(packet.dst).or_default();
        // Its first packet has counted.
        if flow == Some(false) && meter.level_at(now_ns) == 0 {
            return None;
        }
        let level = meter.count(tcp, 1, now_ns);
        if level > 0 && now_ns >= self.learn_until {
            return Some(Cause::UnknownFlow);
        }
        if packet.tcp_flags & ACK != 0 && flow.is_none() {
            self.learn(packet, now_ns + PROOF_TIME, now_ns);
        }
        None
    }

    fn decide_syn(
        &mut self,
        packet: &Packet<'_>,
        tcp: &TcpProtection,
        now_ns: u64,
    ) -> Option<Cause> {
        if tcp.challenge == Challenge::Off {
            return None;
        }
        let is_weak = match self.verified(packet, now_ns) {
            Some(Source { weak: false, .. }) => return None,
            Some(_) => true,
            None => false,
        };
        let level = match tcp.challenge {
            Challenge::Always => 2,
            _ => self.syn_meters.entry(packet.dst).or_default().count(tcp, 2, now_ns),
        };
        // No answer leaves by a tunnel.
        let level = if packet.tunnel.is_some() { level.min(1) } else { level };
        match level {
            0 => None,
            1 if is_weak => None,
            1 if self.is_retransmission(packet, now_ns) => {
                self.verify(packet, tcp.verified_for.min(MAX_WEAK), true, now_ns);
                None
            }
            1 => Some(Cause::FirstSyn),
            _ => Some(Cause::Challenge),
        }
    }

    /// Returns a packet's source if it is verified.
    pub(super) fn verified(&self, packet: &Packet<'_>, now_ns: u64) -> Option<Source> {
        self.sources.get(&source(packet)).copied().filter(|it| it.until > now_ns)
    }

    /// Verifies a packet's source for some time.
    pub(super) fn verify(&mut self, packet: &Packet<'_>, time: Duration, weak: bool, now_ns: u64) {
        let until = now_ns + time.as_nanos() as u64;
        self.sources.insert(source(packet), Source { until, weak });
    }

    /// Reports whether a SYN is the retransmission of a remembered one. Remembers it if there is none.
    fn is_retransmission(&mut self, packet: &Packet<'_>, now_ns: u64) -> bool {
        let now = now_ns / 1_000_000;
        let first = self.syns.entry((flow(packet), packet.seq)).or_insert(now);
        let age = now - *first;
        if age > MAX_RETRANSMIT_MS {
            *first = now;
        }
        (MIN_RETRANSMIT_MS..=MAX_RETRANSMIT_MS).contains(&age)
    }

    /// Returns true for a known flow, whose life it prolongs; false for one that is not known yet; none for others.
    fn find_flow(&mut self, packet: &Packet<'_>, now_ns: u64) -> Option<bool> {
        let flow = self.flows.get_mut(&flow(packet)).filter(|it| it.until > now_ns)?;
        let is_known = now_ns >= flow.known_from;
        if is_known {
            flow.until = now_ns + IDLE;
        }
        Some(is_known)
    }

    fn learn(&mut self, packet: &Packet<'_>, known_from: u64, now_ns: u64) {
        self.flows.insert(flow(packet), FlowState { until: now_ns + IDLE, known_from });
    }

    /// Reports whether a RST has the cookie of this epoch or the last one.
    fn is_answer(&self, packet: &Packet<'_>, now_ns: u64) -> bool {
        // The highest bit may be changed.
        self.cookies(packet, now_ns).iter().any(|it| it << 1 == packet.seq << 1)
    }

    /// Returns the cookies of this epoch and the last one.
    pub(super) fn cookies(&self, packet: &Packet<'_>, now_ns: u64) -> [u32; 2] {
        let epoch = (now_ns >> EPOCH_BITS) as u32;
        [epoch, epoch.wrapping_sub(1)].map(|it| self.hash(packet, it, None) as u32)
    }

    /// Returns the SYN cookie of this epoch or the last one that a packet acknowledges.
    fn acknowledged_cookie(&self, packet: &Packet<'_>, now_ns: u64) -> Option<SynCookie> {
        let (number, found) = (packet.seq.wrapping_sub(1), packet.ack.wrapping_sub(1));
        let is_right = |it: &SynCookie| it.number >> 4 == found >> 4 && it.number & 1 == found & 1;
        let epoch = now_ns >> EPOCH_BITS;
        let mut cookies = [epoch, epoch.wrapping_sub(1)]
            .into_iter()
            .map(|epoch| self.syn_cookie(packet, number, epoch));
        cookies.find(|it| now_ns < self.cookies_until && is_right(it))
    }

    /// Returns the SYN cookie for a client that began with a number, of the smallest MSS and no options.
    pub(super) fn syn_cookie(&self, packet: &Packet<'_>, number: u32, epoch: u64) -> SynCookie {
        let hash = self.hash(packet, epoch as u32, Some(number));
        SynCookie {
            number: (hash >> 32) as u32 & !15 | (epoch & 1) as u32,
            timestamp: hash as u32 >> TIMESTAMP_BITS << TIMESTAMP_BITS,
        }
    }

    /// Returns the number that the answer to a SYN acknowledges: a cookie before its sequence number.
    pub(super) fn acknowledgement(&self, packet: &Packet<'_>, now_ns: u64) -> u32 {
        let [cookie, _] = self.cookies(packet, now_ns);
        let is_behind = cookie.wrapping_sub(packet.seq).cast_signed() > 0;
        if is_behind { cookie ^ 1 << 31 } else { cookie }
    }

    fn hash(&self, packet: &Packet<'_>, epoch: u32, number: Option<u32>) -> u64 {
        let (src, dst, sport, dport) = (packet.src, packet.dst, packet.sport, packet.dport);
        let ports = u64::from(sport) << 48 | u64::from(dport) << 32 | u64::from(epoch);
        let mut words = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                vec![u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()), ports]
            }
            _ => {
                let bits = |it| match it {
                    IpAddr::V4(it) => u128::from(it.to_bits()),
                    IpAddr::V6(it) => it.to_bits(),
                };
                let halves = |it: u128| [(it >> 64) as u64, it as u64];
                [halves(bits(src)), halves(bits(dst))].concat().into_iter().chain([ports]).collect()
            }
        };
        words.extend(number.map(u64::from));
        siphash(self.cookie_key, &words)
    }
}

fn source(packet: &Packet<'_>) -> IpAddr {
    if packet.src.is_ipv4() { packet.src } else { network_of(packet.src, 64).addr() }
}

fn flow(packet: &Packet<'_>) -> Flow {
    (packet.src, packet.sport, packet.dst, packet.dport)
}

/// SipHash-1-3 of words in little-endian order.
fn siphash(key: [u64; 2], words: &[u64]) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words.iter().chain([&((words.len() as u64 * 8) << 56)]) {
        state[3] ^= word;
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut state));
    state.iter().fold(0, |all, it| all ^ it)
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32).wrapping_add(*d);
    *c = c.wrapping_add(*b);
    *d = d.rotate_left(21) ^ *a;
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher as _};

    use super::*;

    #[test]
    fn the_hash_is_that_of_the_standard_library() {
        for words in [vec![], vec![1], vec![u64::MAX, 2], vec![3, 4, 5, 6, 7]] {
            let mut theirs = DefaultHasher::new();
            words.iter().for_each(|word: &u64| theirs.write(&word.to_le_bytes()));
            assert_eq!(siphash([0, 0], &words), theirs.finish(), "{words:?}");
        }
    }
}
