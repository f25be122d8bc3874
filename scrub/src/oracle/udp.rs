//! Challenges to the senders of queries over UDP ([`UdpChallenge`] describes them).

use std::time::Duration;

use super::tcp::TcpState;
use crate::packet::{Packet, Transport};
use crate::policy::{TcpProtection, UdpChallenge, UdpQuery};

const A2S_INFO: &[u8] = b"\xff\xff\xff\xffTSource Engine Query\0";
const A2S_PLAYER: &[u8] = b"\xff\xff\xff\xffU";
const A2S_RULES: &[u8] = b"\xff\xff\xff\xffV";
/// The challenge of a query that has none, and of one that asks for it.
const NO_CHALLENGE: u32 = u32::MAX;

const DNS_HEADER: usize = 12;
const MAX_NAME: usize = 255;
const MAX_LABEL: u8 = 63;

/// The effect of a challenge on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is no query that can be answered: it goes on.
    NoQuery,
    /// Its source is verified: it goes on.
    Verified,
    /// It has a cookie, and verifies its source: it goes on.
    Cookie,
    /// There are few of them: it goes on.
    Calm,
    /// It is answered.
    Answer,
}

impl Reply {
    /// Describes it.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::NoQuery => "no such query, continues",
            Self::Verified => "the source is verified, continues",
            Self::Cookie => "has a cookie, continues",
            Self::Calm => "few queries, continues",
            Self::Answer => "answers",
        }
    }
}

impl TcpState {
    /// Applies a challenge to a packet. A source is verified for this time.
    pub(super) fn challenge(
        &mut self,
        packet: &Packet<'_>,
        challenge: &UdpChallenge,
        verified_for: Duration,
        now_ns: u64,
    ) -> Reply {
        let Some(given) = query(packet, challenge.query) else { return Reply::NoQuery };
        if self.verified(packet, now_ns).is_some_and(|it| !it.weak) {
            return Reply::Verified;
        }
        if challenge.query == UdpQuery::A2s && self.cookies(packet, now_ns).contains(&given) {
            self.verify(packet, verified_for, false, now_ns);
            return Reply::Cookie;
        }
        let Some(above) = challenge.above else { return Reply::Answer };
        let rates = TcpProtection { above, below: (above / 4).max(1), ..TcpProtection::default() };
        let meter = self.query_meters.entry((packet.dst, challenge.query, above)).or_default();
        if meter.count(&rates, 1, now_ns) > 0 { Reply::Answer } else { Reply::Calm }
    }
}

/// Returns the challenge in a query. None if the packet is no query that can be answered.
fn query(packet: &Packet<'_>, kind: UdpQuery) -> Option<u32> {
    let headers = packet.length as usize - packet.payload.len();
    let is_plain = headers == if packet.src.is_ipv4() { 28 } else { 48 };
    let is_whole = packet.tunnel.is_none() && !packet.is_fragment();
    if packet.transport != Transport::Udp || !is_whole || !is_plain {
        return None;
    }
    match kind {
        UdpQuery::A2s => a2s_challenge(packet.payload),
        UdpQuery::Dns => is_dns_query(packet.payload).then_some(NO_CHALLENGE),
    }
}

fn a2s_challenge(payload: &[u8]) -> Option<u32> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|it| u32::from_be_bytes(*it));
    if let Some(behind) = payload.strip_prefix(A2S_INFO) {
        return Some(number(behind).unwrap_or(NO_CHALLENGE));
    }
    // Without a challenge, an answer would be longer.
    number(payload.strip_prefix(A2S_PLAYER).or_else(|| payload.strip_prefix(A2S_RULES))?)
}

fn is_dns_query(payload: &[u8]) -> bool {
    let Some((header, question)) = payload.split_at_checked(DNS_HEADER) else { return false };
    let is_query = header[2] >> 3 == 0 && header[4..6] == [0, 1];
    is_query && name_length(question).is_some_and(|it| it + 4 <= question.len())
}

/// Returns the bytes of the name that begins here. None if it is too long, or compressed.
fn name_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let label = *bytes.get(at)?;
        at += 1 + usize::from(label);
        if label > MAX_LABEL || at > MAX_NAME {
            return None;
        }
        if label == 0 {
            return Some(at);
        }
    }
}
