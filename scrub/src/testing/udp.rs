//! Random queries over UDP, and sequences of them.

use std::net::IpAddr;

use super::{FrameSpec, Random};
use crate::policy::UdpQuery;

/// Clients that come back.
const CLIENTS: usize = 24;
const MS: u64 = 1_000_000;

/// Returns the payload of an A2S query, with this number as its challenge; without, of `T` alone.
pub fn a2s_query(kind: u8, challenge: Option<u32>) -> Vec<u8> {
    let mut payload = vec![0xff, 0xff, 0xff, 0xff, kind];
    if kind == b'T' {
        payload.extend(b"Source Engine Query\0");
    }
    payload.extend(challenge.into_iter().flat_map(u32::to_be_bytes));
    payload
}

/// Returns the payload of a DNS query for a name, with this identification and more bytes behind its question.
pub fn dns_query(id: u16, labels: &[&[u8]], behind: &[u8]) -> Vec<u8> {
    let mut payload = id.to_be_bytes().to_vec();
    payload.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!behind.is_empty())]);
    for label in labels {
        payload.push(label.len() as u8);
        payload.extend(*label);
    }
    payload.extend([0, 0, 1, 0, 1]);
    payload.extend(behind);
    payload
}

/// Returns the payload of a query; of some, it is nearly one.
pub(super) fn random_query(kind: UdpQuery, random: &mut Random) -> Vec<u8> {
    let mut payload = match kind {
        UdpQuery::A2s => {
            let any = random.number() as u32;
            let challenge = random.pick(&[None, Some(u32::MAX), Some(any)]);
            a2s_query(random.pick(b"TTUVW"), challenge)
        }
        UdpQuery::Dns => {
            let (short, long) = (random.bytes(12), random.bytes(64));
            let last = random.pick(&[0, 60, 61, 62]);
            // With the last label, a name of 254, 255 or 256 bytes.
            let labels: &[&[u8]] = match random.below(5) {
                0 => &[],
                1 => &[&long[..63], &long[..63], &long[..63], &long[..last]],
                2 => &[&long],
                _ => &[&short[..3], &short],
            };
            let opt: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
            let mut payload = dns_query(random.number() as u16, labels, random.pick(&[&[], opt]));
            payload[2] = random.pick(&[0, 1, 1, 1, 0x81, 0x28]);
            payload[5] = random.pick(&[0, 1, 1, 1, 1, 1, 2]);
            payload
        }
    };
    match random.below(12) {
        0 => payload.truncate(random.below(payload.len())),
        1 => {
            let at = random.below(payload.len());
            payload[at] ^= 1 << random.below(8);
        }
        2 => payload.extend([7, 7]),
        _ => {}
    }
    payload
}

/// Makes queries of a few clients that answer challenges, and of floods with random sources. Times and rates are near the
/// edges of [`UdpChallenge`](crate::policy::UdpChallenge).
#[derive(Clone, Debug)]
pub struct UdpScenario {
    servers: Vec<IpAddr>,
    /// Queries that were sent.
    queries: Vec<FrameSpec>,
    /// Queries of a flood that are still to come.
    flood: (usize, UdpQuery),
}

impl UdpScenario {
    /// The port of A2S.
    pub const A2S_PORT: u16 = 27015;
    /// The port of DNS.
    pub const DNS_PORT: u16 = 53;

    /// Returns the scenario of queries to some servers, of which there is at least one.
    pub fn new(servers: &[IpAddr]) -> Self {
        Self { servers: servers.to_vec(), queries: Vec::new(), flood: (0, UdpQuery::A2s) }
    }

    /// Returns a packet, and the time since the last one in ns. `cookie` returns the number in the answer to an A2S query.
    pub fn next(
        &mut self,
        random: &mut Random,
        cookie: impl Fn(&FrameSpec) -> u32,
    ) -> (FrameSpec, u64) {
        let (left, kind) = self.flood;
        if left > 0 {
            self.flood.0 -= 1;
            let source = random.number() as u32 | 0x8000;
            return (self.query(random, kind, source), 2000);
        }
        let kind = random.pick(&[UdpQuery::A2s, UdpQuery::A2s, UdpQuery::Dns]);
        if random.one_in(30) {
            self.flood = (random.pick(&[3, 8, 25, 100]), kind);
        }
        let wait = match random.below(40) {
            0 => random.pick(&[5000, 6000, 31_000, 69_000, 138_000, 600_000]) * MS,
            1..4 => random.pick(&[1000, 1001, 2000]) * MS,
            _ => random.below(100) as u64 * MS,
        };
        let known = (!self.queries.is_empty()).then(|| random.pick(&self.queries));
        let spec = match (known, random.below(10)) {
            (None, _) | (_, 0..3) => {
                let client = random.below(CLIENTS) as u32;
                let query = self.query(random, kind, client);
                if self.queries.len() == CLIENTS {
                    self.queries.remove(0);
                }
                self.queries.push(query.clone());
                query
            }
            (Some(query), 3..5) => query,
            (Some(query), it) => {
                let number = cookie(&query) ^ random.pick(&[0, 0, 0, 1, 1 << 31]);
                let payload = a2s_query(random.pick(b"TTUV"), Some(number));
                let sport = if it == 9 { query.sport ^ 1 } else { query.sport };
                FrameSpec { payload, sport, ..query }
            }
        };
        (spec, wait)
    }

    /// Returns a query of a client to a server of its version.
    fn query(&self, random: &mut Random, kind: UdpQuery, client: u32) -> FrameSpec {
        let dst = random.pick(&self.servers);
        let src = match dst {
            IpAddr::V4(_) => IpAddr::from((0x0b00_0000 | client & 0xff_ffff).to_be_bytes()),
            // Two clients in each /64.
            IpAddr::V6(_) => IpAddr::from(
                ((0x2001_0db8_u128 << 32 | u128::from(client / 2)) << 64 | u128::from(client % 2))
                    .to_be_bytes(),
            ),
        };
        let port = match kind {
            UdpQuery::A2s => Self::A2S_PORT,
            UdpQuery::Dns => Self::DNS_PORT,
        };
        let sport = 1024 + random.below(3) as u16;
        let spec = FrameSpec::udp(sport, port, &random_query(kind, random));
        let tags =
            random.pick(&[vec![], vec![], vec![(0x8100, 7)], vec![(0x88a8, 7), (0x8100, 8)]]);
        FrameSpec { src, dst, tags, ..spec }
    }
}
