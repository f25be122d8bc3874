//! DNS messages (RFC 1035) over UDP and TCP, and multicast DNS (RFC 6762): the questions of a query, the
//! answers of a response. Records of the other sections are only counted.

use super::line::{Bytes, Cut, IpAddress, Line};

pub const PORT: u16 = 53;
pub const MULTICAST_PORT: u16 = 5353;

const HEADER: u32 = 12;

/// Maximum text of a message, checked between strings. Pointers could make ten megabytes of one packet, and
/// the output cuts a line after 262,144 bytes.
const MAX_TEXT: usize = 64 << 10;
/// Maximum length of a name (RFC 1035), and of a string.
const MAX_NAME: usize = 255;
/// Maximum of pointers in a name: one per label.
const MAX_POINTERS: usize = 127;

/// Names of consecutive numbers, from the first on.
type Names = &'static [(u16, &'static str)];

/// Types of records (IANA's registry), in tcpdump's words.
const TYPES: Names = &[
    (
        1,
        "A NS MD MF CNAME SOA MB MG MR NULL WKS PTR HINFO MINFO MX TXT RP AFSDB X25 ISDN RT NSAP \
         NSAP_PTR SIG KEY PX GPOS AAAA LOC NXT EID NIMLOC SRV ATMA NAPTR KX CERT A6 DNAME SINK \
         OPT APL DS SSHFP IPSECKEY RRSIG NSEC DNSKEY DHCID NSEC3 NSEC3PARAM TLSA SMIMEA",
    ),
    (55, "HIP NINFO RKEY TALINK CDS CDNSKEY OPENPGPKEY CSYNC ZONEMD SVCB HTTPS"),
    (99, "SPF UINFO UID GID UNSPEC"),
    (249, "TKEY TSIG IXFR AXFR MAILB MAILA ANY URI CAA"),
];
/// Classes, except IN, which is not written.
const CLASSES: Names = &[(3, "CHAOS HS"), (255, "ANY")];
const OPERATIONS: Names = &[(
    1,
    "inv_q stat op3 notify update op6 op7 op8 updateA updateD updateDA updateM updateMA zoneInit \
     zoneRef",
)];
const RESPONSE_CODES: Names = &[
    (1, "FormErr ServFail NXDomain NotImp Refused YXDomain YXRRSet NXRRSet NotAuth NotZone"),
    (15, "NoChange BadVers"),
    (23, "BadCookie"),
];

/// The lowest first byte of a pointer, which continues a name elsewhere in the message.
const POINTER: u8 = 0xc0;

const IN: u16 = 1;
const OPT: u16 = 41;
/// The flag of an OPT record that asks for DNSSEC's records.
const OPT_DNSSEC: u16 = 0x8000;
/// The bit of a class that has its own meaning in multicast DNS.
const TOP_BIT: u16 = 0x8000;

const RESPONSE: u16 = 0x8000;
const AUTHORITATIVE: u16 = 0x400;
const TRUNCATED: u16 = 0x200;
const RECURSION_DESIRED: u16 = 0x100;
const RECURSION_AVAILABLE: u16 = 0x80;
const AUTHENTIC: u16 = 0x20;
const CHECKING_DISABLED: u16 = 0x10;
/// Bits that a query should not have.
const NOT_IN_QUERIES: u16 = 0x6cf;

/// Writes a segment of TCP with one whole message behind its length; other segments are reported.
pub fn print_segment(line: &mut Line, data: &[u8], length: u32) -> Result<(), Cut> {
    let Some(length) = length.checked_sub(2) else {
        write!(line, " [DNS over TCP: length {length} < 2] (invalid)");
        return Ok(());
    };
    let segment = Bytes::new(data, "domain");
    let prefix = segment.u16(0)?;
    if u32::from(prefix) != length {
        write!(line, " [prefix length({prefix}) != length({length})] (invalid)");
        return Ok(());
    }
    line.text(" ");
    print(line, segment.after(2), length, false)
}

