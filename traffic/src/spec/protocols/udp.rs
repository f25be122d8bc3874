//! UDP (RFC 768).

use super::tunnel;
use crate::plan::Finish;
use crate::spec::fault::Fault;
use crate::spec::header::{Cover, Header};
use crate::spec::layer::{Field, KnownAs, Protocol};

/// The discard port (RFC 863).
const DISCARD: u128 = 9;

pub(crate) const UDP: Protocol = Protocol {
    name: "udp",
    bytes: 8,
    fields: &[
        Field::number("sport", 0, 2).or("9"),
        Field::number("dport", 2, 2),
        Field::number("length", 4, 2),
        Field::checksum(6),
    ],
    known_as: KnownAs { ethertype: None, ip: Some(17), port: None },
    lay,
};

fn lay(header: &mut Header) -> Result<(), Fault> {
    let port = header.next().and_then(|next| next.protocol.known_as.port);
    header.auto("dport", port.map_or(DISCARD, u128::from));
    header.length("length", 0);
    header.checksum(6, Cover::Upper(17), Finish::NeverZero, is_without(header))
}

/// Over IPv4 a checksum of zero says that there is none. VXLAN does without (RFC 7348, section
/// 5), and in a fragment none can be right: it would be the whole datagram's, which nobody sees.
fn is_without(header: &Header) -> bool {
    let tunnel = header.next().is_some_and(|next| next.protocol.is(&tunnel::VXLAN));
    header.ip.as_ref().is_some_and(|ip| ip.version == 4 && (tunnel || ip.fragment))
}
