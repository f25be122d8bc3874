//! Completion in shells, with the interfaces, namespaces, labs and kinds of ports that exist at that moment.

mod ports;
mod running;
mod shells;
mod values;

use std::ffi::OsStr;

use clap::{Arg, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter};
use clap_complete::env::{Elvish, Fish, Powershell, Shells};

use ports::PortUse;
use shells::{BASH, ZSH};

/// Answers a shell's request in the environment, and exits; returns if there is none.
pub fn answer(command: fn() -> Command) {
    let factory = move || with_values(command());
    let shells = Shells(&[&BASH, &Elvish, &Fish, &Powershell, &ZSH]);
    CompleteEnv::with_factory(factory).bin("sluice").completer("sluice").shells(shells).complete();
}

/// Adds the completion of values to all arguments, by the names of the values in the help.
fn with_values(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command.mut_args(|argument| with_value(&name, argument)).mut_subcommands(with_values)
}

fn with_value(command: &str, argument: Arg) -> Arg {
    // clap completes these itself.
    if !argument.get_possible_values().is_empty() {
        return argument;
    }
    let value = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let id = argument.get_id().to_string();
    match of_value(command, &id, value.as_deref().unwrap_or_default()) {
        Some(completer) => argument.add(completer),
        None => argument,
    }
}

/// Returns the completion of the values of a command's argument: by the argument, otherwise by the name of
/// its value in the help.
fn of_value(command: &str, id: &str, value: &str) -> Option<ArgValueCompleter> {
    Some(match (command, id, value) {
        ("generate", "receive", _) => ArgValueCompleter::new(ports::receivers),
        ("generate" | "replay", _, "PORT" | "SERVER-PORT") => port(PortUse::Send),
        ("replay", "file", _) | ("edit", "files", _) => ArgValueCompleter::new(ports::files),
        ("generate" | "explain", "profile", _) => ArgValueCompleter::new(values::profiles),
        ("generate" | "explain", "proto", _) => words("udp|tcp|icmp"),
        ("generate" | "explain", "payload", _) => ArgValueCompleter::new(values::payloads),
        ("capture", "words", _) => ArgValueCompleter::new(ports::or_filter),
        ("capture" | "count", "port" | "interface", _) => port(PortUse::Receive),
        ("capture", "post_rotate", _) => ArgValueCompleter::new(values::programs),
        ("forward", _, "PORT") => port(PortUse::Receive),
        ("forward", _, "TO") => port(PortUse::Send),
        ("remove" | "flush" | "static", "port", _) => {
            ArgValueCompleter::new(running::ports_of_switch)
        }
        ("down" | "exec", "name", _) => ArgValueCompleter::new(values::labs),
        ("exec", "host", _) => ArgValueCompleter::new(values::hosts),
        ("exec" | "run", "command", _) => ArgValueCompleter::new(values::command_words),
        ("claims" | "attach" | "detach", "interface", _) => ArgValueCompleter::new(interfaces),
        (_, "user", _) => ArgValueCompleter::new(values::users),
        (_, "compress", _) => words("zstd|lz4|gzip|none"),
        (_, "format", _) => words("pcap|pcapng"),
        (_, "mode", _) => words("native|zero-copy|copy|skb"),
        (_, _, "SWITCH") => ArgValueCompleter::new(running::switches),
        ("switch", "rx_only" | "tx_only", _) => ArgValueCompleter::new(values::typed_port_names),
        (_, _, "NAME=VLAN" | "NAME=VLANS" | "[NAME=]PPS") => {
            ArgValueCompleter::new(values::names_of_typed_ports)
        }
        (_, _, "[NETNS/]A,[NETNS/]B") => ArgValueCompleter::new(values::pairs),
        (_, _, "FILTER") => ArgValueCompleter::new(values::filter_words),
        (_, _, "[NAME=]PORT") => ArgValueCompleter::new(ports::named_candidates),
        (_, _, "PORT") if id != "sport" && id != "dport" => port(PortUse::Both),
        (_, _, "IFACE") => ArgValueCompleter::new(interfaces),
        (_, _, "NETNS") => ArgValueCompleter::new(values::namespaces),
        (_, _, "FILE" | "PATH" | "CAPTURE") => ArgValueCompleter::new(values::files),
        (_, "folder", _) => ArgValueCompleter::new(PathCompleter::dir()),
        (_, _, alternatives) if alternatives.contains('|') => words(alternatives),
        _ => return None,
    })
}

fn port(usage: PortUse) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| ports::candidates(typed, usage))
}

/// Completes the words of "spin|sleep|adaptive". A word in capitals is a placeholder.
fn words(alternatives: &str) -> ArgValueCompleter {
    let words: Vec<String> = values::literals(alternatives).map(str::to_owned).collect();
    ArgValueCompleter::new(move |typed: &OsStr| {
        values::matching(typed, words.iter().map(CompletionCandidate::new))
    })
}

fn interfaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    values::matching(typed, values::interface_names().into_iter().map(CompletionCandidate::new))
}