/// Writes a message of `length` bytes.
pub fn print(line: &mut Line, data: &[u8], length: u32, multicast: bool) -> Result<(), Cut> {
    if length < HEADER {
        write!(line, "domain [length {length} < {HEADER}] (invalid)");
        return Ok(());
    }
    let bytes = Bytes::new(data, "domain");
    bytes.slice(0, HEADER as usize)?;
    let counts = [bytes.u16(4)?, bytes.u16(6)?, bytes.u16(8)?, bytes.u16(10)?];
    let message = DnsMessage { bytes, flags: bytes.u16(2)?, counts, multicast, begin: line.mark() };
    line.decimal(bytes.u16(0)?);
    if let Some(name) = find(OPERATIONS, message.flags >> 11 & 15) {
        write!(line, " {name}");
    }
    match message.flags & RESPONSE {
        0 => message.query(line)?,
        _ => message.response(line)?,
    }
    line.text(" (");
    line.decimal(length);
    line.text(")");
    Ok(())
}

struct DnsMessage<'a> {
    bytes: Bytes<'a>,
    flags: u16,
    /// The numbers of questions, answers, authorities and additional records.
    counts: [u16; 4],
    multicast: bool,
    /// Where the text of the message begins in the line.
    begin: usize,
}

impl DnsMessage<'_> {
    /// Writes `shown` if the flag is set.
    fn flag(&self, line: &mut Line, flag: u16, shown: &str) {
        if self.flags & flag != 0 {
            line.text(shown);
        }
    }

    fn query(&self, line: &mut Line) -> Result<(), Cut> {
        self.flag(line, RECURSION_DESIRED, "+");
        self.flag(line, CHECKING_DISABLED, "%");
        if self.flags & NOT_IN_QUERIES != 0 {
            write!(line, " [b2&3={:#x}]", self.flags);
        }
        let [questions, answers, authorities, additional] = self.counts;
        let counts =
            [(answers, 0, "a"), (questions, 1, "q"), (authorities, 0, "n"), (additional, 0, "au")];
        for (count, usual, letter) in counts {
            if count != usual {
                write!(line, " [{count}{letter}]");
            }
        }
        let mut at = HEADER as usize;
        for _ in 0..questions {
            at = self.question(line, at)?;
        }
        Ok(())
    }

    fn response(&self, line: &mut Line) -> Result<(), Cut> {
        let code = self.flags & 15 | self.extended_code().unwrap_or(0) << 4;
        if code != 0 {
            print_name(line, RESPONSE_CODES, code, "Resp");
        }
        self.flag(line, AUTHORITATIVE, "*");
        if self.flags & RECURSION_AVAILABLE == 0 {
            line.text("-");
        }
        self.flag(line, TRUNCATED, "|");
        self.flag(line, AUTHENTIC, "$");
        let [questions, answers, authorities, additional] = self.counts;
        if questions != 1 {
            write!(line, " [{questions}q]");
        }
        let mut at = HEADER as usize;
        for number in 0..questions {
            if number > 0 {
                line.text(",");
            }
            at = self.skip_name(at)? + 4;
        }
        write!(line, " {answers}/{authorities}/{additional}");
        for number in 0..answers {
            if number > 0 {
                line.text(",");
            }
            at = self.record(line, at)?;
        }
        Ok(())
    }

    /// Returns the upper bits of the response code, which an OPT record has (RFC 6891).
    fn extended_code(&self) -> Result<u16, Cut> {
        let [questions, answers, authorities, additional] = self.counts.map(u32::from);
        if additional == 0 {
            return Ok(0);
        }
        let mut at = HEADER as usize;
        for _ in 0..questions {
            at = self.skip_name(at)? + 4;
        }
        for number in 0..answers + authorities + additional {
            at = self.skip_name(at)?;
            if number >= answers + authorities && self.bytes.u16(at)? == OPT {
                return self.bytes.u8(at + 4).map(u16::from);
            }
            at += 10 + usize::from(self.bytes.u16(at + 8)?);
        }
        Ok(0)
    }

    /// Writes a question. Returns the offset behind it.
    fn question(&self, line: &mut Line, at: usize) -> Result<usize, Cut> {
        self.check_text(line)?;
        let after_name = self.skip_name(at)?;
        let (kind, class) = (self.bytes.u16(after_name)?, self.bytes.u16(after_name + 2)?);
        print_name(line, TYPES, kind, "Type");
        self.class(line, class);
        if self.multicast {
            line.text(if class & TOP_BIT != 0 { " (QU)" } else { " (QM)" });
        }
        line.text("? ");
        self.name(line, at)?;
        Ok(after_name + 4)
    }

    /// Writes a record without its name. Returns the offset behind it.
    fn record(&self, line: &mut Line, at: usize) -> Result<usize, Cut> {
        self.check_text(line)?;
        let at = self.skip_name(at)?;
        let (kind, class) = (self.bytes.u16(at)?, self.bytes.u16(at + 2)?);
        let (flags, length) = (self.bytes.u16(at + 6)?, self.bytes.u16(at + 8)?);
        if kind != OPT {
            self.class(line, class);
        }
        if self.multicast && class & TOP_BIT != 0 {
            line.text(" (Cache flush)");
        }
        print_name(line, TYPES, kind, "Type");
        self.bytes.slice(at + 10, length.into())?;
        let (at, end) = (at + 10, at + 10 + usize::from(length));
        let number = |at| self.bytes.u16(at);
        match find(TYPES, kind).unwrap_or_default() {
            "A" => write!(line, " {}", IpAddress::V4(self.bytes.array(at)?)),
            "AAAA" => write!(line, " {}", IpAddress::V6(self.bytes.array(at)?)),
            "NS" | "CNAME" | "PTR" | "DNAME" => {
                line.text(" ");
                self.name(line, at)?;
            }
            "MX" => {
                line.text(" ");
                self.name(line, at + 2)?;
                write!(line, " {}", number(at)?);
            }
            "SRV" => {
                line.text(" ");
                self.name(line, at + 6)?;
                write!(line, ":{} {} {}", number(at + 4)?, number(at)?, number(at + 2)?);
            }
            "TXT" => {
                let mut at = at;
                while at < end {
                    line.text(" \"");
                    let length = self.bytes.u8(at)?.into();
                    self.string(line, at + 1, length)?;
                    line.text("\"");
                    at += 1 + length;
                }
            }
            "URI" => {
                write!(line, " {} {} ", number(at)?, number(at + 2)?);
                self.string(line, at + 4, end.saturating_sub(at + 4))?;
            }
            "OPT" => {
                write!(line, " UDPsize={}", self.without_top_bit(class));
                line.text(if flags & OPT_DNSSEC != 0 { " DO" } else { "" });
            }
            _ => {}
        }
        Ok(end)
    }

    fn class(&self, line: &mut Line, class: u16) {
        let class = self.without_top_bit(class);
        match find(CLASSES, class) {
            _ if class == IN => {}
            Some(name) => write!(line, " {name}"),
            None => write!(line, " (Class {class})"),
        }
    }

    fn without_top_bit(&self, class: u16) -> u16 {
        if self.multicast { class & !TOP_BIT } else { class }
    }

    /// Writes the name at an offset, with a dot after each label. Pointers must lead backwards, so they end.
    fn name(&self, line: &mut Line, mut at: usize) -> Result<(), Cut> {
        let (mut length, mut pointers, mut limit) = (0, 0, at);
        if self.bytes.u8(at)? == 0 {
            line.text(".");
        }
        loop {
            match self.bytes.u8(at)? {
                0 => return Ok(()),
                label @ 1..=63 => {
                    let label = usize::from(label);
                    self.string(line, at + 1, label.min(MAX_NAME - length))?;
                    length += label;
                    if length <= MAX_NAME {
                        line.text(".");
                    }
                    length += 1;
                    if length > MAX_NAME {
                        line.text("<DOMAIN NAME TOO LONG>");
                        return Ok(());
                    }
                    at += 1 + label;
                }
                POINTER.. => {
                    at = usize::from(self.bytes.u16(at)? & 0x3fff);
                    pointers += 1;
                    if at >= limit || pointers > MAX_POINTERS {
                        line.text("<BAD PTR>");
                        return Err(self.bytes.cut());
                    }
                    limit = at;
                }
                _ => {
                    line.text("<BAD LABEL TYPE>");
                    return Err(self.bytes.cut());
                }
            }
        }
    }

    /// Writes `length` bytes as text.
    fn string(&self, line: &mut Line, at: usize, length: usize) -> Result<(), Cut> {
        let there = self.bytes.after(at);
        for part in there[..there.len().min(length)].chunks(MAX_NAME) {
            self.check_text(line)?;
            line.printable(part);
        }
        self.check_text(line)?;
        self.bytes.slice(at, length).map(|_| ())
    }

    /// Ends the message if its text is too long.
    fn check_text(&self, line: &Line) -> Result<(), Cut> {
        if line.mark() - self.begin > MAX_TEXT { Err(self.bytes.cut()) } else { Ok(()) }
    }

    /// Returns the offset behind a name.
    fn skip_name(&self, mut at: usize) -> Result<usize, Cut> {
        loop {
            match self.bytes.u8(at)? {
                0 => return Ok(at + 1),
                label @ 1..=63 => at += 1 + usize::from(label),
                POINTER.. => return Ok(at + 2),
                _ => return Err(self.bytes.cut()),
            }
        }
    }
}

