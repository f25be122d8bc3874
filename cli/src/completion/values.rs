//! Values that arguments can have: what exists on this machine, and what the command line has named before.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{env, fs};

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use sluicegate::link;
use sluicegate::link::lab::Lab;
use sluicegate_traffic::spec::PROFILES;

use crate::Cli;
use crate::capture::tcpdump::FILTER_WORDS;
use crate::switch::NamedPort;

/// Names of the network namespaces of `ip netns`.
const NAMESPACES: &str = "/run/netns";

/// Returns the candidates that begin with a text.
pub fn matching(
    typed: &OsStr,
    all: impl IntoIterator<Item = CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    let Some(text) = typed.to_str() else { return Vec::new() };
    let begins =
        |it: &CompletionCandidate| it.get_value().to_str().is_some_and(|it| it.starts_with(text));
    all.into_iter().filter(begins).collect()
}

/// Returns the candidates of a completer for the text after a prefix, with the prefix.
pub fn after(
    prefix: &str,
    typed: &OsStr,
    complete: impl FnOnce(&OsStr) -> Vec<CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    let rest = typed.to_str().and_then(|text| text.strip_prefix(prefix));
    let Some(rest) = rest else { return Vec::new() };
    complete(OsStr::new(rest)).into_iter().map(|it| it.add_prefix(prefix)).collect()
}

/// Returns the words of "spin|sleep|adaptive" or "defrag,rollover". A word in capitals is a placeholder.
pub fn literals(alternatives: &str) -> impl Iterator<Item = &str> {
    let literal =
        |word: &&str| !word.is_empty() && !word.contains(|c: char| c.is_ascii_uppercase());
    alternatives.split(['|', ',']).filter(literal)
}

/// Returns the value of an option that was typed before.
pub fn typed_value(option: &str) -> Option<String> {
    let words: Vec<String> = env::args().collect();
    let joined = |word: &String| word.strip_prefix(option)?.strip_prefix('=').map(str::to_owned);
    words.iter().rev().find_map(joined).or_else(|| {
        let at = words.iter().rposition(|word| word == option)?;
        words.get(at + 1).cloned()
    })
}

/// The names of the interfaces, in the namespace that was typed before.
pub fn interface_names() -> Vec<String> {
    interfaces_in(typed_value("--netns").as_deref())
}

pub fn interfaces_in(netns: Option<&str>) -> Vec<String> {
    let found = link::interfaces(netns).unwrap_or_default();
    found.into_iter().map(|interface| interface.name).collect()
}

/// Completes files and folders, without `.`.
pub fn files(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(typed);
    found.retain(|it| it.get_value() != ".");
    found
}

/// Completes names of files in folders: namespaces, sockets' names.
pub fn names_in(folder: &Path) -> Vec<OsString> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

pub fn namespaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    matching(typed, names_in(Path::new(NAMESPACES)).into_iter().map(CompletionCandidate::new))
}

pub fn profiles(typed: &OsStr) -> Vec<CompletionCandidate> {
    let candidate = |name, about: String| CompletionCandidate::new(name).help(Some(about.into()));
    matching(typed, PROFILES.iter().map(|it| candidate(it.name, it.about().to_string())))
}

/// Completes a word of a filter.
pub fn filter_words(typed: &OsStr) -> Vec<CompletionCandidate> {
    let between = ["and", "or"];
    matching(typed, FILTER_WORDS.iter().chain(&between).map(CompletionCandidate::new))
}

/// The words that were typed after the name of a command of `sluice`, without the last.
pub fn typed_words() -> Vec<String> {
    // Before them are the completing command's own name, a `--`, and `sluice capture`.
    let mut words: Vec<String> = env::args().skip(4).collect();
    words.pop();
    words
}

/// The words of [`typed_words`] that are neither flags nor their values.
pub fn typed_positionals() -> Vec<String> {
    let command = Cli::command();
    let name = env::args().nth(3).unwrap_or_default();
    let Some(command) = command.find_subcommand(name) else { return Vec::new() };
    let mut positionals = Vec::new();
    let mut is_value = false;
    for word in typed_words() {
        match () {
            () if is_value => is_value = false,
            () if word.starts_with('-') => is_value = value_follows(command, &word),
            () => positionals.push(word),
        }
    }
    positionals
}

