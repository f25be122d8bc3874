//! Compiles an expression with libpcap, and locates the error in an invalid one.
//!
//! libpcap reports an error without its position, but it stops at the first one. So an invalid word is put
//! after the n-th token: if libpcap rejects that word, the first n tokens are valid; otherwise it rejects an
//! earlier one. Bisection finds the first invalid token in about a dozen trials.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use pcap::{Activated, Capture, Linktype, Offline};

use super::cbpf::Instruction;
use sluicegate_base::error::Error;

/// Above this number of tokens the optimizer runs only if the raw program is short. The work of libpcap's
/// optimizer grows at least with the square of the program and may take minutes.
const MANY_TOKENS: usize = 256;
const LONG_PROGRAM: usize = 1 << 14;

/// libpcap's compiler for one link type.
pub(super) struct Compiler {
    handle: Capture<dyn Activated>,
}

impl Compiler {
    /// Creates a compiler for packets of a link type (LINKTYPE_) from any port.
    pub(super) fn new(link_type: u16) -> Result<Self, String> {
        let handle = Capture::dead(Linktype(data_link_type(link_type)));
        Ok(Self { handle: handle.map_err(|error| complaint(&error))?.into() })
    }

    /// Creates a compiler for packets from a file, written on a machine of this byte order or the other. It
    /// rejects expressions that need the kernel.
    pub(super) fn for_file(link_type: u16, swapped: bool) -> Result<Self, String> {
        let number = |number: u32| if swapped { number.swap_bytes() } else { number };
        let mut header = Vec::with_capacity(24);
        // `struct pcap_file_header`: magic, versions 2 and 4 as one word, zone, accuracy.
        let versions =
            if cfg!(target_endian = "little") ^ swapped { 0x0004_0002 } else { 0x0002_0004 };
        for word in [0xa1b2_c3d4, versions, 0, 0, 0xffff, link_type.into()] {
            header.extend(number(word).to_ne_bytes());
        }
        let open = || -> std::io::Result<Capture<Offline>> {
            let mut file = File::from(memfd_create(c"sluice-filter", MFdFlags::MFD_CLOEXEC)?);
            file.write_all(&header)?;
            Capture::from_file(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .map_err(|error| std::io::Error::other(complaint(&error)))
        };
        let handle = open().map_err(|error| format!("no file to compile for: {error}"))?;
        Ok(Self { handle: handle.into() })
    }

    /// Compiles an expression, with optimization unless that would take too long.
    pub(super) fn compile(&self, expression: &str) -> Result<Vec<Instruction>, String> {
        if tokens(expression).len() > MANY_TOKENS {
            let raw = self.compile_with(expression, false)?;
            if raw.len() > LONG_PROGRAM {
                return Ok(raw);
            }
        }
        self.compile_with(expression, true)
    }

    pub(super) fn compile_with(
        &self,
        expression: &str,
        optimize: bool,
    ) -> Result<Vec<Instruction>, String> {
        let program =
            self.handle.compile(expression, optimize).map_err(|error| complaint(&error))?;
        program
            .get_instructions()
            .iter()
            .map(|instruction| parse(&instruction.to_string()))
            .collect::<Option<_>>()
            .ok_or_else(|| "libpcap made a program that cannot be read".into())
    }
}

/// Parses an instruction in the form of the `pcap` crate and `tcpdump -ddd`: code, jt, jf, k.
fn parse(text: &str) -> Option<Instruction> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some(Instruction {
        code: next()?.try_into().ok()?,
        jt: next()?.try_into().ok()?,
        jf: next()?.try_into().ok()?,
        k: next()?,
    })
}

