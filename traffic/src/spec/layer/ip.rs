//! IPv4 (RFC 791), IPv6 and its extension headers (RFC 8200).

use sluicegate_base::headers::ethertype;

use sluicegate_base::text_error::Fault;

use super::writer::{Cover, HeaderWriter, Ip};
use super::{Field, FieldKind, Protocol};
use crate::plan::Finish;
use crate::spec::value::{Form, number_of};

/// Differentiated services (RFC 8126's registry): named traffic classes.
const DSCP: &str = "\
    cs0=0 cs1=8 af11=10 af12=12 af13=14 cs2=16 af21=18 af22=20 af23=22 cs3=24 af31=26 af32=28 \
    af33=30 cs4=32 af41=34 af42=36 af43=38 cs5=40 ef=46 cs6=48 cs7=56";

/// Explicit congestion notification (RFC 3168).
const ECN: &str = "not-ect=0 ect1=1 ect0=2 ce=3";

/// Named IP protocols and IPv6 next headers.
const IP_PROTOCOLS: &str = "\
    hop-by-hop=0 icmp=1 igmp=2 ipip=4 tcp=6 udp=17 ipv6=41 routing=43 fragment=44 gre=47 esp=50 \
    ah=51 icmpv6=58 destination=60 ospf=89 sctp=132";

/// The lowest flag.
const MORE_FRAGMENTS: u128 = 1;

pub(crate) const IPV4: Protocol =
    Protocol::new("ipv4", 20, ipv4).ethertype(ethertype::IPV4).ip(4).fields(&[
        Field::part("version", 0, 1, 4, 4).or("4"),
        Field::part("ihl", 0, 1, 0, 4),
        Field::number("tos", 1, 1),
        Field::part("dscp", 1, 1, 2, 6).named(DSCP),
        Field::part("ecn", 1, 1, 0, 2).named(ECN),
        Field::number("length", 2, 2),
        Field::number("id", 4, 2),
        Field::part("flags", 6, 2, 13, 3).flags(&["mf", "df", "reserved"], &[]),
        Field::part("frag", 6, 2, 0, 13),
        Field::number("ttl", 8, 1).or("64"),
        Field::number("protocol", 9, 1).named(IP_PROTOCOLS),
        Field::checksum(10),
        Field::address("src", 12, Form::Ipv4),
        Field::address("dst", 16, Form::Ipv4),
        // The header's length has four bits, and counts words.
        Field::special("options", FieldKind::Hex(40)),
    ]);

fn ipv4(header: &mut HeaderWriter) -> Result<(), Fault> {
    let [src, dst] = header.defaults.ipv4;
    header.auto("src", number_of(&src.octets()));
    header.auto("dst", number_of(&dst.octets()));
    header.append_given("options");
    // A zero ends the options.
    header.fill_to_multiple(4);
    header.auto("ihl", header.bytes() as u128 / 4);
    header.length("length", 0);
    header.name_next_protocol("protocol")?;
    header.checksum(10, Cover::Header, Finish::Plain, false)?;
    let flags = header.layer.value("flags");
    let frag = header.layer.value("frag");
    let fragment = flags.is_some_and(|flags| flags.may_be(|bits| bits & MORE_FRAGMENTS != 0))
        || frag.is_some_and(|frag| frag.may_be(|offset| offset != 0));
    let addresses = header.at + 12..header.at + 20;
    header.draft.ip = Some(Ip { version: 4, addresses, fragment });
    Ok(())
}

pub(crate) const IPV6: Protocol =
    Protocol::new("ipv6", 40, ipv6).ethertype(ethertype::IPV6).ip(41).fields(&[
        Field::part("version", 0, 4, 28, 4).or("6"),
        Field::part("traffic-class", 0, 4, 20, 8),
        Field::part("dscp", 0, 4, 22, 6).named(DSCP),
        Field::part("ecn", 0, 4, 20, 2).named(ECN),
        Field::part("flow-label", 0, 4, 0, 20),
        Field::number("length", 4, 2),
        Field::number("next-header", 6, 1).named(IP_PROTOCOLS),
        Field::number("hop-limit", 7, 1).or("64"),
        Field::address("src", 8, Form::Ipv6),
        Field::address("dst", 24, Form::Ipv6),
    ]);

fn ipv6(header: &mut HeaderWriter) -> Result<(), Fault> {
    let [src, dst] = header.defaults.ipv6;
    header.auto("src", src.to_bits());
    header.auto("dst", dst.to_bits());
    header.length("length", 40);
    header.name_next_protocol("next-header")?;
    let addresses = header.at + 8..header.at + 40;
    header.draft.ip = Some(Ip { version: 6, addresses, fragment: false });
    Ok(())
}

/// Maximum data of an extension header: its length field has eight bits, and counts units of eight bytes.
const MAX_DATA: usize = 256 * 8 - 4;

pub(crate) const HOP_OPTS: Protocol = options_header("hop-by-hop", 0);
pub(crate) const DST_OPTS: Protocol = options_header("destination", 60);

const fn options_header(name: &'static str, number: u8) -> Protocol {
    Protocol::new(name, 2, options).ip(number).fields(OPTIONS)
}

const OPTIONS: &[Field] = &[
    Field::number("next-header", 0, 1).named(IP_PROTOCOLS),
    Field::number("length", 1, 1),
    Field::special("options", FieldKind::Hex(MAX_DATA)),
];

fn options(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.append_given("options");
    // One byte of padding is the option Pad1; more bytes are PadN (RFC 8200, section 4.2).
    let pad = match header.bytes() {
        2 => 6,
        bytes => bytes.next_multiple_of(8) - bytes,
    };
    if pad == 1 {
        header.append(&[0]);
    } else if pad > 1 {
        header.append(&[1, pad as u8 - 2]);
    }
    extension(header)
}

pub(crate) const ROUTING: Protocol = Protocol::new("routing", 4, routing).ip(43).fields(&[
    Field::number("next-header", 0, 1).named(IP_PROTOCOLS),
    Field::number("length", 1, 1),
    // RFC 3692: for experiments.
    Field::number("type", 2, 1).or("253"),
    Field::number("segments-left", 3, 1),
    Field::special("data", FieldKind::Hex(MAX_DATA)),
]);

fn routing(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.append_given("data");
    extension(header)
}

/// Finishes an extension header with a length, which counts units of eight bytes after the first.
fn extension(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.fill_to_multiple(8);
    header.auto("length", header.bytes() as u128 / 8 - 1);
    header.draft.ip.clone_from(&header.ip);
    header.name_next_protocol("next-header")
}

pub(crate) const FRAGMENT: Protocol = Protocol::new("fragment", 8, fragment).ip(44).fields(&[
    Field::number("next-header", 0, 1).named(IP_PROTOCOLS),
    Field::part("frag", 2, 2, 3, 13),
    Field::part("mf", 2, 2, 0, 1),
    Field::number("id", 4, 4),
]);

fn fragment(header: &mut HeaderWriter) -> Result<(), Fault> {
    header.draft.ip = header.ip.clone().map(|ip| Ip { fragment: true, ..ip });
    header.name_next_protocol("next-header")
}
