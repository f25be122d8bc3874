//! Challenges to the senders of queries over UDP.

use std::time::Duration;

/// A rule's answer to queries of sources that are not verified.
///
/// Sources are verified as of [`TcpProtection`](super::TcpProtection): all challenges share them, and the profile of
/// the destination has the time. A query is a whole UDP datagram, behind an IP header without options or extension
/// headers, and not inside of a tunnel:
///
/// - [`A2s`](UdpQuery::A2s): `ff ff ff ff`, then `T` and "Source Engine Query\0", or `U` or `V` and a challenge of 4
///   bytes. The answer is `ff ff ff ff`, `A` and a cookie of 4 bytes.
/// - [`Dns`](UdpQuery::Dns): a header with QR and opcode 0 and one question, then a question without compression. The
///   answer is the header and the question, with QR and TC.
///
/// Further bytes do not matter. No challenge is longer than its query. Queries of verified sources and all other packets
/// go on to the next stage.
///
/// The client of A2S repeats its query with the cookie as its challenge (of `T`, behind the text). This verifies its
/// source, and the query goes on. A cookie is valid for one source and destination with their ports, for 69 to 137 s.
/// The client of DNS repeats its query over TCP, which may verify its source.
///
/// With `above`, a query without a valid cookie is only answered while its destination gets more than this number of
/// such queries in a second, of one kind and by rules with the same `above`. This state ends as level 1 of TCP, with a
/// quarter of the rate as the lower one.
///
/// With `cache`, A2S queries with a valid cookie get the answer that the server gave to another query within this time.
/// While there is one, queries of verified sources without a valid cookie are challenged, too. The program learns answers
/// from what sockets of this host send; elsewhere, the cache is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpChallenge {
    /// The kind of query.
    pub query: UdpQuery,
    /// The rate in packets a second; none: all are answered. Not 0.
    pub above: Option<u32>,
    /// The time for which the answers of a server are used; none: the server answers all. Of A2S only.
    pub cache: Option<Duration>,
}

/// A kind of query that can be challenged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UdpQuery {
    /// The server queries of Valve: <https://developer.valvesoftware.com/wiki/Server_queries>.
    A2s,
    /// A query to a name server (RFC 1035, 4.1).
    Dns,
}

impl UdpQuery {
    /// Returns its name in policies and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::A2s => "a2s",
            Self::Dns => "dns",
        }
    }
}