/// Writes a blank and the name of a number, or, without one, `otherwise` and the number.
fn print_name(line: &mut Line, names: Names, number: u16, otherwise: &str) {
    line.text(" ");
    match find(names, number) {
        Some(name) => line.text(name),
        None => write!(line, "{otherwise}{number}"),
    }
}

fn find(names: Names, number: u16) -> Option<&'static str> {
    let (start, names) = names.iter().rfind(|(start, _)| *start <= number)?;
    names.split(' ').nth((number - start).into())
}

#[cfg(test)]
mod tests {
    use super::super::line::Flows;
    use super::*;

    /// Returns the text of a message with these counts, and these bytes behind its header.
    fn text(flags: u16, counts: [u16; 4], rest: &[u8]) -> String {
        let header = [&[36_871, flags][..], &counts].concat();
        let mut bytes: Vec<u8> = header.into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend(rest);
        let (mut text, mut flows) = (String::new(), Flows::default());
        let mut line = Line::new(&mut text, &mut flows);
        if let Err(Cut(protocol)) = print(&mut line, &bytes, bytes.len() as u32, false) {
            write!(line, " [|{protocol}]");
        }
        text
    }

    #[test]
    fn a_message_is_written_as_tcpdump_does() {
        const QUESTION: &[u8] = b"\x07example\x03com\0\0\x01\0\x01";
        const ANSWER: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01";
        const TEXT: &[u8] = b"\xc0\x0c\0\x10\0\x01\0\0\0\x3c\0\x07\x06a \x1b[\n\xe4";
        let answer = [QUESTION, ANSWER].concat();
        let both = [QUESTION, ANSWER, TEXT].concat();
        let rows: &[(&str, u16, u16, &[u8], &str)] = &[
            ("a query", 0x100, 0, QUESTION, "36871+ A? example.com. (29)"),
            ("an answer", 0x8180, 1, &answer, "36871 1/0/0 A 192.0.2.1 (45)"),
            ("no such name", 0x8183, 0, QUESTION, "36871 NXDomain 0/0/0 (29)"),
            ("a truncated response", 0x8380, 0, QUESTION, "36871| 0/0/0 (29)"),
            (
                "control characters",
                0x8180,
                2,
                &both,
                "36871 2/0/0 A 192.0.2.1, TXT \"a ^[[^JM-d\" (64)",
            ),
            (
                "a pointer to itself",
                0x100,
                0,
                b"\x01a\xc0\x0c\0\x01\0\x01",
                "36871+ A? a.<BAD PTR> [|domain]",
            ),
            ("a cut name", 0x100, 0, &QUESTION[..9], "36871+ [|domain]"),
        ];
        for (what, flags, answers, rest, expected) in rows {
            assert_eq!(text(*flags, [1, *answers, 0, 0], rest), *expected, "{what}");
        }
    }

    #[test]
    fn the_text_of_a_message_is_bounded() {
        let name = [&[63][..], &[0xff; 63]].concat().repeat(3);
        let question = [0xc0, 12, 0, 1, 0, 1];
        let first = [&name, &[0, 0, 1, 0, 1][..]].concat();
        let pointers = [first, question.repeat(10_000)].concat();
        let strings = [&[0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0xfd, 0xe8][..], &[0; 65_000]].concat();
        let target =
            [&[0xc0, 12, 1, 0, 0, 1, 0, 0, 0, 0, 0xfd, 0xe8][..], &[0xff; 65_000]].concat();
        for (what, flags, counts, rest) in [
            ("names", 0, [10_001, 0, 0, 0], pointers),
            ("empty strings", 0x8000, [0, 1, 0, 0], strings),
            ("a long string", 0x8000, [0, 1, 0, 0], target),
        ] {
            let text = text(flags, counts, &rest);
            assert!(text.ends_with(" [|domain]") && text.len() < MAX_TEXT + 2000, "{what}");
        }
    }
}
