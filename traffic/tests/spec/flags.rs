//! Flags have the same effect as a file.

use sluicegate_traffic::plan::Plan;
use sluicegate_traffic::spec::{Defaults, Flags, Spec, SpecError};

use crate::plan;

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn planned(flags: &Flags) -> Result<Plan, SpecError> {
    Spec::from_flags(flags).and_then(|spec| spec.plan(&Defaults::default()))
}

#[test]
fn flags_and_an_equal_file_make_the_same_packets() {
    let none = Flags::default();
    let rows = [
        ("nothing is UDP in short frames", none.clone(), "", "'ipv4', 'udp'"),
        (
            "what the page of the command shows",
            Flags {
                size: some("60"),
                src: some("198.18.0.0/16"),
                dst: some("198.18.1.2"),
                sport: some("1024-65535"),
                dport: some("9"),
                ..none.clone()
            },
            "size = 60",
            "{ ipv4 = { src = '198.18.0.0/16', dst = '198.18.1.2' } }, \
             { udp = { sport = '1024-65535', dport = 9 } }",
        ),
        (
            "MAC addresses and tags",
            Flags {
                smac: some("02:00:00:00:01:00"),
                dmac: some("02:00:00:00:02:00/32"),
                vlan: vec!["100".into(), "1..9".into()],
                ..none.clone()
            },
            "",
            "{ vlan = { id = 100 } }, { vlan = { id = '1..9' } }, 'ipv4', 'udp'",
        ),
        (
            "an address of IPv6 makes IPv6",
            Flags { dst: some("flow:2001:db8::/64"), proto: some("icmp"), ..none.clone() },
            "",
            "{ ipv6 = { dst = 'flow:2001:db8::/64' } }, 'icmpv6'",
        ),
        (
            "flags of TCP make TCP",
            Flags { tcp_flags: some("SA"), dport: some("80,443"), ..none.clone() },
            "",
            "'ipv4', { tcp = { flags = 'syn+ack', dport = [80, 443] } }",
        ),
        (
            "what varies does so by the flow, if there are flows",
            Flags {
                flows: Some(9),
                src: some("198.18.0.0/16"),
                dst: some("198.19.0.1"),
                ..none.clone()
            },
            "flows = 9",
            "{ ipv4 = { src = 'flow:198.18.0.0/16', dst = '198.19.0.1' } }, 'udp'",
        ),
        (
            "and if nothing varies the port does",
            Flags { flows: Some(9), dport: some("7"), ..none.clone() },
            "flows = 9",
            "'ipv4', { udp = { sport = 'flow:1024..65535', dport = 7 } }",
        ),
        (
            "or the identifier of ICMP",
            Flags { flows: Some(9), proto: some("icmp"), ..none.clone() },
            "flows = 9",
            "'ipv4', { icmp = { id = 'flow:0..65535' } }",
        ),
    ];
    for (name, flags, keys, layers) in rows {
        let ether = match &flags.smac {
            Some(_) => "{ ether = { src = '02:00:00:00:01:00', dst = '02:00:00:00:02:00/32' } }",
            None => "'ether'",
        };
        let text = format!("[[stream]]\n{keys}\nlayers = [{ether}, {layers}, 'payload']\n");
        let same = planned(&flags).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(same, plan(&text), "{name}");
    }
}

#[test]
fn a_payload_names_its_kind() {
    let rows = [
        ("bytes", "hex:00ff", "hex = '00ff'"),
        ("text, with a colon in it", "text:a:b", "text = 'a:b'"),
        ("a pattern", "pattern:55aa", "pattern = '55aa'"),
        ("anything", "random", "random = true"),
    ];
    for (name, text, payload) in rows {
        let flags = Flags { payload: some(text), size: some("99"), ..Flags::default() };
        let layers = format!("['ether', 'ipv4', 'udp', {{ payload = {{ {payload} }} }}]");
        let same = plan(&format!("[[stream]]\nsize = 99\nlayers = {layers}\n"));
        assert_eq!(planned(&flags).unwrap(), same, "{name}");
    }
}

#[test]
fn flags_change_a_profile() {
    let mut spec = Spec::profile("syn-flood").unwrap();
    let flags = Flags {
        dst: some("198.19.9.9"),
        dport: some("443"),
        vlan: vec!["7".into()],
        size: some("90"),
        ..Flags::default()
    };
    spec.apply(&flags).unwrap();
    let plan = spec.plan(&Defaults::default()).unwrap();
    let frame = &crate::frames(&plan, 0, 1, 1)[0];
    assert_eq!(frame.len(), 90);
    assert_eq!(frame[12..18], [0x81, 0, 0, 7, 8, 0]);
    assert_eq!(frame[34..38], [198, 19, 9, 9]);
    assert_eq!(frame[40..42], 443_u16.to_be_bytes());
    assert_eq!(frame[51], 2, "SYN is still there");
}

#[test]
fn a_wrong_flag_is_named() {
    let none = Flags::default();
    let rows = [
        (
            "too great a port",
            Flags { sport: some("70000"), ..none.clone() },
            "--sport: 70000 is too much: the 16 bits of the field hold 65535",
        ),
        (
            "a protocol that is none",
            Flags { proto: some("sctp"), ..none.clone() },
            "--proto: 'sctp' is not udp, tcp or icmp",
        ),
        (
            "two versions of IP",
            Flags { src: some("198.18.0.1"), dst: some("2001:db8::1"), ..none.clone() },
            "--src: '198.18.0.1' is not an IPv6 address like 2001:db8::1",
        ),
        (
            "ports of ICMP",
            Flags { proto: some("icmp"), dport: some("9"), ..none.clone() },
            "--dport: there is no udp or tcp in what is sent: leave it out",
        ),
        (
            "flags of UDP",
            Flags { proto: some("udp"), tcp_flags: some("S"), ..none.clone() },
            "--tcp-flags: there is no tcp in what is sent: leave it out",
        ),
        ("no flow", Flags { flows: Some(0), ..none.clone() }, "--flows: there is at least 1 flow"),
        (
            "a size that is none",
            Flags { size: some("small"), ..none.clone() },
            "--size: 'small' is not a number from 0 to 65535, decimal or 0x…; a size is like 60, \
             60,512,1514, 64-1500 or imix",
        ),
        (
            "a size too small",
            Flags { size: some("41"), ..none.clone() },
            "--size: stream 0: size: 41 bytes are too few: the headers have 42, so at least 42",
        ),
        (
            "a tag that is none",
            Flags { vlan: vec!["4096".into()], ..none.clone() },
            "--vlan: 4096 is too much: the 12 bits of the field hold 4095",
        ),
        (
            "a payload without its kind",
            Flags { payload: some("hello"), ..none.clone() },
            "--payload: 'hello' is not hex:00ff, text:hello, pattern:55aa, file:data or random",
        ),
        (
            "a payload of half bytes",
            Flags { payload: some("hex:0"), ..none.clone() },
            "--payload: these are not bytes in hexadecimal, like 00ff10 or 00 ff 10",
        ),
    ];
    for (name, flags, expected) in rows {
        let error = planned(&flags).expect_err(name);
        assert_eq!(error.to_string(), expected, "{name}");
    }
    let mut profile = Spec::profile("imix").unwrap();
    let error = profile.apply(&Flags { proto: some("tcp"), ..none }).unwrap_err();
    assert_eq!(error.to_string(), "--proto: the specification sets the layers: leave it out");
}
