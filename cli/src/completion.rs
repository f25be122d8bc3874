//! Completion in shells, with the interfaces, namespaces and kinds of ports that exist at that moment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, Command};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use sluicegate::link;
use sluicegate::port::Kind;

/// Names of the network namespaces of `ip netns`.
const NAMESPACES: &str = "/run/netns";

/// Answers a shell's request in the environment, and exits; returns if there is none.
pub fn answer(command: fn() -> Command) {
    let factory = move || with_values(command());
    CompleteEnv::with_factory(factory)
        .bin("sluice")
        .completer("sluice")
        .shells(Shells(&[&BashWithColons, &Elvish, &Fish, &Powershell, &Zsh]))
        .complete();
}

/// Bash, which splits words at the colons of ports.
struct BashWithColons;

/// Joins the parts of words with colons, and removes what is before the last colon from the candidates. Other
/// commands keep their COMP_WORDBREAKS, which bash applies before it calls a function.
const JOIN_COLONS: &str = r#"
_sluice() {
    local words=() last=-1 i word
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i == COMP_CWORD)) && [[ $word != :* ]]; then
            word=$2
        fi
        if ((last >= 0)) && [[ $word == :* || (${words[last]} == *: && -n $word) ]]; then
            words[last]+=$word
        else
            words[++last]=$word
        fi
    done
    word=${words[last]}
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$last
    _clap_complete_sluice "$1" "$word" "$3"
    if [[ $word == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}
"#;

impl EnvCompleter for BashWithColons {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        let mut script = Vec::new();
        Bash.write_registration(var, name, bin, completer, &mut script)?;
        let script = String::from_utf8_lossy(&script);
        let registered = script.replace("-F _clap_complete_sluice", "-F _sluice");
        write!(buf, "{JOIN_COLONS}{registered}")
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        directory: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        Bash.write_complete(command, args, directory, buf)
    }
}

/// Adds the completion of values to all arguments, by the names of the values in the help.
fn with_values(command: Command) -> Command {
    let of_argument = |argument: Arg| {
        let name =
            argument.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
        match name.as_deref() {
            Some("PORT" | "TO" | "PORT|FILTER" | "[NAME=]PORT") => {
                argument.add(ArgValueCompleter::new(ports))
            }
            Some("IFACE") => argument.add(ArgValueCompleter::new(interfaces)),
            Some("NETNS") => argument.add(ArgValueCompleter::new(namespaces)),
            Some("FILE" | "PATH") => argument.add(ArgValueCompleter::new(PathCompleter::any())),
            _ => argument,
        }
    };
    command.mut_args(of_argument).mut_subcommands(with_values)
}

/// Candidates for a port: kinds, interfaces and files; after a kind its names; after a comma its options.
fn ports(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = typed.to_str() else { return Vec::new() };
    let prefix = text.split_once(':').map(|(prefix, _)| prefix);
    let kind = Kind::all().find(|kind| prefix == Some(kind.prefix()));
    if let Some((begin, _)) = text.rsplit_once(',') {
        let options = kind.unwrap_or(Kind::Packet).options().iter();
        let candidate = |name, about: &str| {
            CompletionCandidate::new(format!("{begin},{name}=")).help(Some(about.to_owned().into()))
        };
        return matching(text, options.map(|it| candidate(it.name, it.about)));
    }
    match kind {
        Some(kind) if kind.name_form() == "IFACE" => {
            let names = interface_names().into_iter();
            let all =
                names.map(|name| CompletionCandidate::new(format!("{}:{name}", kind.prefix())));
            matching(text, all)
        }
        Some(_) => Vec::new(),
        None => {
            let kinds = Kind::all().map(|kind| {
                CompletionCandidate::new(format!("{}:", kind.prefix()))
                    .help(Some(kind.about().into()))
            });
            let mut all = interfaces(typed);
            all.extend(matching(text, kinds));
            all.extend(PathCompleter::file().complete(typed));
            all
        }
    }
}

fn interfaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = interface_names().into_iter().map(CompletionCandidate::new);
    typed.to_str().map_or_else(Vec::new, |text| matching(text, names))
}

/// The names of the interfaces, in the namespace that was typed before.
fn interface_names() -> Vec<String> {
    let words: Vec<String> = env::args().collect();
    let netns = words.iter().rposition(|word| word == "--netns").and_then(|at| words.get(at + 1));
    let found = link::interfaces(netns.map(String::as_str)).unwrap_or_default();
    found.into_iter().map(|interface| interface.name).collect()
}

fn namespaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = entries.map(|entry| CompletionCandidate::new(entry.file_name()));
    typed.to_str().map_or_else(Vec::new, |text| matching(text, names))
}

/// Returns the candidates that begin with a text.
fn matching(
    text: &str,
    all: impl Iterator<Item = CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    all.filter(|it| it.get_value().to_str().is_some_and(|value| value.starts_with(text))).collect()
}
