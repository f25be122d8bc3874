//! Errors name the line and field of an invalid specification.

use std::path::Path;

use sluicegate_traffic::show::show;
use sluicegate_traffic::spec::{Defaults, Spec, SpecError};

fn error(text: &str) -> SpecError {
    let planned = Spec::parse(text).and_then(|spec| spec.plan(&Defaults::default()));
    planned.err().unwrap_or_else(|| panic!("nothing is wrong with\n{text}"))
}

#[test]
fn the_line_and_the_field_are_named() {
    // Layers begin on line 3.
    let layers = |layers: &str| format!("[[stream]]\nname = 'a'\nlayers = [\n{layers}\n]\n");
    let udp = "layers = ['ether', 'ipv4', 'udp']\n";
    let rows = [
        ("no TOML", "[[stream]\n".into(), Some(1), "TOML: unclosed array table, expected `]`"),
        ("nothing", String::new(), None, "there is no stream: begin one by [[stream]]"),
        (
            "a key that is none",
            format!("sed = 1\n[[stream]]\n{udp}"),
            Some(1),
            "unknown 'sed'; available: seed, stream",
        ),
        (
            "a stream's key that is none",
            format!("[[stream]]\nflow = 1\n{udp}"),
            Some(2),
            "stream 0: unknown 'flow'; available: name, weight, rate, count, flows, size, pad, layers",
        ),
        (
            "a seed that is none",
            format!("seed = 'x'\n[[stream]]\n{udp}"),
            Some(1),
            "seed: a text is not what belongs here: a number from 0 to 18446744073709551615",
        ),
        (
            "one stream without a list",
            format!("[stream]\n{udp}"),
            Some(1),
            "stream: a table is not what belongs here: written [[stream]]",
        ),
        (
            "no weight",
            format!("[[stream]]\nweight = 0\n{udp}"),
            Some(2),
            "weight: it is a number from 1 to 65536",
        ),
        (
            "no flow",
            format!("[[stream]]\nflows = 0\n{udp}"),
            Some(2),
            "flows: it is a number from 1 to 4294967295",
        ),
        (
            "too fine weights",
            format!("[[stream]]\nweight = 65521\n{udp}[[stream]]\nweight = 65519\n{udp}"),
            None,
            "weight: the order repeats after 131040 packets",
        ),
        (
            "a count of nothing",
            format!("[[stream]]\ncount = 0\n{udp}"),
            Some(2),
            "count: it is a number from 1",
        ),
        (
            "a rate that is none",
            format!("[[stream]]\nrate = '5Gbps'\n{udp}"),
            Some(2),
            "rate: a text is not what belongs here: whole packets per second from 1 to 4294967295",
        ),
        (
            "half a packet per second",
            format!("[[stream]]\nrate = '0.0005kpps'\n{udp}"),
            Some(2),
            "rate: a text is not what belongs here: whole packets per second",
        ),
        (
            "a rate and a weight",
            format!("[[stream]]\nrate = '1kpps'\nweight = 2\n{udp}"),
            Some(3),
            "weight: the rate says how frequent the stream is: leave one of them out",
        ),
        (
            "a stream without a rate beside one with a rate",
            format!("[[stream]]\nrate = 5\n{udp}[[stream]]\nname = 'b'\n{udp}"),
            Some(4),
            "stream b: rate: other streams have a rate: give each stream one, or give all a weight",
        ),
        (
            "rates without a common divisor",
            format!("[[stream]]\nrate = 65521\n{udp}[[stream]]\nrate = 65519\n{udp}"),
            None,
            "rate: the order repeats after 131040 packets: at most 65536, take numbers with a larger",
        ),
        (
            "a size that is none",
            format!("[[stream]]\nsize = 'big'\n{udp}"),
            Some(2),
            "size: 'big' is not a number",
        ),
        (
            "a negative size",
            format!("[[stream]]\nsize = -1\n{udp}"),
            Some(2),
            "size: a size is not negative",
        ),
        (
            "a size too small for the headers",
            format!("[[stream]]\nname = 'dns'\nsize = '60,41'\n{udp}"),
            Some(3),
            "stream dns: size: 41 bytes are too few: the headers have 42, so at least 42",
        ),
        (
            "a size and no padding",
            format!("[[stream]]\nsize = 60\npad = false\n{udp}"),
            Some(3),
            "pad: the size says how long frames are",
        ),
        (
            "no layers",
            "[[stream]]\n".into(),
            Some(1),
            "stream 0: no layers: add layers = [\"ether\"",
        ),
        (
            "a layer that is none",
            layers("'ether',\n'ipv5'"),
            Some(5),
            "layers: no layer 'ipv5'; available: ether, vlan, mpls",
        ),
        (
            "two layers in one",
            layers("{ ether = {}, ipv4 = {} }"),
            Some(4),
            "layers: here are 2 names in one { }",
        ),
        ("a number for a layer", layers("7"), Some(4), "layers: a number is not what belongs here"),
        (
            "a layer without fields",
            layers("{ ether = 7 }"),
            Some(4),
            "ether: a number is not what belongs here: { } with its fields",
        ),
        (
            "a field that is none",
            layers("'ether', 'ipv4',\n{ udp = { port = 9 } }"),
            Some(5),
            "stream a: udp: udp has no field 'port': it has sport, dport, length, checksum",
        ),
        (
            "too great a number",
            layers("'ether',\n{ ipv4 = { ttl = 256 } }"),
            Some(5),
            "ipv4.ttl: 256 is too much: the 8 bits of the field hold 255",
        ),
        (
            "a negative one",
            layers("{ ether = { type = -1 } }"),
            Some(4),
            "ether.type: -1 is negative",
        ),
        (
            "a fraction",
            layers("{ ether = { type = 1.5 } }"),
            Some(4),
            "ether.type: 1.5 is not whole",
        ),
        (
            "an address that is none",
            layers("'ether', { ipv4 = { src = '198.18.0' } }"),
            Some(4),
            "ipv4.src: '198.18.0' is not an IPv4 address",
        ),
        (
            "an empty list",
            layers("'ether', { ipv4 = { id = [] } }"),
            Some(4),
            "ipv4.id: the list is empty",
        ),
        (
            "a checksum that is none",
            layers("'ether', { ipv4 = { checksum = 'good' } }"),
            Some(4),
            "ipv4.checksum: 'good' is not a number from 0 to 65535, decimal or 0x…; or right, or bad",
        ),
        (
            "another's checksum",
            layers("'ether', { ipv4 = { checksum = 'é' } }"),
            Some(4),
            "or right, or bad",
        ),
        (
            "the same bits twice",
            layers("'ether', { ipv4 = { tos = 1, dscp = 2 } }"),
            Some(4),
            "ipv4.dscp: it is a part of the same bits as tos",
        ),
        (
            "half a byte",
            layers("{ raw = { hex = '123' } }"),
            Some(4),
            "raw.hex: these are not bytes in hexadecimal",
        ),
        (
            "too many options",
            layers(
                "'ether', { ipv4 = { options = '01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01' } }",
            ),
            Some(4),
            "ipv4.options: these are 41 bytes: at most 40",
        ),
        (
            "an option that is none",
            layers("'ether', 'ipv4', { tcp = { options = ['mss'] } }"),
            Some(4),
            "tcp.options: 'mss' is not a TCP option; available: mss=1460",
        ),
        (
            "an option with a wrong value",
            layers("'ether', 'ipv4', { tcp = { options = ['mss=x'] } }"),
            Some(4),
            "tcp.options: mss: 'x' is not a number",
        ),
        (
            "too many TCP options",
            layers(
                "'ether', 'ipv4', { tcp = { options = ['timestamps=1','timestamps=1','timestamps=1','timestamps=1','nop'] } }",
            ),
            Some(4),
            "tcp.options: the options have 41 bytes: at most 40",
        ),
        (
            "UDP on Ethernet",
            layers("'ether',\n'udp'"),
            Some(5),
            "udp: it cannot follow ether, which has no number for it",
        ),
        (
            "what a tag is, said twice",
            layers("{ ether = { type = 1 } },\n{ vlan = { tpid = 2 } }"),
            Some(5),
            "vlan.tpid: it stands in ether below, which has something else there",
        ),
        (
            "a tag behind raw bytes",
            layers("'ether', 'raw',\n{ vlan = { tpid = 2 } }"),
            Some(5),
            "vlan.tpid: it stands in raw below",
        ),
        (
            "IPv4 in VXLAN",
            layers("'ether', 'ipv4', 'udp', 'vxlan',\n'ipv4'"),
            Some(5),
            "ipv4: vxlan carries ether",
        ),
        (
            "a checksum over no address",
            layers("{ ether = { type = 1 } },\n'udp'"),
            Some(5),
            "udp: its checksum covers the addresses of ipv4 or ipv6, and none is directly below it",
        ),
        ("IP first", layers("'ipv4'"), Some(4), "ipv4: the first layer is ether, or raw"),
        (
            "something behind the payload",
            layers("'ether', 'payload',\n'ipv4'"),
            Some(5),
            "ipv4: nothing but payload follows payload",
        ),
        (
            "two payloads",
            layers("'ether', { payload = { hex = '00',\ntext = 'a' } }"),
            Some(5),
            "payload.text: the payload is hex already",
        ),
        (
            "an empty pattern",
            layers("'ether', { payload = { pattern = '' } }"),
            Some(4),
            "payload.pattern: a pattern has at least one byte",
        ),
        (
            "a length that changes",
            layers("'ether', { payload = { length = '1,2' } }"),
            Some(4),
            "payload.length: it is one number",
        ),
        (
            "a length beside a size",
            "[[stream]]\nsize = 60\nlayers = ['ether', { payload = { length = 1 } }]\n".into(),
            Some(3),
            "payload.length: the size says how long it is",
        ),
        (
            "a file that is not there",
            layers("'ether', { payload = { file = '/proc/no-file' } }"),
            Some(4),
            "payload.file: read /proc/no-file: No such file",
        ),
        (
            "a file that does not end, and no size",
            layers("'ether', { payload = { file = '/dev/zero' } }"),
            Some(1),
            "its headers and payload are longer than a frame of 65535 bytes: set size",
        ),
    ];
    for (name, text, line, part) in rows {
        let error = error(&text);
        let shown = error.to_string();
        assert!(shown.contains(part), "{name}: {shown}");
        assert_eq!(error.line(), line, "{name}: {shown}");
    }
}

