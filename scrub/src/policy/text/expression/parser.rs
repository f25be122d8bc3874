//! Parses the expression by recursive descent.

use std::ops::Range as Span;

use ipnet::IpNet;

use super::ExpressionError;
use super::lexer::{Token, tokens};
use super::terms::{Alternatives, Field, Terms};
use crate::policy::text::{names, networks, numbers};

/// Maximum length: a rule has few values.
const MAX_BYTES: usize = 16_384;
/// Maximum depth of parentheses and `not`.
const MAX_DEPTH: usize = 32;
/// Bytes of Ethernet in front of the IP packet.
const ETHERNET_BYTES: u32 = 14;

const WORDS: &str = "known are ip, ip6, tcp, udp, sctp, icmp, icmp6, igmp, esp, ah, proto, vlan, less, greater, \
    tcp[tcpflags], icmp[icmptype] and src or dst before host, net, port, portrange";

pub(super) type Parsed<T> = Result<T, ExpressionError>;

/// The qualifiers of an address or port, which the next value may leave out.
#[derive(Clone, Copy, Debug)]
struct Qualifiers {
    /// The IP version of the protocol word, as [`Field::Version`] counts it.
    version: Option<u32>,
    protocol: Option<u32>,
    direction: Option<Direction>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Src,
    Dst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A host or a network.
    Address,
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

pub(super) fn parse(text: &str) -> Parsed<Terms> {
    if text.len() > MAX_BYTES {
        let problem = format!("it has more than {MAX_BYTES} bytes: use several rules, or a set");
        return Err(ExpressionError::new(0..text.len(), problem));
    }
    let end = text.trim_end().len();
    let mut parser = Parser { tokens: tokens(text), next: 0, end, depth: 0, qualifiers: None };
    if parser.tokens.is_empty() {
        let problem = "it is empty: match = {} matches all packets";
        return Err(ExpressionError::new(0..text.len(), problem));
    }
    let terms = parser.expression()?;
    match parser.peek() {
        None => Ok(terms),
        Some(token) => {
            let problem =
                format!("'{}' follows a complete expression: join conditions by and", token.text);
            Err(ExpressionError::new(token.at.clone(), problem))
        }
    }
}

pub(super) struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    pub(super) next: usize,
    /// The end of the text.
    end: usize,
    depth: usize,
    qualifiers: Option<Qualifiers>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.next)
    }

    pub(super) fn peek_text(&self) -> &'a str {
        self.peek().map_or("", |token| token.text)
    }

    /// Returns the next token; `right` describes it.
    pub(super) fn take(&mut self, right: &str) -> Parsed<Token<'a>> {
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        token.ok_or_else(|| {
            ExpressionError::new(
                self.end..self.end,
                format!("it ends too early: {right} is missing"),
            )
        })
    }

    pub(super) fn expect(&mut self, text: &str) -> Parsed<Token<'a>> {
        let token = self.take(&format!("'{text}'"))?;
        if token.text == text {
            return Ok(token);
        }
        Err(ExpressionError::new(
            token.at,
            format!("'{}' is wrong here: write '{text}'", token.text),
        ))
    }

    fn expression(&mut self) -> Parsed<Terms> {
        let mut terms = self.operand()?;
        loop {
            match self.peek_text() {
                "and" | "&&" => {
                    self.next += 1;
                    terms = terms.and(self.operand()?)?;
                }
                "or" | "||" => {
                    let at = self.take("or")?.at;
                    terms = terms.or(self.operand()?, at)?;
                }
                _ => return Ok(terms),
            }
        }
    }

    fn operand(&mut self) -> Parsed<Terms> {
        let text = self.peek_text();
        if !matches!(text, "not" | "!" | "(") {
            return self.primitive();
        }
        let at = self.take(text)?.at;
        if self.depth == MAX_DEPTH {
            let problem = format!("more than {MAX_DEPTH} parentheses or not: remove some");
            return Err(ExpressionError::new(at, problem));
        }
        self.depth += 1;
        let terms = if text == "(" {
            let terms = self.expression()?;
            self.expect(")")?;
            terms
        } else {
            self.operand()?.not(at)?
        };
        self.depth -= 1;
        Ok(terms)
    }

    fn primitive(&mut self) -> Parsed<Terms> {
        let token = self.take("a condition")?;
        if let Some(qualifiers) = self.qualifiers
            && (token.text.contains(':') || token.text.starts_with(|c: char| c.is_ascii_digit()))
        {
            return self.value(qualifiers, token.at.clone(), &token);
        }
        let (version, protocol) = match token.text {
            "ip" => (Some(0), None),
            "ip6" => (Some(1), None),
            "icmp" => (Some(0), Some(1)),
            "igmp" => (Some(0), Some(2)),
            "tcp" => (None, Some(6)),
            "udp" => (None, Some(17)),
            "esp" => (None, Some(50)),
            "ah" => (None, Some(51)),
            "icmp6" => (Some(1), Some(58)),
            "sctp" => (None, Some(132)),
            "less" | "greater" => return self.length(&token),
            "vlan" => return self.vlan(&token),
            "src" | "dst" | "host" | "net" | "port" | "portrange" | "proto" => {
                self.next -= 1;
                return self.qualified(None, None, token.at.start);
            }
            text => {
                let problem = format!("rules do not know '{text}'; {WORDS}");
                return Err(ExpressionError::new(token.at, problem));
            }
        };
        match self.peek_text() {
            "[" => self.byte(&token),
            "src" | "dst" | "host" | "net" | "port" | "portrange" | "proto" => {
                self.qualified(version, protocol, token.at.start)
            }
            _ => Ok(protocols(version, protocol, &token.at)),
        }
    }

    /// Parses a primitive behind its protocol.
    fn qualified(
        &mut self,
        version: Option<u32>,
        protocol: Option<u32>,
        begin: usize,
    ) -> Parsed<Terms> {
        let direction = match self.peek_text() {
            "src" => Some(Direction::Src),
            "dst" => Some(Direction::Dst),
            _ => None,
        };
        self.next += usize::from(direction.is_some());
        if matches!(self.peek_text(), "or" | "and") {
            let at = self.take("or")?.at;
            let problem = "a direction is src or dst alone: write a rule for each; port without a direction is either";
            return Err(ExpressionError::new(at, problem));
        }
        let word = self.peek().cloned();
        let kind = match word.as_ref().map_or("", |it| it.text) {
            "host" => Kind::Host,
            "net" => Kind::Net,
            "port" => Kind::Port,
            "portrange" => Kind::PortRange,
            "proto" => Kind::Proto,
            _ => Kind::Address,
        };
        self.next += usize::from(kind != Kind::Address);
        let at = word.map_or(self.end..self.end, |it| it.at);
        let is_port = matches!(kind, Kind::Port | Kind::PortRange);
        let wrong = match (is_port, direction) {
            (true, _) if protocol.is_none() && version.is_some() => {
                Some("ports need tcp or udp: write ip and port")
            }
            (false, _) if protocol.is_some() => {
                Some("only ports follow this protocol: join by and")
            }
            (false, Some(_)) if kind == Kind::Proto => {
                Some("a protocol has no direction: remove src or dst")
            }
            (false, None) if kind != Kind::Proto => {
                Some("write src or dst in front of it, in a rule for each")
            }
            _ => None,
        };
        if let Some(problem) = wrong {
            return Err(ExpressionError::new(at, problem));
        }
        let qualifiers = Qualifiers { version, protocol, direction, kind };
        self.qualifiers = Some(qualifiers);
        let value = self.take("a value")?;
        self.value(qualifiers, begin..value.at.end, &value)
    }

    /// Parses a value behind its qualifiers.
    fn value(&mut self, qualifiers: Qualifiers, at: Span<usize>, value: &Token) -> Parsed<Terms> {
        let Qualifiers { version, protocol, direction, kind } = qualifiers;
        let terms = protocols(version, protocol, &at);
        let wrong = |problem: String| ExpressionError::new(value.at.clone(), problem);
        let port_field = match direction {
            Some(Direction::Src) => Field::Sport,
            Some(Direction::Dst) => Field::Dport,
            None => Field::Port,
        };
        match kind {
            Kind::Port => {
                let port = number(value, 65_535)?;
                Ok(terms.number(port_field, port, port, &at))
            }
            Kind::PortRange => {
                let right =
                    || wrong(format!("'{}' is no range: write it like 8000-8100", value.text));
                let (first, last) = value.text.split_once('-').ok_or_else(right)?;
                let number = |text: &str| text.parse::<u16>().map(u32::from).map_err(|_| right());
                let (first, last) = (number(first)?, number(last)?);
                // As in pcap-filter(7), the order does not matter.
                Ok(terms.number(port_field, first.min(last), first.max(last), &at))
            }
            Kind::Proto => {
                let name = value.text.trim_start_matches('\\');
                let protocol = match names::find(names::PROTOCOLS, name) {
                    Some(protocol) => protocol,
                    None if name.starts_with(|c: char| c.is_ascii_digit()) => number(value, 255)?,
                    None => numbers::named(names::PROTOCOLS, "protocol", name).map_err(wrong)?,
                };
                Ok(terms.number(Field::Protocol, protocol, protocol, &at))
            }
            Kind::Address | Kind::Host | Kind::Net => {
                let network = match kind {
                    Kind::Net => partial_network(value.text),
                    _ => None,
                };
                let network =
                    network.map_or_else(|| networks::network(value.text), Ok).map_err(wrong)?;
                if kind == Kind::Host && value.text.contains('/') {
                    return Err(wrong("a host has no length: write net".into()));
                }
                if self.peek_text() == "mask" {
                    let at = self.take("mask")?.at;
                    return Err(ExpressionError::new(
                        at,
                        "write the mask as a length: net 198.18.0.0/15",
                    ));
                }
                let of_version = u32::from(network.addr().is_ipv6());
                if version.is_some_and(|it| it != of_version) {
                    return Err(wrong(
                        "no packet matches: the address is of the other IP version".into(),
                    ));
                }
                let field = match direction {
                    Some(Direction::Src) => Field::Src,
                    _ => Field::Dst,
                };
                Ok(terms.with(field, Alternatives::Networks(vec![network]), &at))
            }
        }
    }

    /// Parses the number of `less` and `greater`, bytes of a frame; both include it.
    fn length(&mut self, word: &Token) -> Parsed<Terms> {
        let value = self.take("a number of bytes")?;
        let bytes = number(&value, u32::MAX)?;
        let at = word.at.start..value.at.end;
        let (first, last) = match word.text {
            "greater" => (bytes.saturating_sub(ETHERNET_BYTES), 65_535),
            _ if bytes < ETHERNET_BYTES => (1, 0),
            _ => (0, (bytes - ETHERNET_BYTES).min(65_535)),
        };
        if first > last {
            let problem = "no packet matches: frames with IP have 14 to 65549 bytes";
            return Err(ExpressionError::new(at, problem));
        }
        Ok(Terms::default().number(Field::Length, first, last, &at))
    }

    fn vlan(&mut self, word: &Token) -> Parsed<Terms> {
        let right = "the number of the VLAN";
        let value = self.take(right)?;
        let vlan = number(&value, 4095)?;
        if vlan == 0 {
            let problem = "rules do not match priority tags; match = { vlan = 0 } matches packets without a tag";
            return Err(ExpressionError::new(value.at, problem));
        }
        Ok(Terms::default().number(Field::Vlan, vlan, vlan, &(word.at.start..value.at.end)))
    }
}

