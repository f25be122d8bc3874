use super::*;

fn parse(text: &str) -> PortName {
    text.parse().unwrap()
}

#[test]
fn names_are_kind_name_queues_and_options() {
    let port = parse("packet:eth0/0-3?method=ring&snaplen=96");
    assert_eq!((port.kind(), port.name()), (Kind::Packet, "eth0"));
    assert_eq!(port.queues(), Some(0..=3));
    assert_eq!(port.option("method"), Some("ring"));
    assert_eq!(port.number("snaplen", 1..=100).unwrap(), Some(96));
    assert_eq!(port.to_string(), "packet:eth0/0-3?method=ring&snaplen=96");

    assert_eq!(parse("eth0").kind(), Kind::Packet, "a bare name is the safe choice");
    assert_eq!(parse("eth0/2").queues(), Some(2..=2));
    assert_eq!(parse("pcap:/a/b-1.pcap").name(), "/a/b-1.pcap", "a path keeps its slashes");
    assert_eq!(parse("pcap:-").name(), "-");
    assert_eq!(parse("null:").name(), "");
}

#[test]
fn a_file_is_a_port_by_its_name() {
    for text in ["a.pcap", "b/a.pcapng.zst", "a.pcap.lz4", "./a", "../a", "/a", "12:00.pcap"] {
        let port = parse(text);
        assert_eq!((port.kind(), port.name()), (Kind::Pcap, text));
        assert!(!port.is_bare(), "{text}");
        let filtered = parse(&format!("{text},filter=ether host 02:00:00:00:00:01"));
        assert_eq!((filtered.kind(), filtered.name()), (Kind::Pcap, text));
        assert_eq!(filtered.option("filter"), Some("ether host 02:00:00:00:00:01"));
    }
    for text in ["eth0.100", "pcap", "a.zst", "packet:a.pcap"] {
        assert_eq!(parse(text).kind(), Kind::Packet, "{text}");
    }
}

#[test]
fn options_follow_a_comma_or_a_question_mark() {
    let options = |text: &str| {
        let port = parse(text);
        ["filter", "snaplen", "fanout_flags"].map(|key| port.option(key).map(str::to_owned))
    };
    let rows: [(&str, [Option<&str>; 3]); 7] = [
        ("xdp:eth0/0-1,filter=udp port 9", [Some("udp port 9"), None, None]),
        ("eth0,filter=udp port 9,snaplen=64", [Some("udp port 9"), Some("64"), None]),
        ("eth0,snaplen=64,filter=tcp[13]&2!=0", [Some("tcp[13]&2!=0"), Some("64"), None]),
        ("eth0?snaplen=64,filter=udp", [Some("udp"), Some("64"), None]),
        ("eth0?filter=udp&snaplen=64", [Some("udp"), Some("64"), None]),
        ("eth0,fanout_flags=a,b,snaplen=64", [None, Some("64"), Some("a,b")]),
        ("memif:/run/a,b.sock,slots=64", [None, None, None]),
    ];
    for (text, expected) in rows {
        assert_eq!(options(text), expected.map(|value| value.map(str::to_owned)), "{text}");
    }
    assert_eq!(parse("memif:/run/a,b.sock,slots=64").name(), "/run/a,b.sock");
    assert_eq!(parse("pcap:a,b?snaplen=64").name(), "a,b");
}

#[test]
fn an_old_name_of_an_option_is_refused_and_the_new_one_shown() {
    for (text, new) in [
        ("a?retire=5ms", "block_timeout="),
        ("a?filter=udp&outgoing=off", "tx_copies="),
        ("mirror:a?cells=64", "ring_size="),
        ("xdp:a?frames=64", "ring_size="),
        ("tap:a?ring=64", "ring_size="),
    ] {
        let said = text.parse::<PortName>().unwrap_err().to_string();
        assert!(said.contains(&format!("is called {new} now")), "{text}: {said}");
    }
}

