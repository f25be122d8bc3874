//! `sluice scrub sets`: the entries of a running scrubber's sets.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Subcommand;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sluicegate::error::Result;
use sluicegate_scrub::policy::{SetAction, parse_network};
use sluicegate_scrub::scrubber::EditedPolicy;

use super::changes::Change;
use super::control::{absolute, seconds};
use super::run::whole_seconds;
use super::{ClientArgs, added};
use crate::units::{show_count, show_duration};

/// Entries of a set that `list` shows.
const MAX_LISTED: usize = 100_000;

/// An action on the sets.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, Subcommand)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum SetsAction {
    /// Add networks to a set
    #[command(override_usage = "sluice scrub sets add [OPTIONS] SET NETWORK…")]
    Add {
        /// The set
        #[arg(value_name = "SET")]
        set: String,
        /// The networks
        #[arg(value_name = "NETWORK", required = true, value_parser = parse_network)]
        #[serde(with = "networks")]
        networks: Vec<IpNet>,
        /// Delete them after this time: 10m, 1h30m
        #[arg(long = "for", value_name = "TIME", value_parser = whole_seconds)]
        #[serde(rename = "for_s", default, with = "seconds")]
        time: Option<Duration>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Delete networks from a set, whether they were added or not
    #[command(override_usage = "sluice scrub sets del [OPTIONS] SET NETWORK…")]
    Del {
        /// The set
        #[arg(value_name = "SET")]
        set: String,
        /// The networks
        #[arg(value_name = "NETWORK", required = true, value_parser = parse_network)]
        #[serde(with = "networks")]
        networks: Vec<IpNet>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Add the networks of a file to a set
    Load {
        /// The set
        #[arg(value_name = "SET")]
        set: String,
        /// A network a line, comments from # or ;
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Delete them after this time: 10m, 1h30m
        #[arg(long = "for", value_name = "TIME", value_parser = whole_seconds)]
        #[serde(rename = "for_s", default, with = "seconds")]
        time: Option<Duration>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Replace all networks of a set, the added ones too, by those of a file
    Replace {
        /// The set
        #[arg(value_name = "SET")]
        set: String,
        /// A network a line, comments from # or ;
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// List the sets, or the networks of one
    List {
        /// The set
        #[arg(value_name = "SET")]
        set: Option<String>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
}

/// Networks as texts.
mod networks {
    use ipnet::IpNet;
    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;
    use sluicegate_scrub::policy::parse_network;

    pub fn serialize<S: Serializer>(networks: &[IpNet], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(networks.iter().map(ToString::to_string))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|it| parse_network(it).map_err(D::Error::custom)).collect()
    }
}

impl SetsAction {
    pub fn client(&self) -> &ClientArgs {
        match self {
            Self::Add { client, .. }
            | Self::Del { client, .. }
            | Self::Load { client, .. }
            | Self::Replace { client, .. }
            | Self::List { client, .. } => client,
        }
    }

    /// Makes paths absolute: the scrubber has another working directory.
    pub fn absolute(mut self) -> anyhow::Result<Self> {
        if let Self::Load { file, .. } | Self::Replace { file, .. } = &mut self {
            *file = absolute(file)?;
        }
        Ok(self)
    }

    /// Returns the change that it asks for; none for a list.
    pub fn change(self) -> Option<Change> {
        let until = |time: Option<Duration>| time.map(|time| Instant::now() + time);
        Some(match self {
            Self::Add { set, networks, time, .. } => {
                Change::AddEntries { set, networks, until: until(time) }
            }
            Self::Del { set, networks, .. } => Change::DeleteEntries { set, networks },
            Self::Load { set, file: path, time, .. } => {
                Change::LoadEntries { set, path, until: until(time) }
            }
            Self::Replace { set, file: path, .. } => Change::ReplaceEntries { set, path },
            Self::List { .. } => return None,
        })
    }

    /// Prints the answer.
    pub fn print(&self, answer: &Value, out: &mut impl Write) -> io::Result<()> {
        let networks = |key: &str| {
            let count = answer[key].as_u64().unwrap_or(0);
            format!("{} {}", show_count(count), if count == 1 { "network" } else { "networks" })
        };
        let limit = |time: &Option<Duration>| match time {
            Some(time) => format!(" for {}", show_duration(*time)),
            None => String::new(),
        };
        match self {
            Self::Add { set, time, .. } | Self::Load { set, time, .. } => {
                writeln!(out, "{} added to set {set}{}", networks("added"), limit(time))
            }
            Self::Del { set, .. } => {
                writeln!(out, "{} deleted from set {set}", networks("deleted"))
            }
            Self::Replace { set, .. } => writeln!(out, "set {set} has {}", networks("networks")),
            Self::List { set: None, .. } => print_sets(answer, out),
            Self::List { .. } => print_entries(answer, out),
        }
    }
}

fn action_name(action: SetAction) -> &'static str {
    match action {
        SetAction::None => "none",
        SetAction::Pass => "pass",
        SetAction::Drop => "drop",
    }
}

/// Lists the sets, or the entries of one, as JSON.
pub fn list(edited: &EditedPolicy, set: Option<&str>) -> Result<Value> {
    let Some(name) = set else {
        let sets = edited.sets().iter().map(|it| {
            let (networks, added) = (it.networks.len(), edited.added(&it.name).len());
            json!({"name": it.name, "action": action_name(it.action), "networks": networks + added, "added": added})
        });
        return Ok(json!({"sets": sets.collect::<Vec<_>>()}));
    };
    let set = edited.find_set(name)?;
    let now = Instant::now();
    let added = edited.added(name).map(|(network, until)| {
        let mut entry = Map::new();
        entry.insert("network".into(), network.to_string().into());
        entry.insert("added".into(), true.into());
        added::insert_left(&mut entry, *until, now);
        Value::Object(entry)
    });
    let of_policy =
        set.networks.iter().map(|it| json!({"network": it.to_string(), "added": false}));
    let count = added.len() + of_policy.len();
    let entries: Vec<_> = added.chain(of_policy).take(MAX_LISTED).collect();
    let more = count - entries.len();
    Ok(json!({"set": name, "action": action_name(set.action), "entries": entries, "more": more}))
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[key].as_array().into_iter().flatten()
}

fn print_sets(answer: &Value, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:<20} {:<6} {:>12} {:>12}", "set", "action", "networks", "added")?;
    for it in items(answer, "sets") {
        let [name, action] = ["name", "action"].map(|key| it[key].as_str().unwrap_or_default());
        let [networks, added] =
            ["networks", "added"].map(|key| show_count(it[key].as_u64().unwrap_or(0)));
        writeln!(out, "{name:<20} {action:<6} {networks:>12} {added:>12}")?;
    }
    Ok(())
}

fn print_entries(answer: &Value, out: &mut impl Write) -> io::Result<()> {
    for it in items(answer, "entries") {
        let network = it["network"].as_str().unwrap_or_default();
        writeln!(out, "{}", format!("{network:<43} {}", added::note(it)).trim_end())?;
    }
    match answer["more"].as_u64() {
        Some(more) if more > 0 => writeln!(out, "and {} more", show_count(more)),
        _ => Ok(()),
    }
}
