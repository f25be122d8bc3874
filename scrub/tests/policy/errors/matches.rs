//! Errors of a rule's match.

use super::check;

/// Checks rows of fields of a rule's match.
fn check_matches(rows: &[(&str, &str, &str, &str)]) {
    for (fields, marked, object, problem) in rows {
        let text = format!("[[rule]]\nname = 'x'\nmatch = {{ {fields} }}\n");
        let object = if object.is_empty() { "rule x".into() } else { format!("rule x: {object}") };
        check(&[(&text, marked, &object, problem)]);
    }
}

#[test]
fn of_matches() {
    let rows = [
        (
            "src_port = 5",
            "src_port",
            "",
            "unknown 'src_port'; available: version, src, dst, src_set",
        ),
        ("version = 5", "5", "version", "a number is not what belongs here: 4 or 6"),
        ("version = []", "[]", "version", "the list is empty"),
        ("src = 5", "5", "src", "a number is not what belongs here: a network is like"),
        ("src = ['::1', '::x']", "'::x'", "src", "'::x' is no network"),
        (
            "dst = '198.18.0.1/15'",
            "'198.18.0.1/15'",
            "dst",
            "'198.18.0.1/15' has bits behind its length",
        ),
        ("src_set = 'y'", "'y'", "src_set", "there is no set 'y'; there is none"),
        ("dst_set = 5", "5", "dst_set", "a number is not what belongs here: the name of a set"),
        (
            "protocol = 256",
            "256",
            "protocol",
            "256 is above the maximum: write a number from 0 to 255",
        ),
        (
            "protocol = 'tpc'",
            "'tpc'",
            "protocol",
            "there is no protocol 'tpc'; available: icmp, igmp",
        ),
        ("dport = []", "[]", "dport", "the list is empty: give it a value, or leave it out"),
        ("dport = -1", "-1", "dport", "-1 is negative: write a number from 0 to 65535"),
        (
            "dport = 1.5",
            "1.5",
            "dport",
            "a fraction is not what belongs here: a number from 0 to 65535",
        ),
        ("dport = 'http'", "'http'", "dport", "'http' is no number, and this field has no names"),
        ("dport = '5-4'", "'5-4'", "dport", "the range is empty: write \"4-5\""),
        ("dport = '5-70000'", "'5-70000'", "dport", "70000 is above the maximum: write a number"),
        ("dport = '-'", "'-'", "dport", "'-' is not what belongs here: a number from 0 to 65535"),
        ("dport = '5-6-7'", "'5-6-7'", "dport", "'5-6-7' is not what belongs here"),
        (
            "dport = ['5', '!6']",
            "'!6'",
            "dport",
            "the list has values and exclusions (!): write only one",
        ),
        ("dport = '!0-'", "'!0-'", "dport", "no packet matches: it excludes all values"),
        (
            "dport = [99999999999999999999]",
            "99999999999999999999",
            "dport",
            "99999999999999999999 is above the maximum",
        ),
        ("ttl = 256", "256", "ttl", "256 is above the maximum"),
        ("length = 65536", "65536", "length", "65536 is above the maximum"),
        ("dscp = 64", "64", "dscp", "64 is above the maximum"),
        ("vlan = 4096", "4096", "vlan", "4096 is above the maximum: write a number from 0 to 4095"),
        ("flow_label = 1048576", "1048576", "flow_label", "1048576 is above the maximum"),
        (
            "tcp_flags = 2",
            "2",
            "tcp_flags",
            "a number is not what belongs here: flags like \"syn,!ack\"",
        ),
        (
            "tcp_flags = 'syn,ak'",
            "'syn,ak'",
            "tcp_flags",
            "there is no flag 'ak': write flags like \"syn,!ack\"; available: fin",
        ),
        ("tcp_flags = ''", "''", "tcp_flags", "there is no flag ''"),
        ("tcp_flags = 'syn,!syn'", "'syn,!syn'", "tcp_flags", "'syn' appears twice: write it once"),
        (
            "fragment = 'yes'",
            "'yes'",
            "fragment",
            "'yes' is not what belongs here: \"no\", \"any\", ",
        ),
        (
            "icmp_type = 'redirect'",
            "'redirect'",
            "icmp_type",
            "types of ICMP and ICMPv6 differ: 'redirect' needs protocol = \"icmp\" or \"icmpv6\"",
        ),
        (
            "protocol = 1, icmp_type = 'echo'",
            "'echo'",
            "icmp_type",
            "there is no type of ICMP 'echo'; available: echo-reply",
        ),
        ("icmp_code = 256", "256", "icmp_code", "256 is above the maximum"),
        ("payload = 5", "5", "payload", "a number is not what belongs here: { offset = 0, bytes"),
        (
            "payload = { offset = 1 }",
            "{ offset = 1 }",
            "payload",
            "it has no bytes: write { offset",
        ),
        (
            "payload = { length = 1 }",
            "length",
            "payload",
            "unknown 'length'; available: offset, bytes, mask",
        ),
        (
            "payload = { offset = 65536 }",
            "65536",
            "payload: offset",
            "a number is not what belongs here: a number from 0",
        ),
        (
            "payload = { bytes = 'f' }",
            "'f'",
            "payload: bytes",
            "'f' is not what belongs here: 1 to 8 bytes in hexadecimal",
        ),
        ("payload = { bytes = 'gg' }", "'gg'", "payload: bytes", "'gg' is not what belongs here"),
        (
            "payload = { bytes = '001122334455667788' }",
            "'001122334455667788'",
            "payload: bytes",
            "'001122334455667788' is not",
        ),
        (
            "payload = { bytes = 'ff', mask = 'ffff' }",
            "'ffff'",
            "payload: mask",
            "it has 2 bytes: give it as many as bytes, 1",
        ),
        (
            "payload = { bytes = '00', mask = '00' }",
            "'00'",
            "payload: mask",
            "no bit matters: leave the payload out",
        ),
        (
            "payload = { bytes = '0ff1', mask = 'fff0' }",
            "'0ff1'",
            "payload: bytes",
            "no packet matches: f1 has bits outside of the mask f0",
        ),
    ];
    check_matches(&rows);
}

