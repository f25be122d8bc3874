//! Protection of TCP: challenges to the senders of SYNs, and flows that are known.

use std::time::Duration;

/// Seconds below a level's threshold, after which it is left.
pub const HOLD_SECONDS: u32 = 5;
/// Highest rate at which retransmissions are expected: above, too many SYNs would have to be remembered.
const MAX_RETRANSMIT_RATE: u32 = 1 << 18;

/// The protection of TCP.
///
/// A SYN is a packet with SYN and without ACK; ECN's flags and data do not matter. Each destination address has a
/// level. It depends on the SYNs of unverified sources in the present second:
///
/// | level | entered above | a SYN of a source that is not verified |
/// | --- | --- | --- |
/// | 0 | | passes |
/// | 1 | `above` | is dropped; its retransmission passes, and verifies the source |
/// | 2 | 4 x `above` | is answered by a SYN-ACK that acknowledges a cookie |
///
/// Level 2 begins above 262,144 SYNs at the latest, or at `above` if that is higher: the program remembers no more
/// until their retransmission. For the same reason it also challenges SYNs at level 1 while there are more to all
/// destinations together. The packet that exceeds a threshold meets the higher level already. A level is left for the
/// next lower one with the first SYN that is more than [`HOLD_SECONDS`] after the last second with `below` or more of
/// them (level 2: 4 x `below`), or after the change of the level; after more than [`HOLD_SECONDS`] seconds without any,
/// for level 0.
///
/// A SYN inside of a tunnel is not answered: level 2 acts on it as level 1, and drops it if it cannot be remembered.
///
/// The cookie is a number before the SYN's own: connection tracking of Linux takes it for a late acknowledgement and
/// passes it, so clients behind a firewall get it. A client in SYN-SENT answers the acknowledgement of something that
/// it did not send by a RST with that number, and stays in SYN-SENT (RFC 9293, 3.10.7.3). The RST verifies the source
/// and is dropped. Then the client retransmits its SYN, Linux at once and others after a second, and it passes. So no
/// connection fails.
///
/// A source is an IPv4 address or an IPv6 /64. It is verified for all networks, because it has proved that it receives
/// what is sent to its address. A retransmission proves less: it verifies for a minute at most and for level 1, counts
/// for the level, and gives way to proof. To guess a cookie takes an attacker about 2^29 resets.
///
/// The retransmission of a SYN has the same addresses, ports and sequence number, and comes 0.7 to 8 s after it.
///
/// A flow is known after its SYN passed here, or after packets with ACK arrived for more than 5 s while its destination
/// was calm. The destination is calm until it gets more than `above` packets of unknown flows in a second; then these
/// are dropped. While it is calm, only the first packet of a flow counts. It becomes calm as level 1 is left. A flow is forgotten after 5 minutes without packets. If there is no
/// room, flows with one packet are replaced. For a minute from the start, none is dropped: flows from before become
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpProtection {
    /// When the senders of SYNs are challenged.
    pub challenge: Challenge,
    /// Packets in a second, above which a destination is attacked; not 0.
    pub above: u32,
    /// Packets in a second, below which it is not any more; not 0, and at most `above`.
    pub below: u32,
    /// How long a source stays verified.
    pub verified_for: Duration,
    /// True if packets of unknown flows are dropped when there are many.
    pub state: bool,
    /// When the kernel completes the connections of challenged clients.
    pub handover: Handover,
}

/// When the senders of SYNs are challenged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Challenge {
    /// Never.
    #[default]
    Off,
    /// By the level of their destination.
    Auto,
    /// Always, as on level 2.
    Always,
}

/// When a challenge is a SYN cookie whose connection the kernel completes, so that the client need not repeat its SYN.
///
/// That needs Linux 6.0, a listener on an address of this host (from Linux 6.9 on without Multipath TCP), and a client
/// without TCP MD5 whose MSS is at least 536 bytes (IPv6: 1220). Other SYNs of level 2 are answered as above. A packet
/// that acknowledges a cookie passes, and its flow is known. It verifies its source only if it also echoes the cookie's
/// timestamp: 54 bits of a hash. Without timestamps, as always before Linux 6.9, there are 28 or more, which a flood of
/// 1,500,000 packets a second guesses within three minutes on average: that opens a connection, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handover {
    /// Never.
    Off,
    /// If this host has no tables of netfilter: a firewall may drop a packet whose SYN it has not seen.
    #[default]
    Auto,
    /// Always.
    On,
}

/// The thresholds of a level, in packets in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// The level is entered above.
    pub above: u32,
    /// The level is left below.
    pub below: u32,
}

impl Default for TcpProtection {
    fn default() -> Self {
        Self {
            challenge: Challenge::Off,
            above: 20_000,
            below: 5_000,
            verified_for: Duration::from_secs(600),
            state: false,
            handover: Handover::default(),
        }
    }
}

impl TcpProtection {
    /// Reports whether it does anything.
    pub fn is_on(&self) -> bool {
        self.challenge != Challenge::Off || self.state
    }

    /// Returns the thresholds of level 1 and 2.
    pub fn thresholds(&self) -> [Threshold; 2] {
        let above = self.above.saturating_mul(4).min(MAX_RETRANSMIT_RATE).max(self.above);
        let below = self.below.saturating_mul(4).min(above);
        [Threshold { above: self.above, below: self.below }, Threshold { above, below }]
    }
}