/// Returns libpcap's message without its prefix.
fn complaint(error: &pcap::Error) -> String {
    let text = match error {
        pcap::Error::PcapError(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    ["can't parse filter expression: ", "syntax error in filter expression: "]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .map_or(text.clone(), str::to_owned)
}

/// Returns the DLT_ number of a link type, which libpcap's compiler takes. Older DLT_ numbers differ between
/// systems; LINKTYPE_ numbers for files came later (libpcap's `pcap-common.c`, `linktype_to_dlt`;
/// `pcap/dlt.h` for Linux).
fn data_link_type(link_type: u16) -> i32 {
    match link_type {
        100 => 11, // ATM_RFC1483
        101 => 12, // RAW
        102 => 15, // SLIP_BSDOS
        103 => 16, // PPP_BSDOS
        106 => 19, // ATM_CLIP
        same => same.into(),
    }
}

/// An invalid word: a link-layer address with too many parts. The scanner rejects and quotes it.
const INVALID_WORD: &str = "f0:0d:f0:0d:f0:0d:f0:0d:f0:";

/// Maximum length of an expression in which to locate an error.
const MAX_TRIED_BYTES: usize = 4 << 10;

/// Maximum of characters of an expression that [`explain`] shows.
const SHOWN: usize = 72;

/// Returns the offset of the error in an expression, from its complaint and a function that returns the
/// complaint for another expression; `None` if the complaint is not about a part of it. Host names are not
/// looked up again.
pub(super) fn column(
    expression: &str,
    message: &str,
    complaint: impl Fn(&str) -> Option<String>,
) -> Option<usize> {
    let tokens = tokens(expression);
    if message.starts_with("unknown host") || message.starts_with("unknown network") {
        return unknown_name(expression, &tokens, message);
    }
    if expression.len() > MAX_TRIED_BYTES {
        return None;
    }
    let complaint_of_first = |n: usize| {
        let trial = format!("{} {INVALID_WORD}", with_stand_ins(expression, &tokens[..n]));
        complaint(&trial).filter(|message| !message.contains(INVALID_WORD))
    };
    if complaint_of_first(0).is_some() {
        return None; // The complaint is about the link type, not the expression.
    }
    let counts: Vec<usize> = (1..=tokens.len()).collect();
    let fine = counts.partition_point(|n| complaint_of_first(*n).is_none());
    let last = tokens.last()?;
    if fine < tokens.len() && complaint_of_first(fine + 1)? != message {
        return None; // A stand-in changed the meaning.
    }
    if message == "syntax error" {
        // If all tokens are valid, the expression ends too early.
        return Some(tokens.get(fine).map_or(last.end, |wrong| wrong.start));
    }
    let read = &tokens[..tokens.len().min(fine + 1)];
    let is_word = |token: &&Range<usize>| {
        expression[(*token).clone()].starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    mentioned(expression, read, message)
        .or_else(|| read.iter().rev().find(is_word).map(|word| word.start))
}

/// Returns the offset of an unknown name that is used as a host or a network.
fn unknown_name(expression: &str, tokens: &[Range<usize>], message: &str) -> Option<usize> {
    let name = message.split('\'').nth(1)?;
    let mut before = "";
    for token in tokens {
        let text = &expression[token.clone()];
        if text.trim_start_matches('\\') == name && !names_no_host(before) {
            return Some(token.start);
        }
        before = text;
    }
    None
}

fn names_no_host(word: &str) -> bool {
    matches!(word, "port" | "portrange" | "proto" | "protochain")
}

/// Returns the offset of the last token that equals a text quoted in the complaint, or a number in it.
fn mentioned(expression: &str, tokens: &[Range<usize>], message: &str) -> Option<usize> {
    let expression = &expression[..tokens.last()?.end];
    let quoted = message.split(['\'', '"']).nth(1).filter(|text| !text.is_empty());
    if let Some(at) = quoted.and_then(|text| expression.rfind(text)) {
        return Some(at);
    }
    let numbers = message
        .split(' ')
        .filter(|word| word.starts_with(|c: char| c.is_ascii_hexdigit()))
        .filter(|word| word.contains(|c: char| c.is_ascii_digit()));
    numbers.map(|word| word.trim_end_matches([':', ','])).find_map(|word| {
        let is_it = |token: &&Range<usize>| expression[(*token).clone()].starts_with(word);
        tokens.iter().rev().find(is_it).map(|token| token.start)
    })
}

/// Returns the expression up to the last of the tokens, with addresses in place of host names: they have the
/// same role in the grammar and need no lookup.
fn with_stand_ins(expression: &str, tokens: &[Range<usize>]) -> String {
    let mut trial = String::new();
    let mut end = 0;
    for (at, token) in tokens.iter().enumerate() {
        trial.push_str(&expression[end..token.start]);
        let text = &expression[token.clone()];
        let before: Vec<&str> =
            tokens[at.saturating_sub(3)..at].iter().rev().map(|t| &expression[t.clone()]).collect();
        trial.push_str(match is_host_name(text, &before) {
            true if before.contains(&"ip6") => "2001:db8::1",
            true => "192.0.2.1",
            false => text,
        });
        end = token.end;
    }
    trial
}

/// True if libpcap would look up a token as a host name, given the preceding tokens, nearest first.
fn is_host_name(text: &str, before: &[&str]) -> bool {
    let nearest = before.first().copied().unwrap_or_default();
    let local = ["ether", "link", "fddi", "tr", "wlan"];
    let lettered = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.contains(|c: char| c.is_ascii_alphabetic())
        && !text.contains(':');
    lettered
        && !names_no_host(nearest)
        && !matches!(nearest, "net" | "gateway")
        && !before.iter().any(|word| local.contains(word))
        && (nearest == "host" || text.contains('.'))
}

/// Splits an expression into tokens, nearly as libpcap's scanner does.
pub(super) fn tokens(expression: &str) -> Vec<Range<usize>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = expression[at..].chars().next() {
        if first.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let end = at + token_bytes(&expression[at..], first);
        tokens.push(at..end);
        at = end;
    }
    tokens
}

/// Returns the length of the token at the start of a text.
fn token_bytes(text: &str, first: char) -> usize {
    let run = |wanted: fn(char) -> bool| text.find(|c| !wanted(c)).unwrap_or(text.len());
    let address = run(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'));
    if text[..address].matches(':').count() >= 2 {
        return address;
    }
    if first.is_ascii_alphanumeric() {
        let word = run(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        return text[..word].trim_end_matches(['-', '_']).len();
    }
    if first == '\\' {
        return run(|c| !matches!(c, ' ' | '!' | '(' | ')' | '\n' | '\t'));
    }
    let pairs = ["&&", "||", ">=", "<=", "!=", "==", "<<", ">>"];
    if pairs.iter().any(|pair| text.starts_with(pair)) { 2 } else { first.len_utf8() }
}

/// Returns the expression of a filter error and, on a second line, a caret under the error; `None` for errors
/// without a column. A long expression is cut around the error.
pub fn explain(error: &Error) -> Option<String> {
    let Error::Filter { expression, column: Some(column), .. } = error else { return None };
    let caret = expression.get(..*column)?.chars().count();
    let from = caret.saturating_sub(SHOWN * 2 / 3);
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let shown: String = expression.chars().skip(from).take(SHOWN).map(visible).collect();
    let cut_before = if from > 0 { "…" } else { "" };
    let cut_after = if expression.chars().nth(from + SHOWN).is_some() { "…" } else { "" };
    let indent = caret - from + cut_before.chars().count();
    Some(format!("{cut_before}{shown}{cut_after}\n{:indent$}^", ""))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::super::Filter;
    use super::*;
    use sluicegate_base::ring::LINKTYPE_ETHERNET;

    #[test]
    fn link_types_of_files_are_mapped_to_libpcaps_own() {
        let rows = [
            (1, "EN10MB"),
            (100, "ATM_RFC1483"),
            (101, "RAW"),
            (102, "SLIP_BSDOS"),
            (103, "PPP_BSDOS"),
            (106, "ATM_CLIP"),
            (113, "LINUX_SLL"),
            (228, "IPV4"),
            (276, "LINUX_SLL2"),
        ];
        for (link_type, name) in rows {
            let mapped = Linktype(data_link_type(link_type));
            assert_eq!(mapped.get_name().unwrap(), name, "link type {link_type}");
            // libpcap's own conversion, for a file, gives the same number.
            let by_file = Compiler::for_file(link_type, true).unwrap().handle.get_datalink();
            assert_eq!(by_file, mapped, "link type {link_type}");
        }
    }

    #[test]
    fn a_complaint_loses_its_prefix() {
        let error = |text: &str| complaint(&pcap::Error::PcapError(text.into()));
        assert_eq!(error("can't parse filter expression: syntax error"), "syntax error");
        assert_eq!(error("syntax error in filter expression: syntax error"), "syntax error");
        assert_eq!(error("unknown port 'x'"), "unknown port 'x'");
    }

    /// Expressions with a mark before the error, and the complaint.
    const WRONG: &[(&str, &str)] = &[
        ("udp ^prot 53", "syntax error"),
        ("tcp port^", "syntax error"),
        ("tcp port 80 and (^", "syntax error"),
        ("tcp port 80 ^)", "syntax error"),
        ("((ip)^", "syntax error"),
        ("^foo", "syntax error"),
        ("ip src or ^or", "syntax error"),
        ("not^", "syntax error"),
        ("ip[0^", "syntax error"),
        ("ip[^'a'] = 1", "syntax error"),
        ("ip ^= 3", "syntax error"),
        ("udp and tcp ^$ x", "syntax error"),
        ("udp and ^é", "syntax error"),
        ("host ::1^::2", "syntax error"),
        ("udp\n  and ^and tcp", "syntax error"),
        ("ip proto ^tcp", "syntax error"),
        ("host 192.0.2.1 ^bar and tcp and (udp or port 53)", "syntax error"),
        ("port ^70000", "illegal port number 70000 > 65535"),
        ("udp and port ^nosuch or tcp", "unknown port 'nosuch'"),
        ("host ^192.0.2.300", "192.0.2.300"),
        ("port 5 and ^nosuch", "unknown port 'nosuch'"),
        ("ip proto ^nosuch and udp", "unknown ip proto 'nosuch'"),
        ("ether proto ^99999999999", "overflows 32 bits"),
        ("net ^10.0.0.1/8 or udp", "non-network bits"),
        ("udp or vlan ^5000 or tcp", "5000 greater than maximum"),
        ("mpls ^9999999", "9999999 greater than maximum"),
        ("tcp and ip[0:^3] = 1 and udp", "data size must be"),
        ("udp and ether host ^1:2:3:4:5:6:7 or tcp", "ethernet address"),
        ("tcp[0] / ^0 = 1", "division by zero"),
        ("portrange ^5-x", "unknown port in range '5-x'"),
    ];

    #[test]
    fn the_column_is_that_of_the_mistake() {
        for (marked, complaint) in WRONG {
            let expected = marked.find('^').unwrap();
            let expression = marked.replace('^', "");
            let error = Filter::compile(&expression, LINKTYPE_ETHERNET).expect_err(marked);
            let Error::Filter { message, column, .. } = &error else {
                panic!("{marked}: {error}");
            };
            assert!(message.to_lowercase().contains(complaint), "{marked}: {message}");
            // "::1::2" is one token here and two in libpcap.
            let expected = if *marked == "host ::1^::2" { 5 } else { expected };
            assert_eq!(*column, Some(expected), "{marked}: {message}");
        }
    }

    #[test]
    fn trials_are_few_and_look_up_no_name() {
        let compiler = Compiler::new(LINKTYPE_ETHERNET).unwrap();
        let (trials, worst) = (Cell::new(0), RefCell::new(String::new()));
        let expression = format!(
            "host a.example or ip6 host b.example or (src c.example and {} or or",
            "udp and ".repeat(300)
        );
        let found = column(&expression, "syntax error", |trial| {
            trials.set(trials.get() + 1);
            if trial.contains("example") {
                worst.replace(trial.to_owned());
            }
            compiler.compile_with(trial, false).err()
        });
        assert_eq!(found, Some(expression.len() - 5), "the first 'or' after 'and'");
        assert!(trials.get() <= 13, "{} trials", trials.get());
        assert_eq!(*worst.borrow(), "", "a name was left in a trial");
    }

    #[test]
    fn an_unknown_name_is_found_where_it_is_a_host() {
        let rows = [
            ("port nosuch and host nosuch", "unknown host 'nosuch'", Some(21)),
            ("src nosuch", "unknown host 'nosuch'", Some(4)),
            ("net nosuch", "unknown network 'nosuch'", Some(4)),
            ("src other", "unknown host 'nosuch'", None),
        ];
        for (expression, message, expected) in rows {
            let found = column(expression, message, |_| panic!("{expression} was tried again"));
            assert_eq!(found, expected, "{expression}");
        }
    }

    #[test]
    fn a_caret_stands_under_the_place() {
        let error = |expression: &str, column| Error::Filter {
            expression: expression.into(),
            message: "syntax error".into(),
            column,
        };
        let long = format!("{}WRONG{}", "udp or ".repeat(100), " and ip".repeat(100));
        let rows = [
            ("at a word", error("udp prot 53", Some(4)), "udp prot 53\n    ^".to_owned()),
            ("past the end", error("tcp port", Some(8)), "tcp port\n        ^".to_owned()),
            ("after wide letters", error("é x", Some(3)), "é x\n  ^".to_owned()),
            ("over a line break", error("udp\nprot", Some(4)), "udp prot\n    ^".to_owned()),
            (
                "in the midst of much",
                error(&long, Some(700)),
                format!("…{}WRONG{}…\n{}^", &long[652..700], &long[705..724], " ".repeat(49)),
            ),
        ];
        for (sentence, error, expected) in rows {
            assert_eq!(explain(&error).as_deref(), Some(&*expected), "{sentence}");
        }
        assert_eq!(explain(&error("udp", None)), None, "no place, no caret");
        assert_eq!(explain(&error("é", Some(1))), None, "not between letters");
    }

    #[test]
    fn every_kind_of_nonsense_is_refused() {
        let junk =
            ["(", ")", "[", "]", "not", "ip", "53", ":", "'", "\\", "/", "é", "$a", "::", "-"];
        let mut state = 1_u32;
        for length in 1..200 {
            let mut expression = String::new();
            for _ in 0..length % 12 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                expression.push_str(junk[(state >> 16) as usize % junk.len()]);
                expression.push_str(if state & 0x8000 == 0 { " " } else { "" });
            }
            if let Err(error) = Filter::compile(&expression, LINKTYPE_ETHERNET)
                && let Error::Filter { column: Some(column), .. } = &error
            {
                assert!(expression.is_char_boundary(*column), "{error}");
                assert!(explain(&error).is_some(), "{error}");
            }
        }
    }
}
