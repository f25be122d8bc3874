//! DNS messages, valid and invalid, and the comparison of their lines.

use std::slice;

/// The name `host.example`, behind the header.
const NAME: &[u8] = b"\x04host\x07example\0";
/// Where its second label begins.
const EXAMPLE: u8 = 17;
/// Where a record behind one question has its data.
const DATA: u8 = 42;

const IN: u16 = 1;
const RESPONSE: u16 = 0x8180;

/// A message; `counts` are those of its sections.
fn message(flags: u16, counts: [u16; 4], sections: &[&[u8]]) -> Vec<u8> {
    let words = [&[36_871, flags][..], &counts].concat();
    let header: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
    [&header, sections.concat().as_slice()].concat()
}

fn question(name: &[u8], kind: u16, class: u16) -> Vec<u8> {
    [name, &kind.to_be_bytes(), &class.to_be_bytes()].concat()
}

fn record(kind: u16, class: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u16;
    let fixed = [&ttl.to_be_bytes()[..], &length.to_be_bytes()].concat();
    [question(&[0xc0, 12], kind, class), fixed, data.to_vec()].concat()
}

/// A response with these answers.
fn answers(records: &[Vec<u8>]) -> Vec<u8> {
    let sections = [&question(NAME, 1, IN), records.concat().as_slice()].concat();
    message(RESPONSE, [1, records.len() as u16, 0, 0], &[&sections])
}