#[test]
fn the_text_is_shown_and_marked() {
    let text = "[[stream]]\nlayers = ['ether',\n\t{ ipv4 = { src = 'ü', ttl = 9 } },\n]\n";
    assert_eq!(
        error(text).to_string(),
        "line 3, column 19: stream 0: ipv4.src: 'ü' is not an IPv4 address like 198.18.0.1\n \
         3 | \t{ ipv4 = { src = 'ü', ttl = 9 } },\n   | \t                 ^^^"
    );
}

#[test]
fn a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    let missing = Spec::read(&path).unwrap_err();
    assert_eq!(
        missing.to_string(),
        format!("{}: it cannot be read: No such file or directory (os error 2)", path.display())
    );
    std::fs::write(&path, "seed = 1\nsteam = 2\n").unwrap();
    let wrong = Spec::read(&path).unwrap_err();
    let expected = format!("{}, line 2, column 1: unknown 'steam'", path.display());
    assert!(wrong.to_string().starts_with(&expected), "{wrong}");
    assert!(Spec::read(Path::new("/")).is_err(), "a folder is no file");
}

#[test]
fn a_plan_does_not_take_all_memory() {
    let stream = "[[stream]]\nsize = 65535\nlayers = ['ether']\n";
    let error = error(&stream.repeat(1100));
    let shown = error.to_string();
    assert!(shown.contains("stream 1024: up to here more than 64 MiB are needed"), "{shown}");
    assert_eq!(error.line(), Some(1024 * 3 + 1));
}

