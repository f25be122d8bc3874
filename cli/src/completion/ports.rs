//! Completion of a port: its kind, its name, its options and their values.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;
use sluicegate::port::{Kind, PortOption};

use super::running;
use super::values::{
    after, files as path, filter_words, interface_names, interfaces_in, literals, matching,
    typed_positionals, typed_value, typed_words,
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
    if !typed_positionals().is_empty() {
        all.extend(filter_words(typed));
    }
    all
}

/// Candidates for files, which may have the form `pcap:FILE`.
pub fn files(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = path(typed);
    all.extend(after("pcap:", typed, path));
    all
}

/// Candidates for the port of `--receive`, which may have a namespace of its own.
pub fn receivers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let netns = typed_value("--receive-netns").or_else(|| typed_value("--netns"));
    candidates_in(typed, PortUse::Receive, || interfaces_in(netns.as_deref()))
}

/// Candidates for a port: kinds, interfaces and files; after a kind its names; then options, and their values.
pub fn candidates(typed: &OsStr, usage: PortUse) -> Vec<CompletionCandidate> {
    candidates_in(typed, usage, interface_names)
}

fn candidates_in(
    typed: &OsStr,
    usage: PortUse,
    interfaces: impl Fn() -> Vec<String>,
) -> Vec<CompletionCandidate> {
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
        Some(kind) => {
            after(&format!("{}:", kind.prefix()), typed, |rest| names(kind, rest, interfaces))
        }
        None => {
            let kinds = Kind::all().filter(|kind| usage.allows(*kind)).map(|kind| {
                CompletionCandidate::new(format!("{}:", kind.prefix()))
                    .help(Some(kind.about().into()))
            });
            let interfaces = interfaces().into_iter().map(CompletionCandidate::new);
            let mut all = matching(typed, interfaces);
            all.extend(matching(typed, kinds));
            all.extend(path(typed));
            all
        }
    }
}

/// Candidates for the name after a kind.
fn names(
    kind: Kind,
    typed: &OsStr,
    interfaces: impl Fn() -> Vec<String>,
) -> Vec<CompletionCandidate> {
    match kind.name_form() {
        "IFACE" => {
            let names = interfaces().into_iter().map(CompletionCandidate::new);
            let mut found = matching(typed, names);
            // Options may follow: shells add no blank if there are two candidates.
            if let [only] = &found[..] {
                let mut with_options = only.get_value().to_owned();
                with_options.push(",");
                found.push(CompletionCandidate::new(with_options));
            }
            found
        }
        "FILE" | "SOCKET" => path(typed),
        "[NAME/]PORT" => running::watched_ports(typed),
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
        "FILE" | "PATH" => path(typed),
        values => matching(typed, literals(values).map(CompletionCandidate::new)),
    }
}
