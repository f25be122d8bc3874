//! Fields of matches.

use sluicegate_scrub::policy::{
    AddressCondition, Conditions, FlagCondition, PayloadCondition, Range,
};

use crate::conditions;

fn ranges<T>(list: impl IntoIterator<Item = (T, T)>) -> Vec<Range<T>> {
    list.into_iter().map(|(first, last)| Range { first, last }).collect()
}

fn flags(list: &[(u8, u8)]) -> Vec<FlagCondition> {
    list.iter().map(|&(mask, value)| FlagCondition { mask, value }).collect()
}

fn networks(list: &[&str]) -> Vec<AddressCondition> {
    list.iter().map(|it| AddressCondition::Network(it.parse().unwrap())).collect()
}

#[test]
fn each_field_is_read() {
    let none = Conditions::default;
    let rows = [
        ("{}", none()),
        ("{ version = 4 }", Conditions { version: Some(4), ..none() }),
        ("{ version = 'ipv6' }", Conditions { version: Some(6), ..none() }),
        ("{ version = [4, 'ipv6'] }", none()),
        (
            "{ src = '192.0.2.0/24', dst = ['198.18.0.1', '2001:db8::/32', '198.18.0.1'] }",
            Conditions {
                src: networks(&["192.0.2.0/24"]),
                dst: networks(&["198.18.0.1/32", "2001:db8::/32"]),
                ..none()
            },
        ),
        ("{ protocol = 'tcp' }", Conditions { protocol: vec![6], ..none() }),
        (
            "{ protocol = ['udp', 'GRE', 132, 'icmp6', '50-51'] }",
            Conditions { protocol: vec![17, 47, 50, 51, 58, 132], ..none() },
        ),
        (
            "{ protocol = '!tcp' }",
            Conditions { protocol: (0..=255).filter(|it| *it != 6).collect(), ..none() },
        ),
        ("{ port = 53 }", Conditions { port: ranges([(53, 53)]), ..none() }),
        (
            "{ sport = [23, 2323, '8000-8100', '60000-'] }",
            Conditions {
                sport: ranges([(23, 23), (2323, 2323), (8000, 8100), (60_000, 65_535)]),
                ..none()
            },
        ),
        ("{ dport = ['-1023', 1024, '5-9'] }", Conditions { dport: ranges([(0, 1024)]), ..none() }),
        ("{ dport = '!53' }", Conditions { dport: ranges([(0, 52), (54, 65_535)]), ..none() }),
        (
            "{ dport = ['! 53', '!0-9', '!65535'] }",
            Conditions { dport: ranges([(10, 52), (54, 65_534)]), ..none() },
        ),
        ("{ length = '1501-' }", Conditions { length: ranges([(1501, 65_535)]), ..none() }),
        ("{ ttl = '-5' }", Conditions { ttl: ranges([(0, 5)]), ..none() }),
        (
            "{ dscp = ['ef', 'cs1', 0, 'af11'] }",
            Conditions { dscp: ranges([(0, 0), (8, 8), (10, 10), (46, 46)]), ..none() },
        ),
        ("{ dscp = '!0' }", Conditions { dscp: ranges([(1, 63)]), ..none() }),
        ("{ tcp_flags = 'syn,!ack' }", Conditions { tcp_flags: flags(&[(18, 2)]), ..none() }),
        (
            "{ tcp_flags = ['!fin, !rst', 'psh,urg', 'ece,cwr'] }",
            Conditions { tcp_flags: flags(&[(5, 0), (40, 40), (192, 192)]), ..none() },
        ),
        ("{ fragment = 'no' }", Conditions { fragment: flags(&[(6, 0)]), ..none() }),
        ("{ fragment = 'any' }", Conditions { fragment: flags(&[(4, 4), (2, 2)]), ..none() }),
        (
            "{ fragment = ['first', 'later', 'last', 'dont-fragment', 'any'] }",
            Conditions { fragment: flags(&[(4, 4), (2, 2), (8, 8), (1, 1)]), ..none() },
        ),
        (
            "{ icmp_type = ['echo-request', 5], protocol = 'icmp' }",
            Conditions { protocol: vec![1], icmp_type: ranges([(5, 5), (8, 8)]), ..none() },
        ),
        (
            "{ protocol = 'icmpv6', icmp_type = 'echo-request', icmp_code = 0 }",
            Conditions {
                protocol: vec![58],
                icmp_type: ranges([(128, 128)]),
                icmp_code: ranges([(0, 0)]),
                ..none()
            },
        ),
        ("{ icmp_type = 8 }", Conditions { icmp_type: ranges([(8, 8)]), ..none() }),
        ("{ vlan = [0, '100-199'] }", Conditions { vlan: ranges([(0, 0), (100, 199)]), ..none() }),
        (
            "{ flow_label = 0xfffff }",
            Conditions { flow_label: ranges([(1_048_575, 1_048_575)]), ..none() },
        ),
        (
            "{ payload = { bytes = 'ff ff ff ff 54' } }",
            Conditions {
                payload: Some(PayloadCondition {
                    offset: 0,
                    value: vec![255, 255, 255, 255, 0x54],
                    mask: vec![255; 5],
                }),
                ..none()
            },
        ),
        (
            "{ payload = { offset = 2, bytes = '8000', mask = 'F0 00' } }",
            Conditions {
                payload: Some(PayloadCondition {
                    offset: 2,
                    value: vec![128, 0],
                    mask: vec![240, 0],
                }),
                ..none()
            },
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(conditions(text), Ok(expected), "{text}");
    }
}

#[test]
fn conditions_that_some_packets_meet_are_no_error() {
    for text in [
        "{ protocol = ['udp', 'icmp'], dport = 53 }",
        "{ protocol = ['tcp', 'udp'], dport = 53, tcp_flags = 'syn' }",
        "{ src = ['198.18.0.0/15', '2001:db8::/32'], dst = '2001:db8::1', flow_label = 1, version = 6 }",
        "{ fragment = ['no', 'later'], dport = 53 }",
        "{ fragment = ['first', 'dont-fragment'], version = 6, sport = 1 }",
        "{ icmp_type = 3, icmp_code = '4-', protocol = [1, 58] }",
    ] {
        assert!(conditions(text).is_ok(), "{text}: {:?}", conditions(text));
    }
}
