//! Completion of a port: its kind, its name, its options and their values.

use std::ffi::OsStr;

use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use sluicegate::port::{Kind, PortOption};

use super::values::{
    after, filter_words, interface_names, literals, matching, running, typed_words,
};
use crate::capture::tcpdump::begins_filter;

/// The directions in which a command uses a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PortUse {
    Receive,
    Send,
    Both,
}

impl PortUse {
    fn allows(self, kind: Kind) -> bool {
        match kind {
            Kind::Live => self == Self::Send,
            Kind::Mirror | Kind::Monitor => self == Self::Receive,
            _ => true,
        }
    }
}

/// Candidates for `[NAME=]PORT`.
pub fn named_candidates(typed: &OsStr) -> Vec<CompletionCandidate> {
    let name = typed.to_str().and_then(|text| text.split_once('=')).map(|(name, _)| name);
    match name.filter(|name| !name.contains([':', '?', '/', ','])) {
        Some(name) => after(&format!("{name}="), typed, |rest| candidates(rest, PortUse::Both)),
        None => candidates(typed, PortUse::Both),
    }
}

/// Candidates for ports to receive from, which a filter may follow.
pub fn or_filter(typed: &OsStr) -> Vec<CompletionCandidate> {
    let before = typed_words();
    if before.iter().any(|word| begins_filter(word)) {
        return filter_words(typed);
    }
    let mut all = candidates(typed, PortUse::Receive);
    if before.iter().any(|word| !word.starts_with('-')) {
        all.extend(filter_words(typed));
    }
    all
}

/// Candidates for a port: kinds, interfaces and files; after a kind its names; then options, and their values.
pub fn candidates(typed: &OsStr, usage: PortUse) -> Vec<CompletionCandidate> {
    let Some(text) = typed.to_str() else { return Vec::new() };
    let prefix = text.split_once(':').map(|(prefix, _)| prefix);
    let kind = Kind::all().find(|kind| prefix == Some(kind.prefix()));
    if let Some(at) = text.rfind([',', '?', '&']) {
        let found = options(typed, &text[..=at], kind.unwrap_or(Kind::Packet));
        // The comma may belong to the name of a file.
        if !found.is_empty() {
            return found;
        }
    }
    match kind {
        Some(kind) => after(&format!("{}:", kind.prefix()), typed, |rest| names(kind, rest)),
        None => {
            let kinds = Kind::all().filter(|kind| usage.allows(*kind)).map(|kind| {
                CompletionCandidate::new(format!("{}:", kind.prefix()))
                    .help(Some(kind.about().into()))
            });
            let interfaces = interface_names().into_iter().map(CompletionCandidate::new);
            let mut all = matching(typed, interfaces);
            all.extend(matching(typed, kinds));
            all.extend(PathCompleter::file().complete(typed));
            all
        }
    }
}

/// Candidates for the name after a kind.
fn names(kind: Kind, typed: &OsStr) -> Vec<CompletionCandidate> {
    match kind.name_form() {
        "IFACE" => {
            let names = interface_names().into_iter().map(CompletionCandidate::new);
            let mut found = matching(typed, names);
            // Options may follow: shells add no blank if there are two candidates.
            if let [only] = &found[..] {
                let mut with_options = only.get_value().to_owned();
                with_options.push(",");
                found.push(CompletionCandidate::new(with_options));
            }
            found
        }
        "FILE" | "SOCKET" => PathCompleter::any().complete(typed),
        "[NAME/]PORT" => {
            let names = ["switch", "forward"].into_iter().flat_map(running);
            let candidate = |mut name: std::ffi::OsString| {
                name.push("/");
                CompletionCandidate::new(name)
            };
            matching(typed, names.map(candidate))
        }
        _ => Vec::new(),
    }
}

/// Candidates for an option, or its value, after a text that ends at a separator.
fn options(typed: &OsStr, begin: &str, kind: Kind) -> Vec<CompletionCandidate> {
    let rest = typed.to_str().and_then(|text| text.strip_prefix(begin)).unwrap_or_default();
    let known = |name: &str| kind.options().iter().find(|option| option.name == name);
    if let Some((name, _)) = rest.split_once('=') {
        let Some(option) = known(name) else { return Vec::new() };
        return after(&format!("{begin}{name}="), typed, |rest| option_values(option, rest));
    }
    let candidate = |option: &PortOption| {
        CompletionCandidate::new(format!("{begin}{}=", option.name)).help(Some(option.about.into()))
    };
    matching(typed, kind.options().iter().map(candidate))
}

fn option_values(option: &PortOption, typed: &OsStr) -> Vec<CompletionCandidate> {
    match option.values {
        "FILE" | "PATH" => PathCompleter::any().complete(typed),
        values => matching(typed, literals(values).map(CompletionCandidate::new)),
    }
}
