//! A port's name: `[kind:]name[/queues][,option=value…]`, or `?option=value&…` for the options.
//!
//! An option's value may contain any characters, even a pcap-filter expression with `&`: a new option
//! begins only at a `,` or `&` that is followed by the name of an option of this kind of port and `=`.

mod kinds;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use kinds::{KINDS, KindSpec};
pub use kinds::{Kind, PortOption};

use super::options::OpenOptions;
use crate::error::{Error, Result};
use crate::file::Format;
use crate::filter::Filter;
use crate::units;

/// Number of slots of a ring without `slots=`.
const DEFAULT_SLOTS: u32 = 512;
/// The maximum of `latency=`.
const MAX_LATENCY: Duration = Duration::from_secs(1);

/// A parsed port name: `[kind:]name[/queues][,option=value…]`, or `?option=value&…` for the options.
/// `Display` prints it as it was written.
///
/// A bare name is that of an interface, opened as `packet:`, or that of a capture file: `trace.pcapng.zst`,
/// `./trace`. `docs/ports.md` lists the options of each [`Kind`].
///
/// ```
/// use sluicegate::port::{Kind, PortName};
///
/// let name: PortName = "xdp:eth0/0-1?filter=udp dst port 53&promisc=on".parse()?;
/// assert_eq!((name.kind(), name.name(), name.queues()), (Kind::Xdp, "eth0", Some(0..=1)));
/// assert_eq!(name.option("filter"), Some("udp dst port 53"));
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    text: String,
    kind: Kind,
    name: String,
    queues: Option<RangeInclusive<u32>>,
    options: Vec<(&'static str, String)>,
}

impl PortName {
    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the interface or the file; empty for `null:`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the requested queues: `/0-3`, `/2`.
    pub fn queues(&self) -> Option<RangeInclusive<u32>> {
        self.queues.clone()
    }

    /// Returns kind and name without queues and options, for messages: "packet:eth0".
    pub fn short(&self) -> String {
        format!("{}:{}", self.kind.prefix(), self.name)
    }

    /// Returns the name to display: the interface, a file without folder and extension, or the kind
    /// if the port has no name.
    pub fn display_name(&self) -> &str {
        let stem = || Path::new(&self.name).file_stem()?.to_str();
        match &self.name[..] {
            "" => self.kind.prefix(),
            name if self.kind == Kind::Packet || !name.contains('/') => name,
            name => stem().unwrap_or(name),
        }
    }

    /// Returns true if the name is only that of an interface, without a kind.
    pub fn is_bare(&self) -> bool {
        self.kind == Kind::Packet && !self.text.starts_with("packet:")
    }

    /// Returns a bare name as a port of another kind, with the same options. None if the name already has a
    /// kind, or has queues or options that the kind may interpret differently or reject.
    pub fn with_kind(&self, kind: Kind) -> Option<Self> {
        let spec = kind.spec();
        let known = self.options.iter().all(|(key, _)| spec.option(key).is_some());
        let text = format!("{}:{}", spec.prefix, self.text);
        (self.is_bare() && self.queues.is_none() && known).then(|| Self {
            text,
            kind,
            ..self.clone()
        })
    }

