//! MPLS (RFC 3032, RFC 5462). The last label says by itself that it is the bottom of the stack.

use crate::spec::fault::Fault;
use crate::spec::header::Header;
use crate::spec::layer::{Field, KnownAs, Protocol};

pub(crate) const MPLS: Protocol = Protocol {
    name: "mpls",
    bytes: 4,
    fields: &[
        Field::part("label", 0, 4, 12, 20).or("16"),
        Field::part("tc", 0, 4, 9, 3),
        Field::part("bottom", 0, 4, 8, 1),
        Field::part("ttl", 0, 4, 0, 8).or("64"),
    ],
    // By IP: RFC 4023; by UDP: RFC 7510.
    known_as: KnownAs { ethertype: Some(0x8847), ip: Some(137), port: Some(6635) },
    lay,
};

fn lay(header: &mut Header) -> Result<(), Fault> {
    let more = header.next().is_some_and(|next| next.protocol.is(&MPLS));
    header.auto("bottom", u128::from(!more));
    Ok(())
}