#[test]
fn no_text_is_too_strange() {
    // Pieces of specifications, cut and joined at random.
    let whole = "seed = 7\n[[stream]]\nname = 'é'\nweight = 3\nflows = 9\nsize = '64-99'\nlayers = [\
        'ether', { vlan = { id = '1-9' } }, { ipv4 = { src = '1.2.3.0/24', checksum = 'bad' } },\
        { tcp = { options = ['mss=9', 'nop'] } }, 'stamp', { payload = { pattern = '00' } }]\n";
    let characters: Vec<char> = whole.chars().collect();
    let mut random = crate::generate::Random::new(1);
    for _ in 0..3000 {
        let mut text = characters.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(text.len() as u64) as usize;
            let end = (at + random.below(12) as usize).min(text.len());
            match random.below(3) {
                0 => drop(text.drain(at..end)),
                1 => text.insert(at, characters[random.below(characters.len() as u64) as usize]),
                _ => text.extend_from_within(at..end),
            }
        }
        let text: String = text.into_iter().collect();
        let shown = Spec::parse(&text).and_then(|spec| {
            let plan = spec.plan(&Defaults::default())?;
            let mut shown = String::new();
            show(&spec, &plan, 3, |_| String::new(), &mut shown).unwrap();
            Ok(shown)
        });
        match shown {
            Ok(shown) => assert!(shown.contains("packet 3: stream "), "{text}"),
            Err(error) => assert!(error.to_string().len() > 10, "{text}"),
        }
    }
}