    /// Returns an option's value as written.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().rev().find(|(k, _)| *k == key).map(|(_, value)| value.as_str())
    }

    /// Sets an option that the name does not contain, for a flag of a command. Returns false if the name
    /// contains it already, or this kind of port does not have it.
    pub fn set_default(&mut self, key: &str, value: &str) -> bool {
        match self.kind.spec().option(key) {
            Some(known) if self.option(key).is_none() => {
                self.options.push((known, value.to_owned()));
                true
            }
            _ => false,
        }
    }

    /// Selects queues in a name that does not, for a flag of a command. Returns false if this kind of port
    /// has no queues to select.
    pub fn set_default_queues(&mut self, queues: &RangeInclusive<u32>) -> bool {
        if self.kind.spec().queues && self.queues.is_none() {
            self.queues = Some(queues.clone());
        }
        self.kind.spec().queues
    }

    /// Returns true if this kind of port has an option with that name.
    pub fn knows(&self, key: &str) -> bool {
        self.kind.spec().option(key).is_some()
    }

    /// Parses an option whose value is one of several words.
    pub(super) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.option(key) else {
            return Ok(None);
        };
        match choices.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.bad_option(key, value, &format!("use one of {}", words.join(", "))))
            }
        }
    }

    /// Parses an option whose value is on or off.
    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>> {
        let words =
            [("on", true), ("off", false), ("1", true), ("0", false), ("yes", true), ("no", false)];
        self.choice(key, &words)
    }

    /// Parses an option whose value is a count within bounds. K, M and G are powers of 1024, as with bytes;
    /// `64KB`, which means bytes, is rejected.
    pub(super) fn count(&self, key: &str, bounds: RangeInclusive<u32>) -> Result<Option<u32>> {
        match self.option(key) {
            Some(value) if value.ends_with('B') => Err(self.out_of(key, value, &bounds)),
            _ => self.number(key, bounds),
        }
    }

    /// Parses an option whose value is a number of bytes within bounds, with [`units::bytes`]: K, M and G
    /// are powers of 1024.
    pub(super) fn number(&self, key: &str, bounds: RangeInclusive<u32>) -> Result<Option<u32>> {
        let Some(value) = self.option(key) else {
            return Ok(None);
        };
        let number = units::bytes(value).ok().and_then(|n| u32::try_from(n).ok());
        match number.filter(|n| bounds.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(self.out_of(key, value, &bounds)),
        }
    }

    fn out_of(&self, key: &str, value: &str, bounds: &RangeInclusive<u32>) -> Error {
        let advice = format!("use a number from {} to {}", bounds.start(), bounds.end());
        self.bad_option(key, value, &advice)
    }

    /// Parses an option whose value is a time: `10ms`, `50us`, `1s`. A number without a unit is rejected,
    /// because seconds and milliseconds are both common.
    pub fn duration(&self, key: &str) -> Result<Option<Duration>> {
        let Some(value) = self.option(key) else {
            return Ok(None);
        };
        let has_unit = value.ends_with(|last: char| last.is_ascii_alphabetic());
        match units::duration(value) {
            Ok(duration) if has_unit => Ok(Some(duration)),
            _ => Err(self.bad_option(key, value, "use a time such as 50us, 10ms or 1s")),
        }
    }

    /// Returns the number of slots of each ring of the port.
    pub(super) fn slots(&self, bounds: RangeInclusive<u32>) -> Result<u32> {
        Ok(self.count("slots", bounds)?.unwrap_or(DEFAULT_SLOTS))
    }

    /// Returns the numbers of the port's queues: those of the name, or as many as the options request.
    pub(super) fn queue_numbers(&self, options: &OpenOptions) -> RangeInclusive<u32> {
        self.queues().unwrap_or(0..=options.queues.max(1) - 1)
    }

    /// Rejects numbers of queues above 0 that a port of this kind would make: they would select no queue of the
    /// card, and one queue would receive the packets of all.
    pub(super) fn check_queue_numbers(&self) -> Result<()> {
        let Some(queues) = self.queues() else { return Ok(()) };
        if *queues.start() == 0 || !self.kind.takes_queue_count() {
            return Ok(());
        }
        let (prefix, name, last) = (self.kind.prefix(), self.name(), *queues.end());
        let text = match queues.clone().count() {
            1 => last.to_string(),
            _ => format!("{}-{last}", queues.start()),
        };
        let card = match self.kind {
            Kind::Packet => {
                format!("; for a card's queue use xdp:{name}/{text} or mirror:{name}/{text}")
            }
            _ => String::new(),
        };
        Err(self.error(format!(
            "{prefix}: ports make their queues, numbered from 0; use /0-{last} for {} queues{card}",
            last + 1
        )))
    }

    /// Rejects a requested number of queues that differs from that of the interface, the file or the
    /// monitored command. Queues in the name take precedence over the request.
    pub(super) fn check_queue_count(&self, options: &OpenOptions, has: usize) -> Result<()> {
        let requested = options.queues as usize;
        if self.queues().is_some() || requested == 0 || requested == has {
            return Ok(());
        }
        let queues = if has == 1 { "queue" } else { "queues" };
        let were = if requested == 1 { "was" } else { "were" };
        let by_name = matches!(self.kind, Kind::Xdp | Kind::Mirror) && requested < has;
        let select = match requested {
            _ if !by_name => String::new(),
            1 => format!(
                ", or select one by name, without the packets of the others: {}/0",
                self.short()
            ),
            _ => format!(
                ", or select some by name, without the packets of the others: {}/0-{}",
                self.short(),
                requested - 1
            ),
        };
        Err(self.error(format!(
            "it has {has} {queues}, and {requested} {were} requested: use Port::open with queues: 0 to open \
             all{select}"
        )))
    }

    /// Returns the filter's expression. None if there is none, or it is empty.
    pub(super) fn filter_text(&self) -> Option<&str> {
        self.option("filter").filter(|text| !text.trim().is_empty())
    }

    /// Returns the filter, compiled for packets of a link type.
    pub(super) fn filter(&self, link_type: u16) -> Result<Option<Filter>> {
        self.filter_text().map(|text| Filter::compile(text, link_type)).transpose()
    }

    /// Returns how long a packet may wait for a sleeping program: the option `latency`, or that of
    /// [`OpenOptions`].
    pub(super) fn latency(&self, options: &OpenOptions) -> Result<Option<Duration>> {
        match self.duration("latency")? {
            Some(latency) if latency > MAX_LATENCY => {
                Err(self.bad_option("latency", &format!("{latency:?}"), "use 0s to 1s"))
            }
            latency => Ok(latency.or(options.latency)),
        }
    }

    /// Makes the error for an invalid option.
    pub fn bad_option(&self, key: &str, value: &str, advice: &str) -> Error {
        self.error(format!("{key}={value}: {advice}"))
    }

    /// Makes an error about this port.
    pub fn error(&self, reason: impl Into<String>) -> Error {
        Error::Port { port: self.text.clone(), reason: reason.into() }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for PortName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |reason: String| Error::Port { port: text.to_owned(), reason };
        let (spec, rest) = split_kind(text).map_err(&wrong)?;
        let (rest, options) = split_address(rest, spec);
        let (name, queues) = match rest.split_once('/') {
            Some((name, queues)) if spec.queues => (
                name,
                Some(parse_queues(queues).ok_or_else(|| {
                    wrong(format!("queues '{queues}': use a number or a range such as 0-3"))
                })?),
            ),
            _ => (rest, None),
        };
        if name.is_empty() != (spec.kind == Kind::Null) {
            return Err(wrong(match spec.kind {
                Kind::Null => "null: takes no name".into(),
                Kind::Pcap => "no file named: use pcap:FILE, or pcap:- for a pipe".into(),
                Kind::Memif => "no socket named: use memif:FILE, or memif:@NAME".into(),
                Kind::Monitor => "no port named: use monitor:NAME/PORT".into(),
                Kind::Packet | Kind::Xdp | Kind::Mirror | Kind::Live | Kind::Host | Kind::Tap => {
                    "no interface named, such as eth0".into()
                }
            }));
        }
        let options = split_options(options, spec).map_err(&wrong)?;
        Ok(Self { text: text.to_owned(), kind: spec.kind, name: name.to_owned(), queues, options })
    }
}

