//! `sluice scrub rules`: the rules of a running scrubber.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sluicegate_scrub::policy::{Rule, RuleAction};
use sluicegate_scrub::scrubber::EditedPolicy;

use super::changes::Change;
use super::control::seconds;
use super::run::whole_seconds;
use super::{ClientArgs, added};
use crate::units::show_duration;

const ADD_EXAMPLES: &str = "\
Examples:
  sluice scrub rules add no-ssh --match 'tcp dst port 22' --action drop
  sluice scrub rules add '{ name = \"dns\", match = { sport = 53 }, limit = { packets = \"1kpps\" } }' --for 10m";

/// An action on the rules.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, Subcommand)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum RulesAction {
    /// Add a rule, after the others
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// The rule in TOML; with --match, only its name
        #[arg(value_name = "RULE")]
        rule: String,
        /// The packets, as a pcap-filter expression
        #[arg(long = "match", value_name = "EXPRESSION", requires = "does")]
        #[serde(skip)]
        matches: Option<String>,
        /// drop, pass or continue
        #[arg(long = "action", value_name = "ACTION", requires = "matches",
            value_parser = ["drop", "pass", "continue"])]
        #[serde(skip)]
        does: Option<String>,
        /// Add it before the others
        #[arg(long)]
        #[serde(default)]
        first: bool,
        /// Delete it after this time: 10m, 1h30m
        #[arg(long = "for", value_name = "TIME", value_parser = whole_seconds)]
        #[serde(rename = "for_s", default, with = "seconds")]
        time: Option<Duration>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Delete a rule, whether it was added or not
    Del {
        /// Its name
        #[arg(value_name = "RULE")]
        rule: String,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// List the rules, in their order
    List {
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
}

impl RulesAction {
    pub fn client(&self) -> &ClientArgs {
        match self {
            Self::Add { client, .. } | Self::Del { client, .. } | Self::List { client, .. } => {
                client
            }
        }
    }

    /// Returns the request, in which the rule is in TOML.
    pub fn in_toml(mut self) -> Self {
        if let Self::Add { rule, matches: Some(matches), does: Some(does), .. } = &mut self {
            // Strings of JSON are strings of TOML.
            let [name, matches, does] = [&*rule, &*matches, &*does].map(|it| json!(it));
            *rule = format!("{{ name = {name}, match = {matches}, action = {does} }}");
        }
        self
    }

    /// Returns the change that it asks for; none for a list.
    pub fn change(self) -> Option<Change> {
        match self {
            Self::Add { rule: text, first, time, .. } => {
                Some(Change::AddRule { text, first, until: time.map(|it| Instant::now() + it) })
            }
            Self::Del { rule: name, .. } => Some(Change::DeleteRule { name }),
            Self::List { .. } => None,
        }
    }

    /// Prints the answer.
    pub fn print(&self, answer: &Value, out: &mut impl Write) -> io::Result<()> {
        let name = answer["rule"].as_str().unwrap_or_default();
        match self {
            Self::Add { time: Some(time), .. } => {
                writeln!(out, "rule {name} added for {}", show_duration(*time))
            }
            Self::Add { .. } => writeln!(out, "rule {name} added"),
            Self::Del { .. } => writeln!(out, "rule {name} deleted"),
            Self::List { .. } => print_rules(answer, out),
        }
    }
}

fn action_name(rule: &Rule) -> &'static str {
    match rule.action {
        RuleAction::Drop => "drop",
        RuleAction::Pass => "pass",
        RuleAction::Limit(_) => "limit",
        RuleAction::Challenge(_) => "challenge",
        RuleAction::Continue => "continue",
    }
}

/// Lists the rules, as JSON.
pub fn list(edited: &EditedPolicy) -> Value {
    let now = Instant::now();
    let rules = edited.rules().map(|(rule, added)| {
        let mut entry = Map::new();
        entry.insert("name".into(), rule.name.as_str().into());
        entry.insert("action".into(), action_name(rule).into());
        entry.insert("added".into(), added.is_some().into());
        added::insert_left(&mut entry, added.and_then(|it| it.until), now);
        Value::Object(entry)
    });
    json!({"rules": rules.collect::<Vec<_>>()})
}

fn print_rules(answer: &Value, out: &mut impl Write) -> io::Result<()> {
    for it in answer["rules"].as_array().into_iter().flatten() {
        let [name, action] = ["name", "action"].map(|key| it[key].as_str().unwrap_or_default());
        let note = added::note(it);
        writeln!(out, "{}", format!("{name:<32} {action:<9} {note}").trim_end())?;
    }
    Ok(())
}