/// Names, with what pointers can do; `at` is the offset of the name.
fn names(at: u8) -> Vec<Vec<u8>> {
    let label = |length: u8| [&[length], &vec![b'x'; length.into()][..]].concat();
    let long = |labels: usize, last: u8| [label(63).repeat(labels), label(last), vec![0]].concat();
    let mut all = vec![
        NAME.to_vec(),
        vec![0],
        // The root, by a pointer.
        vec![0xc0, EXAMPLE + 8],
        vec![0xc0, EXAMPLE],
        b"\x03www\xc0\x0c".to_vec(),
        // Itself, two that point at each other, forward, far beyond the end, into the header.
        vec![0xc0, at],
        vec![1, b'a', 0xc0, at],
        vec![0xc0, at + 2, 0xc0, at],
        vec![0xc0, at + 2, 1, b'b', 0],
        vec![0xff, 0xff],
        vec![0xc0, 2],
        // Control characters, a dot, a blank and UTF-8 in labels.
        b"\x08\x1b[31m\n\r\0\x05a. \x7f\"\x06\xc3\xa4\xff\x80\xe2\x9b\0".to_vec(),
        long(3, 62),
        long(3, 63),
        long(4, 1),
        long(7, 63),
    ];
    for kind in [0x40, 0x42, 0x7f, 0x80, 0xbf] {
        all.push(vec![1, b'a', kind, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    }
    all
}

/// Data of the types that are decoded, and of some that are not.
fn data() -> Vec<(u16, Vec<u8>)> {
    let mut all = vec![
        (1, vec![192, 0, 2, 1]),
        (1, vec![192, 0]),
        (28, [&[0x20, 1, 0xd, 0xb8], &[0; 11][..], &[5]].concat()),
        (28, [&[0; 12][..], &[192, 0, 2, 1]].concat()),
        (6, [NAME, NAME, &[0; 20]].concat()),
        (16, b"\x05v=abc\0\x04\"\x1b\xff ".to_vec()),
        (16, b"\x09short".to_vec()),
        (16, vec![]),
        (64, [&[0, 1], NAME, &[0, 1, 0, 3, 2, b'h', b'2']].concat()),
        (65, vec![0, 1, 0]),
        (256, b"\0\x0a\0\x05http://host.example/\x1b".to_vec()),
        (257, b"\0\x05issueca.example".to_vec()),
        (41, vec![]),
    ];
    for (kind, head) in [(2, 0), (5, 0), (12, 0), (39, 0), (15, 2), (33, 6)] {
        for name in names(DATA + head) {
            all.push((kind, [&[0, 10, 0, 5, 0, 53][..head.into()], &name].concat()));
        }
    }
    all
}

/// Messages of every type, class, operation and response code, with all kinds of names.
pub fn messages() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let asked = question(NAME, 1, IN);
    let types = (0..=260).chain([0x7fff, 0xffff]);
    let unnamed = |kind: &u16| !matches!(kind, 38 | 104);
    for kind in types.filter(unnamed) {
        all.push(message(0x100, [1, 0, 0, 0], &[&question(NAME, kind, IN)]));
        if !matches!(kind, 16 | 41 | 256) {
            all.push(answers(&[record(kind, IN, 60, &[0x20; 20])]));
        }
    }
    for class in [0, 1, 2, 3, 4, 254, 255, 0x8000, 0x8001, 0x80ff] {
        all.push(message(0, [1, 0, 0, 0], &[&question(NAME, 12, class)]));
        all.push(answers(&[record(1, class, 60, &[192, 0, 2, 1])]));
        all.push(answers(&[record(41, class, 0x8000, &[])]));
    }
    for (kind, data) in data() {
        let answer = record(kind, IN, 60, &data);
        all.push(answers(slice::from_ref(&answer)));
        all.push(answers(&[record(5, IN, 60, NAME), answer]));
    }
    for name in names(12) {
        all.push(message(0x100, [1, 0, 0, 0], &[&question(&name, 1, IN)]));
        all.push(message(0x100, [2, 0, 0, 0], &[&question(&name, 1, IN), &asked]));
    }
    for low in 0..16 {
        for flags in [low << 11, 1 << low, low << 11 | RESPONSE | low, 1 << low | RESPONSE] {
            all.push(message(flags, [1, 0, 0, 0], &[&asked]));
        }
    }
    for code in (0..=40).chain([0x7f, 0xff]) {
        let opt = [&[0][..], &record(41, 1232, code << 24 | 0x8000, &[])[2..]].concat();
        let (answer, glue) = (record(1, IN, 9, &[192, 0, 2, 1]), record(1, IN, 9, &[192, 0, 2, 2]));
        all.push(message(RESPONSE | 2, [1, 1, 0, 2], &[&asked, &answer, &glue, &opt]));
        all.push(message(0x120, [1, 0, 0, 1], &[&asked, &opt]));
    }
    for counts in [[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 3, 1], [3, 2, 0, 0], [0xffff; 4]] {
        for flags in [0, 0x100, 0x2800, RESPONSE] {
            let answer = record(1, IN, 60, &[192, 0, 2, 1]);
            all.push(message(flags, counts, &[&asked, &answer, &answer]));
            all.push(message(flags, counts, &[&asked, &asked, &asked, &answer, &answer]));
            all.push(message(flags, counts, &[&answer]));
        }
    }
    for length in 0..12 {
        all.push(vec![0; length]);
    }
    all
}

/// Returns true for a line with a port of DNS behind an address.
pub fn is_dns(ours: &str) -> bool {
    let ports = [".53 >", ".53:", ".5353 >", ".5353:"];
    ports.iter().any(|port| ours.contains(port))
}

/// The end of our lines where a DNS message is cut, or contradicts itself.
pub const CUT: &str = " [|domain]";

/// Types of records that tcpdump names from 4.99.4 on: consecutive numbers.
const NEWER_TYPES: &[(u16, &str)] = &[
    (49, "DHCID NSEC3 NSEC3PARAM TLSA SMIMEA"),
    (55, "HIP NINFO RKEY TALINK CDS CDNSKEY OPENPGPKEY CSYNC ZONEMD SVCB HTTPS"),
    (257, "CAA"),
];

/// Writes newer types by their numbers.
fn with_numbers(line: &str) -> String {
    let mut words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    for (start, names) in NEWER_TYPES {
        for (number, name) in (*start..).zip(names.split(' ')) {
            for word in &mut words {
                if word.trim_end_matches(['?', ',']) == name {
                    *word = word.replace(name, &format!("Type{number}"));
                }
            }
        }
    }
    words.join(" ")
}

/// Returns true if two lines of DNS messages are equal, but for intended differences.
pub fn agrees(ours: &str, theirs: &str) -> bool {
    if ours.contains(" inv_q") {
        return true;
    }
    let (ours, theirs) = (with_numbers(ours), with_numbers(theirs));
    let Some(head) = ours.strip_suffix(CUT).filter(|_| ours != theirs) else {
        return ours == theirs;
    };
    // tcpdump ends before a comma, reads extended labels, and takes the last record of a cut message for a
    // whole one.
    let head = head.trim_end_matches([',', ' ']).trim_end_matches("<BAD LABEL TYPE>");
    theirs.strip_prefix(head).is_some_and(|end| {
        let end = end.trim_start_matches([',', ' ']);
        let length = end.strip_prefix('(').and_then(|end| end.strip_suffix(')'));
        length.is_some_and(|length| length.parse::<u32>().is_ok())
            || ["[|domain]", "<ELT ", "\\[x"].iter().any(|start| end.starts_with(start))
    })
}