/// Splits the kind from a name. A bare name is a capture file, or an interface through `packet:`.
fn split_kind(text: &str) -> Result<(&'static KindSpec, &str), String> {
    let (address, _) = text.split_once('?').unwrap_or((text, ""));
    let prefix = address.split_once(':').map(|(prefix, _)| prefix);
    match KINDS.iter().find(|spec| prefix == Some(spec.prefix)) {
        Some(spec) => Ok((spec, &text[spec.prefix.len() + 1..])),
        None if is_file(address) => Ok((Kind::Pcap.spec(), text)),
        None => match prefix.filter(|prefix| !prefix.contains(',')) {
            Some(prefix) => {
                let kinds: Vec<String> =
                    KINDS.iter().map(|spec| format!("{}:", spec.prefix)).collect();
                Err(format!("no port kind '{prefix}:'; available: {}", kinds.join(", ")))
            }
            None => Ok((Kind::Packet.spec(), text)),
        },
    }
}

/// Returns true for the name of a capture file, or `-`. No interface's name begins like a path.
fn is_file(address: &str) -> bool {
    let path = address.split(',').next().unwrap_or(address);
    path == "-"
        || ["/", "./", "../"].iter().any(|begin| path.starts_with(begin))
        || Format::of(Path::new(path)).is_some()
}

/// Splits an address from the options, which begin at a `?`, or at a `,` before the name of an option. The
/// name of a file or a socket may contain other commas.
fn split_address<'a>(text: &'a str, spec: &KindSpec) -> (&'a str, &'a str) {
    let begins = |at: usize| match &text[at..at + 1] {
        "?" => true,
        _ => spec.queues || spec.key_of(&text[at + 1..]).is_some(),
    };
    let at = text.match_indices(['?', ',']).map(|(at, _)| at).find(|&at| begins(at));
    at.map_or((text, ""), |at| (&text[..at], &text[at + 1..]))
}

/// Parses the queues of a name: `2`, `0-3`. None if they are none.
pub fn parse_queues(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < 4096).then_some(first..=last)
}

/// Renamed options: the error for an old name shows the new one.
const RENAMED: [(&str, &str); 5] = [
    ("cells", "ring_size"),
    ("frames", "ring_size"),
    ("outgoing", "tx_copies"),
    ("retire", "block_timeout"),
    ("ring", "ring_size"),
];

fn split_options(text: &str, spec: &KindSpec) -> Result<Vec<(&'static str, String)>, String> {
    let mut options: Vec<(&'static str, String)> = Vec::new();
    let mut separator = "";
    for piece in text.split_inclusive([',', '&']) {
        let part = piece.strip_suffix([',', '&']).unwrap_or(piece);
        let pair = part.split_once('=');
        let known = pair.and_then(|(key, value)| spec.option(key).map(|key| (key, value)));
        let renamed = pair.and_then(|(key, _)| RENAMED.iter().find(|(old, _)| *old == key));
        if let Some((old, new)) = renamed.filter(|(_, new)| spec.option(new).is_some()) {
            return Err(format!("option '{part}': {old}= is called {new}= now"));
        }
        match (known, options.last_mut()) {
            (Some((key, value)), _) => options.push((key, value.to_owned())),
            // No option starts here: the separator belongs to the previous filter or list.
            (None, Some((key, value)))
                if *key == "filter" || separator == "," && pair.is_none() =>
            {
                value.push_str(separator);
                value.push_str(part);
            }
            (None, _) => {
                return Err(format!(
                    "option '{part}': {}: has the options {}",
                    spec.prefix,
                    spec.options
                        .iter()
                        .map(|o| format!("{}=", o.name))
                        .collect::<Vec<_>>()
                        .join(" ")
                ));
            }
        }
        separator = &piece[part.len()..];
    }
    Ok(options)
}

#[cfg(test)]
mod tests;
