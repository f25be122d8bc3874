//! Port names: any text is a name or an error, and a name says what was written.

use bolero::TypeGenerator;
use sluicegate::port::PortName;
use sluicegate::units;

/// Parts of port names, valid and invalid.
const WORDS: &[&str] = &[
    "packet:",
    "pcap:",
    "null:",
    "xdp:",
    ":",
    "/",
    "-",
    "?",
    "&",
    "&&",
    "=",
    "",
    "eth0",
    "any",
    "0",
    "1",
    "3",
    "4095",
    "4096",
    "99999999999",
    "-1",
    "/0-3",
    "/3-0",
    "method=",
    "ring",
    "recvmmsg",
    "filter=",
    "udp port 53",
    "tcp[13]&2!=0",
    "snaplen=",
    "slots=",
    "size=",
    "fanout=",
    "fanout_flags=",
    "defrag,rollover",
    "block_timeout=",
    "10ms",
    "1e308s",
    "0.1us",
    "-5ms",
    "infs",
    "nans",
    "64K",
    "16777216G",
    "0x10",
    "iB",
    "KiB",
    "é",
    "\u{202e}",
    "\0",
    "%2f",
    "../",
];

#[derive(Clone, Debug, TypeGenerator)]
enum Piece {
    Word(u8),
    Character(char),
}

#[test]
fn port_name() {
    bolero::check!().with_type::<Vec<Piece>>().for_each(|pieces| {
        let mut text = String::new();
        for piece in pieces.iter().take(32) {
            match *piece {
                Piece::Word(number) => text.push_str(WORDS[usize::from(number) % WORDS.len()]),
                Piece::Character(character) => text.push(character),
            }
        }
        try_name(&text);
    });
}

fn try_name(text: &str) {
    let _ = (units::bytes(text), units::duration(text), units::count(text), units::cpus(text));
    let name: PortName = match text.parse() {
        Ok(name) => name,
        Err(error) => {
            let error: sluicegate::Error = error;
            assert!(error.to_string().contains(text), "{error}");
            return;
        }
    };
    assert_eq!(name.to_string(), text);
    assert!(text.contains(name.name()));
    assert_eq!(text.parse::<PortName>().unwrap(), name, "the same text is the same name");
    if let Some(queues) = name.queues() {
        assert!(queues.start() <= queues.end() && *queues.end() < 4096);
    }
    for key in ["filter", "snaplen", "slots", "block_timeout", "method", "promisc", "size"] {
        if let Some(value) = name.option(key) {
            assert!(text.contains(value) && name.knows(key));
        }
        let _ = name.duration(key);
    }
}
