//! Random sequences of TCP packets.

use std::net::IpAddr;

use super::{FrameSpec, Random};

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Clients that come back.
const CLIENTS: usize = 24;
const MS: u64 = 1_000_000;

/// Makes packets of a few clients that begin, retransmit, reset and continue connections, and of floods with random sources.
/// Times and rates are near the edges of [`TcpProtection`](crate::policy::TcpProtection).
#[derive(Clone, Debug)]
pub struct TcpScenario {
    servers: Vec<IpAddr>,
    /// SYNs that were sent.
    syns: Vec<FrameSpec>,
    /// Packets of a flood that are still to come, and their flags.
    flood: (usize, u8),
}

impl TcpScenario {
    /// Returns the scenario of connections to some servers, of which there is at least one.
    pub fn new(servers: &[IpAddr]) -> Self {
        Self { servers: servers.to_vec(), syns: Vec::new(), flood: (0, SYN) }
    }

    /// Returns a packet, and the time since the last one in ns. `acknowledgement` returns the number that an answer to a SYN
    /// acknowledges.
    pub fn next(
        &mut self,
        random: &mut Random,
        acknowledgement: impl Fn(&FrameSpec) -> u32,
    ) -> (FrameSpec, u64) {
        let (left, flags) = self.flood;
        if left > 0 {
            self.flood.0 -= 1;
            let source = random.number() as u32 | 0x8000;
            return (
                FrameSpec { tcp_flags: flags, seq: source, ..self.segment(random, source) },
                2000,
            );
        }
        if random.one_in(30) {
            self.flood = (random.pick(&[3, 8, 25, 100]), random.pick(&[SYN, SYN, ACK, RST]));
        }
        let wait = match random.below(40) {
            0 => {
                random.pick(&[5000, 8000, 8001, 12_000, 31_000, 70_000, 299_000, 301_000, 600_000])
                    * MS
            }
            1..4 => random.pick(&[699, 700, 1000, 1001, 2000]) * MS,
            _ => random.below(100) as u64 * MS,
        };
        let known = (!self.syns.is_empty()).then(|| random.pick(&self.syns));
        let spec = match (known, random.below(10)) {
            (None, _) | (_, 0..2) => {
                let client = random.below(CLIENTS) as u32;
                let mut syn = FrameSpec {
                    tcp_flags: SYN,
                    seq: random.number() as u32,
                    ..self.segment(random, client)
                };
                if random.one_in(4) {
                    syn.tcp_flags |= 0xc0;
                    syn.payload = random.bytes(100);
                }
                if self.syns.len() == CLIENTS {
                    self.syns.remove(0);
                }
                self.syns.push(syn.clone());
                syn
            }
            (Some(syn), 2..5) => syn,
            (Some(syn), 5..7) => {
                let seq = acknowledgement(&syn) ^ random.pick(&[0, 0, 0, 1, 1 << 31]);
                FrameSpec {
                    tcp_flags: random.pick(&[RST, RST, RST | ACK, ACK]),
                    seq,
                    payload: Vec::new(),
                    ..syn
                }
            }
            (Some(syn), _) => {
                let tcp_flags = random.pick(&[ACK, ACK, ACK | 1, ACK | SYN, ACK | 8, RST]);
                FrameSpec { tcp_flags, seq: syn.seq.wrapping_add(1), ..syn }
            }
        };
        (spec, wait)
    }

    /// Returns a segment of a client to a server of its version.
    fn segment(&self, random: &mut Random, client: u32) -> FrameSpec {
        let dst = random.pick(&self.servers);
        let src = match dst {
            IpAddr::V4(_) => IpAddr::from((0x0b00_0000 | client & 0xff_ffff).to_be_bytes()),
            // Two clients in each /64.
            IpAddr::V6(_) => IpAddr::from(
                ((0x2001_0db8_u128 << 32 | u128::from(client / 2)) << 64 | u128::from(client % 2))
                    .to_be_bytes(),
            ),
        };
        let tags = random.pick(&[vec![], vec![], vec![(0x8100, 7)]]);
        FrameSpec { src, dst, sport: 1024 + random.below(3) as u16, tags, ..FrameSpec::default() }
    }
}