pub(super) fn protocols(version: Option<u32>, protocol: Option<u32>, at: &Span<usize>) -> Terms {
    let mut terms = Terms::default();
    for (field, number) in [(Field::Version, version), (Field::Protocol, protocol)] {
        if let Some(number) = number {
            terms = terms.number(field, number, number, at);
        }
    }
    terms
}

/// Reads a number, in decimal or hexadecimal.
pub(super) fn number(token: &Token, max: u32) -> Parsed<u32> {
    let (digits, radix) = match token.text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (token.text, 10),
    };
    let valid = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    let number = valid.then(|| u32::from_str_radix(digits, radix).ok()).flatten();
    number.filter(|it| *it <= max).ok_or_else(|| {
        let problem = format!("'{}' is wrong here: write a number from 0 to {max}", token.text);
        ExpressionError::new(token.at.clone(), problem)
    })
}

/// Reads an IPv4 network of 1 to 3 bytes: `net 198.18`.
fn partial_network(text: &str) -> Option<IpNet> {
    let bytes: Option<Vec<u8>> = text.split('.').map(|byte| byte.parse().ok()).collect();
    let mut bytes = bytes.filter(|it| it.len() < 4)?;
    let length = 8 * bytes.len() as u8;
    bytes.resize(4, 0);
    let bytes: [u8; 4] = bytes.try_into().ok()?;
    IpNet::new(bytes.into(), length).ok()
}