/// Returns true if the next word is the value of this flag.
fn value_follows(command: &Command, flag: &str) -> bool {
    let mut shorts = flag.chars().skip(1);
    // The first short flag with a value takes the rest of the word, if there is one.
    let short = shorts.find(|&c| takes_word(command, |it| it.get_short() == Some(c)));
    match flag.strip_prefix("--") {
        Some(long) => takes_word(command, |it| it.get_long() == Some(long)),
        None => short.is_some() && shorts.next().is_none(),
    }
}

/// Returns true if an argument exists, and has a value that may be a word of its own.
fn takes_word(command: &Command, is_it: impl Fn(&Arg) -> bool) -> bool {
    let found = command.get_arguments().find(|it| is_it(it));
    found.is_some_and(|it| it.get_action().takes_values() && !it.is_require_equals_set())
}

/// Completes a payload: its kinds, and the file of `file:`.
pub fn payloads(typed: &OsStr) -> Vec<CompletionCandidate> {
    let kinds = ["hex:", "text:", "pattern:", "file:", "random"];
    let mut all = matching(typed, kinds.into_iter().map(CompletionCandidate::new));
    all.extend(after("file:", typed, files));
    all
}

/// Completes the users of this machine.
pub fn users(typed: &OsStr) -> Vec<CompletionCandidate> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split(':').next());
    matching(typed, names.map(CompletionCandidate::new))
}

pub fn labs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let labs = Lab::list();
    matching(typed, labs.iter().map(|lab| CompletionCandidate::new(lab.name())))
}

/// Completes the hosts of the lab that was typed before.
pub fn hosts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let lab = Lab::find(typed_value("--name").as_deref().unwrap_or("lab"));
    let hosts: Vec<&str> = match &lab {
        Ok(lab) => lab.hosts().iter().map(|host| host.name).collect(),
        Err(_) => vec!["left", "middle", "right", "upper", "lower"],
    };
    matching(typed, hosts.into_iter().map(CompletionCandidate::new))
}

/// Completes the names of the ports that were typed before.
pub fn typed_port_names(typed: &OsStr) -> Vec<CompletionCandidate> {
    let ports = typed_positionals().into_iter();
    let names = ports.filter_map(|word| word.parse::<NamedPort>().ok()).map(|port| port.name);
    matching(typed, names.map(CompletionCandidate::new))
}

/// Completes `NAME=`: the names of the ports that were typed before.
pub fn names_of_typed_ports(typed: &OsStr) -> Vec<CompletionCandidate> {
    let with_sign = |mut name: OsString| {
        name.push("=");
        CompletionCandidate::new(name)
    };
    let names = typed_port_names(OsStr::new("")).into_iter();
    matching(typed, names.map(|name| with_sign(name.get_value().to_owned())))
}

/// Completes `[NETNS/]A,[NETNS/]B`: two interfaces, each perhaps in a namespace.
pub fn pairs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = typed.to_str() else { return Vec::new() };
    let (first, side) = text.split_at(text.rfind(',').map_or(0, |at| at + 1));
    let end = if first.is_empty() { "," } else { "" };
    let all: Vec<String> = match side.split_once('/') {
        Some((netns, _)) => {
            let names = interfaces_in(Some(netns)).into_iter();
            names.map(|name| format!("{first}{netns}/{name}{end}")).collect()
        }
        None => {
            let namespaces = names_in(Path::new(NAMESPACES)).into_iter();
            let namespaces = namespaces.filter_map(|name| name.into_string().ok());
            let names = interfaces_in(None).into_iter().map(|name| format!("{first}{name}{end}"));
            names.chain(namespaces.map(|name| format!("{first}{name}/"))).collect()
        }
    };
    matching(typed, all.into_iter().map(CompletionCandidate::new))
}

/// Completes a program: by its name, or by its path.
pub fn programs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if typed.to_str().is_some_and(|text| text.contains('/')) {
        return PathCompleter::any().filter(runs).complete(typed);
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).flat_map(|folder| {
        let begins = move |name: &OsString| match (name.to_str(), typed.to_str()) {
            (Some(name), Some(typed)) => name.starts_with(typed),
            _ => false,
        };
        let names = names_in(&folder).into_iter().filter(begins);
        names.filter(|name| runs(&folder.join(name))).collect::<Vec<_>>()
    });
    let mut names: Vec<OsString> = found.collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Completes a command and its arguments: a program, then files.
pub fn command_words(typed: &OsStr) -> Vec<CompletionCandidate> {
    // The last word is the typed one.
    let words: Vec<String> = env::args().skip(2).collect();
    match words.iter().rposition(|word| word == "--") {
        Some(at) if at + 2 < words.len() => files(typed),
        _ => programs(typed),
    }
}
