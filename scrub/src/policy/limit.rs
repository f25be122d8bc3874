//! Limits: rates, and their keys.

use std::time::Duration;

/// A rate that packets may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The key of the rate: each source, for instance.
    pub by: LimitKey,
    /// The rate.
    pub rate: Rate,
    /// The burst: after a pause, the packets or bits of this time at the rate pass at once, and one packet more.
    pub burst: Duration,
}

/// A rate, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Packets in a second.
    Packets(u64),
    /// Bits in a second, of whole frames without the frame check sequence.
    Bits(u64),
}

/// The keys of a limit, each of which has the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitKey {
    /// Each source address; for IPv6, each /64.
    Source,
    /// Each network of sources: /24 or /48.
    SourceNetwork,
    /// Each destination address.
    Destination,
    /// All packets of the rule, class or profile.
    All,
}
