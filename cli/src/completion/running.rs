//! Completion of running commands' names and of their ports, by the commands' control sockets.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use serde_json::Value;
use sluicegate::control::{Client, socket_path};
use sluicegate::error::{ErrorKind, Result};

use super::values::{after, matching, names_in, typed_value};

/// Commands that `monitor:` ports watch.
const WATCHED: [&str; 2] = ["switch", "forward"];
/// Time to wait for each answer of a command: one that hangs or is suspended must not hold up the shell.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// Completes the names of running switches.
pub fn switches(typed: &OsStr) -> Vec<CompletionCandidate> {
    matching(typed, running("switch").into_iter().map(CompletionCandidate::new))
}

/// Completes the ports of the switch that `--name` or `--control` has selected.
pub fn ports_of_switch(typed: &OsStr) -> Vec<CompletionCandidate> {
    let name = typed_value("--name").unwrap_or_else(|| "switch".into());
    let socket = typed_value("--control").map(PathBuf::from);
    let socket = socket.or_else(|| socket_path("switch", &name).ok());
    matching(typed, socket.into_iter().flat_map(|it| ports(&it)).map(CompletionCandidate::new))
}

/// Completes `[NAME/]PORT`: the commands that run, and the ports of one; without a name those of `switch`.
pub fn watched_ports(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = typed.to_str() else { return Vec::new() };
    let ports_of = |command: &str, name: &str| {
        let ports = socket_path(command, name).map(|socket| ports(&socket)).unwrap_or_default();
        ports.into_iter().map(CompletionCandidate::new)
    };
    match text.split_once('/') {
        // Only the named command is asked: each that hangs costs the timeout.
        Some((name, _)) => {
            let all = WATCHED.into_iter().flat_map(|command| ports_of(command, name));
            after(&format!("{name}/"), typed, |rest| matching(rest, all))
        }
        None => {
            let names = WATCHED.into_iter().flat_map(running).map(|name| format!("{name}/"));
            let names = names.map(CompletionCandidate::new);
            matching(typed, names.chain(ports_of("switch", "switch")))
        }
    }
}

/// Returns the names of a command's running instances.
fn running(command: &str) -> Vec<String> {
    let any = socket_path(command, "any").ok();
    let folder = any.as_deref().and_then(Path::parent).and_then(Path::parent);
    let names = folder.map(names_in).unwrap_or_default().into_iter();
    // A shell completes `sudo sluice` without root's rights, so a command that refuses the user is listed too.
    let listens = |name: &String| match socket_path(command, name) {
        Ok(socket) => connected(&socket).err().is_none_or(|it| it.kind() != ErrorKind::Usage),
        Err(_) => false,
    };
    names.filter_map(|name| name.into_string().ok()).filter(listens).collect()
}

fn connected(socket: &Path) -> Result<Client> {
    Client::connect_timeout(socket, ANSWER_TIMEOUT)
}

/// Returns the names of a running command's ports; none if it does not answer in time.
fn ports(socket: &Path) -> Vec<String> {
    let answer = connected(socket).and_then(|mut client| client.ask(r#"{"do":"show"}"#)).ok();
    let shown = answer.and_then(|(line, _)| serde_json::from_str::<Value>(&line).ok());
    let ports = shown.as_ref().and_then(|it| it["ports"].as_array()).into_iter().flatten();
    ports.filter_map(|port| port["name"].as_str().map(str::to_owned)).collect()
}
