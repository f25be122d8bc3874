//! pcap-filter expressions.

use sluicegate_scrub::policy::Conditions;

use crate::conditions;

fn of_expression(expression: &str) -> Conditions {
    conditions(&format!("'{expression}'")).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

#[test]
fn expressions_are_matches() {
    for (expression, fields) in [
        ("ip", "{ version = 4 }"),
        ("ip6", "{ version = 6 }"),
        ("not ip", "{ version = 6 }"),
        ("udp", "{ protocol = 17 }"),
        ("esp or ah or sctp", "{ protocol = [50, 51, 132] }"),
        ("icmp", "{ version = 4, protocol = 1 }"),
        ("icmp6", "{ version = 6, protocol = 58 }"),
        ("igmp", "{ version = 4, protocol = 2 }"),
        ("proto gre", "{ protocol = 'gre' }"),
        ("ip proto 47", "{ version = 4, protocol = 47 }"),
        (r"ip6 proto \tcp", "{ version = 6, protocol = 6 }"),
        ("not udp", "{ protocol = '!17' }"),
        ("! (tcp or udp)", "{ protocol = ['!6', '!17'] }"),
        ("not not udp", "{ protocol = 17 }"),
        ("tcp or udp and port 53", "{ protocol = [6, 17], port = 53 }"),
        ("port 53", "{ port = 53 }"),
        ("tcp port 80", "{ protocol = 6, port = 80 }"),
        ("udp dst port 53 or 123", "{ protocol = 17, dport = [53, 123] }"),
        ("udp port 53 or udp port 123", "{ protocol = 17, port = [53, 123] }"),
        ("(tcp port 53) or (udp port 53)", "{ protocol = [6, 17], port = 53 }"),
        ("src portrange 8100-8000", "{ sport = '8000-8100' }"),
        ("src port 1 and dst port 2", "{ sport = 1, dport = 2 }"),
        ("src host 192.0.2.1", "{ src = '192.0.2.1' }"),
        ("src 192.0.2.1 or 192.0.2.2", "{ src = ['192.0.2.1', '192.0.2.2'] }"),
        ("dst host 2001:db8::1 or fe80::1", "{ dst = ['2001:db8::1', 'fe80::1'] }"),
        ("dst 2001:db8::/32", "{ dst = '2001:db8::/32' }"),
        ("ip6 dst host 2001:db8::1", "{ version = 6, dst = '2001:db8::1' }"),
        ("src net 10", "{ src = '10.0.0.0/8' }"),
        ("src net 198.18", "{ src = '198.18.0.0/16' }"),
        ("dst net 198.18.0.0/15 and dst net 198.18.7.0/24", "{ dst = '198.18.7.0/24' }"),
        ("greater 512", "{ length = '498-' }"),
        ("less 114", "{ length = '-100' }"),
        ("greater 100 and less 200", "{ length = '86-186' }"),
        ("not greater 114", "{ length = '-99' }"),
        ("greater 9", "{ length = '0-' }"),
        ("vlan 7 and udp", "{ vlan = 7, protocol = 17 }"),
        ("not vlan 7", "{ vlan = '!7' }"),
        (
            "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
            "{ version = 4, protocol = 6, tcp_flags = 'syn,!ack' }",
        ),
        (
            "tcp[13] = 2",
            "{ version = 4, protocol = 6, tcp_flags = 'syn,!fin,!rst,!psh,!ack,!urg,!ece,!cwr' }",
        ),
        (
            "tcp[tcpflags]&(tcp-rst|tcp-push)!=0",
            "{ version = 4, protocol = 6, tcp_flags = ['rst', 'psh'] }",
        ),
        ("tcp[13] & 0x12 != 2", "{ version = 4, protocol = 6, tcp_flags = ['!syn', 'ack'] }"),
        (
            "tcp[13] & tcp-syn != 0 and tcp[13] & tcp-ack = 0",
            "{ version = 4, protocol = 6, tcp_flags = 'syn,!ack' }",
        ),
        ("icmp[icmptype] = icmp-echo", "{ version = 4, protocol = 1, icmp_type = 8 }"),
        ("icmp6[0] == 128", "{ version = 6, protocol = 58, icmp_type = 128 }"),
        (
            "udp && src port 53 && dst net 198.18.0.0/15 && greater 512",
            "{ protocol = 'udp', sport = 53, dst = '198.18.0.0/15', length = '498-' }",
        ),
    ] {
        assert_eq!(Ok(of_expression(expression)), conditions(fields), "{expression}");
    }
}

#[test]
fn the_word_is_marked() {
    let rows = [
        ("", "it is empty: match = {} matches all packets", ""),
        ("udp and", "it ends too early: a condition is missing", ""),
        ("(udp", "it ends too early: ')' is missing", ""),
        ("udp)", "')' follows a complete expression: join conditions by and", ")"),
        ("udp tcp", "'tcp' follows a complete expression: join conditions by and", "tcp"),
        ("(udp tcp)", "'tcp' is wrong here: write ')'", "tcp"),
        ("ether host 1", "rules do not know 'ether'; known are ip, ip6", "ether"),
        ("udp or src port 5", "or joins alternatives of one field only: write a rule", "or"),
        ("icmp or icmp6", "or joins alternatives of one field only: write a rule", "or"),
        ("src port 5 or dst port 5", "or joins alternatives of one field only", "or"),
        ("src or dst port 5", "a direction is src or dst alone", "or"),
        ("host 192.0.2.1", "write src or dst in front of it", "host"),
        ("udp and net 192.0.2.0/24", "write src or dst in front of it", "net"),
        ("udp src host 192.0.2.1", "only ports follow this protocol: join by and", "host"),
        ("ip port 5", "ports need tcp or udp", "port"),
        ("src proto 5", "a protocol has no direction", "proto"),
        (
            "not port 5",
            "packets without ports match this, too: write match = { port = \"!…\" }",
            "not",
        ),
        ("not icmp", "not inverts one condition only", "not"),
        ("not src net 192.0.2.0/24", "rules cannot exclude src", "not"),
        ("not ip proto 5", "not inverts one condition only", "not"),
        ("port 70000", "'70000' is wrong here: write a number from 0 to 65535", "70000"),
        ("port domain", "'domain' is wrong here: write a number", "domain"),
        ("portrange 5", "'5' is no range: write it like 8000-8100", "5"),
        ("proto nothing", "there is no protocol 'nothing'; available: icmp, ", "nothing"),
        ("src host example.org", "'example.org' is no network: a network is like", "example.org"),
        ("src host 192.0.2.0/24", "a host has no length: write net", "192.0.2.0/24"),
        ("src net 192.0.2.1/24", "'192.0.2.1/24' has bits behind its length", "192.0.2.1/24"),
        ("src net 198.18.0.0 mask 255.254.0.0", "write the mask as a length", "mask"),
        (
            "ip src host 2001:db8::1",
            "no packet matches: the address is of the other",
            "2001:db8::1",
        ),
        ("udp and tcp", "no packet matches: another protocol comes before", "tcp"),
        ("src net 192.0.2.0/24 and src net 10", "no packet matches: another src", "src net 10"),
        ("port 5 and port 6", "two ports without direction: write src port and dst port", "port 6"),
        ("less 13", "no packet matches: frames with IP have 14", "less 13"),
        ("vlan", "it ends too early: the number of the VLAN is missing", ""),
        ("vlan 0", "rules do not match priority tags", "0"),
        ("udp[0] = 1", "rules do not compare these bytes: write match = { payload", "udp"),
        ("tcp[12] = 1", "known are tcp[tcpflags]", "12"),
        ("tcp[13] > 1", "'>' is not available here: write =", ">"),
        ("icmp[0] != 1", "'!=' is not available here", "!="),
        ("tcp[13] & 2 = 3", "the value has bits outside of the mask", "3"),
        ("tcp[13] & 0 = 0", "the value has bits outside of the mask, or the mask has none", "0"),
        ("tcp[13] = tcp-xyz", "'tcp-xyz' is wrong here: write a number from 0 to 255", "tcp-xyz"),
        ("proto 1 and port 5", "port: no packet matches: only TCP and UDP have ports", "port 5"),
        ("sctp port 5", "port: no packet matches: only TCP and UDP have ports", "sctp port 5"),
        (
            "src net 10 and dst net 2001:db8::/32",
            "dst: no packet matches: it is of IPv6, and src is not",
            "dst net 2001:db8::/32",
        ),
    ];
    for (expression, problem, marked) in rows {
        let error = conditions(&format!("'{expression}'")).unwrap_err();
        let message = error.to_string();
        assert_eq!(error.line(), Some(3), "{message}");
        assert!(error.object().starts_with("rule x: match"), "{message}");
        assert!(message.contains(problem), "{expression}: {message}");
        let column = "match = '".len()
            + match marked {
                "" => expression.len(),
                "or" => expression.find(" or ").unwrap() + 1,
                _ => expression.rfind(marked).unwrap(),
            };
        assert!(message.starts_with(&format!("line 3, column {}: ", column + 1)), "{message}");
        let marks = "^".repeat(marked.len().max(1));
        assert!(message.ends_with(&format!("\n   | {}{marks}", " ".repeat(column))), "{message}");
    }
}

#[test]
fn columns_are_right_however_the_text_is_written() {
    for (written, position) in [
        ("\"udp or port 5\"", "line 3, column 14: "),
        ("'''udp or port 5'''", "line 3, column 16: "),
        ("\"\"\"\nudp or port 5\"\"\"", "line 4, column 5: "),
        // Escapes: all of it is marked.
        ("\"udp or \\u0070ort 5\"", "line 3, column 9: "),
    ] {
        let message = conditions(written).unwrap_err().to_string();
        assert!(message.starts_with(position), "{written}: {message}");
    }
}

#[test]
fn deep_and_wide_expressions_are_errors() {
    let deep = format!("{}udp{}", "(".repeat(1000), ")".repeat(1000));
    let nots = format!("{}udp", "!".repeat(1000));
    let long = vec!["udp"; 9000].join(" or ");
    let ports: Vec<_> = (0..300).map(|it| format!("port {}", 2 * it)).collect();
    for (text, problem) in [
        (deep, "more than 32 parentheses"),
        (nots, "more than 32 parentheses"),
        (long, "more than 16384 bytes"),
        (ports.join(" or "), "more than 256 alternatives"),
    ] {
        let message = conditions(&format!("'{text}'")).unwrap_err().to_string();
        assert!(message.contains(problem), "{message}");
    }
}
