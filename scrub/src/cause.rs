//! Causes: why a packet passed or was dropped.

use crate::policy::Verdict;

/// The part that decided on a packet. Places are those in the policy's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It is not IP: it passes.
    NotIp,
    /// It is a message of IPv6 neighbor discovery: it passes.
    Neighbor,
    /// It is malformed: it is dropped.
    Malformed(Defect),
    /// Its destination is not protected: it passes.
    Unprotected,
    /// Its source is in a set that passes or drops.
    Set(usize),
    /// A rule that passes or drops.
    Rule(usize),
    /// It is a query of Valve's protocol whose source is not verified: it is answered.
    ChallengeA2s,
    /// It is a DNS query whose source is not verified: it is answered.
    ChallengeDns,
    /// It is a query of Valve's protocol whose source is verified: it is answered from the cache.
    CachedA2s,
    /// It belongs to an amplification class that is dropped.
    Amplification(usize),
    /// It is a later fragment, and follows the verdict on the first one.
    FirstFragment,
    /// It is a later fragment that overlaps earlier ones, or one too many: it is dropped.
    ContradictoryFragment,
    /// It is a fragment, and such fragments are dropped.
    Fragment,
    /// It is a SYN of a source that is not verified: it is answered.
    Challenge,
    /// It is a SYN of a source that is not verified, whose retransmission passes: it is dropped.
    FirstSyn,
    /// It answers a challenge, and verifies its source: it is dropped.
    ChallengeAnswered,
    /// It belongs to a TCP flow that is not known: it is dropped.
    UnknownFlow,
    /// It exceeds a limit, by its number ([`Policy::limits`](crate::policy::Policy::limits)): it is dropped.
    Limit(usize),
    /// The profile's default.
    Default,
    /// It would pass, but its time to live ends before the return path: it is dropped.
    ReturnExpired,
    /// It would pass, but is too long for the return path: it is dropped.
    ReturnTooLong,
}

/// A verdict and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The cause.
    pub cause: Cause,
}

/// A defect of a packet; of several, the first one that the parser meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Defect {
    /// It ends before its headers or its own length.
    Truncated,
    /// A version, a header's length or the number of extension headers is invalid.
    BadHeader,
    /// A length contradicts another one, or a fragment ends behind the largest packet.
    BadLength,
    /// A first fragment that ends in the transport header, or a TCP fragment that begins in it (RFC 1858).
    TinyFragment,
    /// The source is a multicast, broadcast or loopback address.
    BadSource,
    /// Source and destination are the same address, and it is no BFD Echo.
    SameAddress,
    /// TCP flags that no packet has: none, SYN with FIN or RST, FIN with RST, or neither SYN, RST nor ACK.
    BadFlags,
    /// TCP port 0, or UDP destination port 0.
    PortZero,
}

impl Defect {
    /// All defects, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Truncated,
        Self::BadHeader,
        Self::BadLength,
        Self::TinyFragment,
        Self::BadSource,
        Self::SameAddress,
        Self::BadFlags,
        Self::PortZero,
    ];

    /// Returns its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadHeader => "bad-header",
            Self::BadLength => "bad-length",
            Self::TinyFragment => "tiny-fragment",
            Self::BadSource => "bad-source",
            Self::SameAddress => "same-address",
            Self::BadFlags => "bad-flags",
            Self::PortZero => "port-zero",
        }
    }
}