#[test]
fn of_conditions_that_contradict() {
    let rows = [
        (
            "protocol = 'icmp', dport = 5",
            "5",
            "dport",
            "no packet matches: only TCP and UDP have ports, and protocol excludes them: remove one of them",
        ),
        (
            "dport = 5, protocol = 'icmp'",
            "5",
            "dport",
            "no packet matches: only TCP and UDP have ports, and protocol",
        ),
        ("protocol = 'sctp', port = 5", "5", "port", "no packet matches: only TCP and UDP"),
        (
            "protocol = 'udp', tcp_flags = 'syn'",
            "'syn'",
            "tcp_flags",
            "no packet matches: only TCP has flags, and protocol",
        ),
        (
            "protocol = [1, 17], sport = 9, icmp_type = 7",
            "7",
            "icmp_type",
            "no packet matches: only ICMP and ICMPv6 have types, and sport",
        ),
        (
            "icmp_code = 7, tcp_flags = 'syn'",
            "7",
            "icmp_code",
            "no packet matches: only ICMP and ICMPv6 have codes, and tcp_flags",
        ),
        (
            "version = 6, src = '10.0.0.0/8'",
            "'10.0.0.0/8'",
            "src",
            "no packet matches: it is of IPv4, and version is not: remove one of them, or add",
        ),
        (
            "src = '10.0.0.0/8', dst = ['::1', '::2']",
            "['::1', '::2']",
            "dst",
            "no packet matches: it is of IPv6, and src is not",
        ),
        (
            "version = 4, flow_label = 7",
            "7",
            "flow_label",
            "no packet matches: it is of IPv6, and version is not",
        ),
        (
            "src = '::1', fragment = 'dont-fragment'",
            "'dont-fragment'",
            "fragment",
            "no packet matches: it is of IPv4, and src is not",
        ),
        (
            "fragment = ['later', 'last'], dport = 5",
            "['later', 'last']",
            "fragment",
            "no packet matches: later fragments have no header with dport: remove",
        ),
    ];
    check_matches(&rows);
}