#[test]
fn an_ampersand_within_a_filter_stays_there() {
    for (text, filter) in [
        ("packet:a?filter=tcp[13]&2!=0&snaplen=64", "tcp[13]&2!=0"),
        ("packet:a?filter=udp && port 53&snaplen=64", "udp && port 53"),
        ("packet:a?filter=udp&&len=60&snaplen=64", "udp&&len=60"),
        ("packet:a?snaplen=64&filter=ip[6:2]&0x1fff=0", "ip[6:2]&0x1fff=0"),
    ] {
        let port = parse(text);
        assert_eq!(port.option("filter"), Some(filter), "{text}");
        assert_eq!(port.option("snaplen"), Some("64"), "{text}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    for (text, advice) in [
        ("", "no interface named, such as eth0"),
        (
            "xdpp:eth0",
            "available: packet:, xdp:, mirror:, live:, host:, tap:, memif:, monitor:, pcap:, \
             null:",
        ),
        ("eth0/x", "a range such as 0-3"),
        ("eth0/3-1", "a range such as 0-3"),
        ("eth0?snaplne=3", "snaplen="),
        ("eth0,snaplne=3", "snaplen="),
        ("eth0,snaplen=3,promsc=on", "promisc="),
        ("null:eth0", "takes no name"),
        ("pcap:", "pcap:FILE"),
    ] {
        let error = text.parse::<PortName>().unwrap_err().to_string();
        assert!(error.contains(advice), "{text}: {error}");
    }
    let port = parse("eth0?method=fast&snaplen=0&promisc=maybe&block_timeout=5");
    assert!(port.choice("method", &[("ring", 1), ("recv", 2)]).is_err());
    assert!(port.number("snaplen", 1..=9).is_err());
    assert!(port.switch("promisc").is_err());
    assert!(port.duration("block_timeout").is_err());
}

#[test]
fn a_flag_fills_in_what_the_name_leaves_open() {
    let mut port = parse("eth0?snaplen=64");
    assert!(!port.set_default("snaplen", "128"), "the name wins");
    assert!(port.set_default("method", "recv"));
    assert!(!port.set_default("size", "60"), "not an option of packet:");
    assert_eq!((port.option("snaplen"), port.option("method")), (Some("64"), Some("recv")));
}

#[test]
fn a_bare_name_can_be_of_another_kind_unless_that_changes_what_it_means() {
    let rows = [
        ("eth0", Some("mirror:eth0")),
        ("eth0?filter=udp", Some("mirror:eth0?filter=udp")),
        ("eth0?filter=ether[0:4]=1", Some("mirror:eth0?filter=ether[0:4]=1")),
        ("packet:eth0", None),
        ("eth0/0-1", None),
        ("eth0?method=recv", None),
    ];
    for (text, expected) in rows {
        let other = parse(text).with_kind(Kind::Mirror);
        assert_eq!(other.as_ref().map(ToString::to_string).as_deref(), expected, "{text}");
        assert!(other.is_none_or(|other| other == parse(&other.to_string())), "{text}");
    }
    let mut port = parse("eth0");
    port.set_default("filter", "icmp");
    let other = port.with_kind(Kind::Mirror).unwrap();
    assert_eq!((other.kind(), other.option("filter")), (Kind::Mirror, Some("icmp")));
}

#[test]
fn every_kind_has_its_row() {
    use Kind::{Host, Live, Memif, Mirror, Monitor, Null, Packet, Pcap, Tap, Xdp};
    for kind in [Packet, Xdp, Mirror, Live, Host, Tap, Memif, Monitor, Pcap, Null] {
        assert_eq!(kind.spec().kind, kind);
    }
}

#[test]
fn numbers_and_times_have_units() {
    for (sentence, value, expected) in [
        ("plain", "64", Some(64)),
        ("powers of 1024", "2M", Some(2 << 20)),
        ("the same, named", "64KiB", Some(64 << 10)),
        ("powers of 1000, named", "64KB", Some(64_000)),
        ("more than any number", "99999999999999999999", None),
        ("an overflow", "17179869184G", None),
    ] {
        let port = parse(&format!("eth0?buffer={value}"));
        assert_eq!(port.number("buffer", 0..=u32::MAX).ok().flatten(), expected, "{sentence}");
    }
    for (sentence, value, expected) in [
        ("plain", "64", Some(64)),
        ("powers of 1024, too", "2K", Some(2048)),
        ("no bytes", "2KB", None),
        ("nor these", "2KiB", None),
        ("nor those", "2B", None),
        ("within bounds", "4K", None),
    ] {
        let port = parse(&format!("eth0?slots={value}"));
        assert_eq!(port.count("slots", 2..=4000).ok().flatten(), expected, "{sentence}");
    }
    for (sentence, value, expected) in [
        ("a fraction", "1.5ms", Some(Duration::from_micros(1500))),
        ("minutes", "2m", Some(Duration::from_secs(120))),
        ("two units", "1m30s", Some(Duration::from_secs(90))),
        ("without a unit it is a guess", "5", None),
        ("also with a blank in its place", "5 ", None),
        ("or a point", "5.", None),
        ("negative", "-1s", None),
    ] {
        let port = parse(&format!("eth0?block_timeout={value}"));
        assert_eq!(port.duration("block_timeout").ok().flatten(), expected, "{sentence}");
    }
}
