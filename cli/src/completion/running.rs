//! Completion of running commands' names and of their ports, by the commands' control sockets.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap_complete::engine::CompletionCandidate;
use serde_json::Value;
use sluicegate::control::{Client, socket_path};
use sluicegate::error::ErrorKind;

use super::values::{after, matching, names_in, typed_value};

/// Completes the names of running switches.
pub fn switches(typed: &OsStr) -> Vec<CompletionCandidate> {
    matching(typed, running("switch").into_iter().map(|(name, _)| CompletionCandidate::new(name)))
}

/// Completes the ports of the switch that `--name` or `--control` has selected.
pub fn ports_of_switch(typed: &OsStr) -> Vec<CompletionCandidate> {
    let name = typed_value("--name").unwrap_or_else(|| "switch".into());
    let socket = typed_value("--control").map(PathBuf::from);
    let client = match socket.or_else(|| socket_path("switch", &name).ok()) {
        Some(path) => Client::connect(&path).ok(),
        None => None,
    };
    matching(typed, client.into_iter().flat_map(ports).map(CompletionCandidate::new))
}

/// Completes `[NAME/]PORT`: the commands that run, and the ports of one; without a name those of `switch`.
pub fn watched_ports(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = Vec::new();
    for (name, client) in ["switch", "forward"].into_iter().flat_map(running) {
        let prefix = format!("{name}/");
        let is_typed = typed.to_str().is_some_and(|text| text.starts_with(&prefix));
        all.extend(matching(typed, (!is_typed).then(|| CompletionCandidate::new(&prefix))));
        if is_typed || name == "switch" {
            let ports: Vec<String> = client.map(ports).unwrap_or_default();
            let candidates = || ports.iter().map(CompletionCandidate::new);
            all.extend(after(&prefix, typed, |rest| matching(rest, candidates())));
            all.extend(matching(typed, (name == "switch").then(candidates).into_iter().flatten()));
        }
    }
    all
}

/// Returns the names of a command's running instances, and connections to those that this user may ask.
fn running(command: &str) -> Vec<(String, Option<Client>)> {
    let any = socket_path(command, "any").ok();
    let folder = any.as_deref().and_then(Path::parent).and_then(Path::parent);
    let names = folder.map(names_in).unwrap_or_default().into_iter();
    let connected = |name: String| {
        match Client::connect(&socket_path(command, &name).ok()?) {
            Ok(client) => Some((name, Some(client))),
            // A shell completes `sudo sluice` without root's rights.
            Err(error) if error.kind() == ErrorKind::Privilege => Some((name, None)),
            Err(_) => None,
        }
    };
    names.filter_map(|name| name.into_string().ok()).filter_map(connected).collect()
}

/// Returns the names of a running command's ports.
fn ports(mut client: Client) -> Vec<String> {
    let answer = client.ask(r#"{"do":"show"}"#).ok();
    let shown = answer.and_then(|(line, _)| serde_json::from_str::<Value>(&line).ok());
    let ports = shown.as_ref().and_then(|it| it["ports"].as_array()).into_iter().flatten();
    ports.filter_map(|port| port["name"].as_str().map(str::to_owned)).collect()
}
