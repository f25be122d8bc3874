//! Reads a policy in TOML.
//!
//! ```toml
//! tunnels = ["gre", "ipip"]           # by default none: the packet inside decides
//!
//! [protect.web]                       # without any, all addresses are protected by the profile `default`
//! networks = ["198.18.1.0/24", "2001:db8:18:1::/64", "198.18.2.7"]
//! profile = "web"                     # by default `default`
//!
//! [profile.web]
//! amplification = { default = "drop", dns = { bits = "1Gbps" }, ntp = "continue" }
//! fragments = "drop"
//! limits = [ { by = "source", packets = "5kpps" }, { by = "destination", bits = "1Gbps" } ]
//! default = "pass"
//!
//! [set.friends]
//! action = "pass"                     # or "drop"; without, only rules name it
//! networks = ["192.0.2.0/24"]
//! files = ["friends.txt"]             # a network a line, comments from # or ;
//!
//! [[rule]]
//! name = "no-telnet"
//! match = { protocol = "tcp", dport = [23, 2323, "8000-8100"] }
//! action = "drop"
//!
//! [[rule]]
//! name = "dns answers"
//! match = "udp and src port 53 and greater 512"
//! limit = { packets = "10kpps", by = "destination", burst = "200ms" }
//! ```
//!
//! Every error names its position, the object and the remedy.

mod contradiction;
mod expression;
mod fields;
mod limit;
mod names;
mod networks;
mod numbers;
mod profile;
mod protect;
mod rule;
mod set;
mod table;
mod tcp;

use std::collections::HashSet;
use std::path::Path;

use sluicegate_base::regular_file;
use sluicegate_base::text_error::{Fault, Origin, Position};
use toml::Spanned;
use toml::de::DeTable;

use super::{MAX_LIMITS, MAX_RULES, Policy, Profile, Rule, Set};
use crate::packet::Tunnel;
pub use networks::network as parse_network;
pub use set::read_networks;
use table::{choice, each, expect_table, in_order, not, place, unknown};

/// An error in a policy: line, object and remedy.
pub use sluicegate_base::text_error::TextError as PolicyError;

/// Maximum size of a policy; of long lists, files of sets have more.
const MAX_FILE: u64 = 16 << 20;

const KEYS: &[&str] = &["tunnels", "protect", "profile", "set", "rule"];

impl Policy {
    /// Reads a policy in TOML. Paths of set files are relative to the current directory.
    ///
    /// # Errors
    /// The first error in the text, with its line:
    ///
    /// ```
    /// use sluicegate_scrub::policy::Policy;
    ///
    /// let text = "[[rule]]\nname = 'no-telnet'\nmatch = { dport = 70000 }\naction = 'drop'\n";
    /// assert_eq!(
    ///     Policy::parse(text).unwrap_err().to_string(),
    ///     "line 3, column 19: rule no-telnet: dport: 70000 is above the maximum: write a number from 0 to 65535, \
    ///      or a range like \"8-9\"\n 3 | match = { dport = 70000 }\n   |                   ^^^^^"
    /// );
    /// ```
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        parse(&Origin { name: String::new(), text: text.into() }, Path::new(""))
    }

    /// Reads a policy in a file. Paths of set files are relative to its directory.
    ///
    /// # Errors
    /// A file cannot be read; the first error in the text, with its line.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let file = regular_file::open(path);
        let origin = Origin::read(path, file, MAX_FILE, "move networks to files of sets")?;
        parse(&origin, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads one more rule in TOML: its keys, `{ name = … }` on one line, or `[[rule]]` and its keys.
    ///
    /// # Errors
    /// The first error in the text; the policy has a rule of this name, or too many rules or limits with it.
    pub fn parse_rule(&self, text: &str) -> Result<Rule, PolicyError> {
        let (before, after) = match text.trim_start() {
            text if text.starts_with('{') => ("rule = [", "]"),
            text if text.starts_with("[[") => ("", ""),
            _ => ("[[rule]]\n", ""),
        };
        let document = format!("{before}{text}{after}");
        // Errors show the user's text.
        let origin = Origin { name: String::new(), text: text.into() };
        let locate = |mut fault: Fault| {
            if let Position::Text(span) = &mut fault.place {
                let shifted = |at: usize| at.saturating_sub(before.len()).min(text.len());
                *span = shifted(span.start)..shifted(span.end);
            }
            origin.locate(fault)
        };
        let table = parse_table(&document).map_err(locate)?;
        let mut reader = PolicyReader::new(&document);
        let named =
            self.sets.iter().map(|it| Set { networks: Vec::new(), name: it.name.clone(), ..*it });
        reader.policy.sets = named.collect();
        reader.limits = self.limits().count();
        reader.one_rule(&table, self).map_err(locate)
    }
}

fn parse_table(text: &str) -> Result<DeTable<'_>, Fault> {
    let parsed = DeTable::parse(text).map_err(|error| {
        let place = error.span().map_or(Position::Nowhere, Position::Text);
        Fault::new(&place, "TOML", error.message())
    });
    parsed.map(Spanned::into_inner)
}

fn parse(origin: &Origin, base: &Path) -> Result<Policy, PolicyError> {
    let mut reader = PolicyReader::new(&origin.text);
    let files = parse_table(&origin.text).and_then(|table| reader.policy(&table));
    let mut policy = reader.policy;
    for file in files.map_err(|fault| origin.locate(fault))? {
        file.read(&mut policy.sets[file.set], origin, base)?;
    }
    Ok(policy)
}

/// The policy as far as it is read.
struct PolicyReader<'a> {
    policy: Policy,
    text: &'a str,
    /// The end of each line.
    lines: Vec<usize>,
    /// Limits so far.
    limits: usize,
}

impl<'a> PolicyReader<'a> {
    fn new(text: &'a str) -> Self {
        let policy = Policy { profiles: vec![Profile::default()], ..Policy::default() };
        let lines = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { policy, text, lines, limits: 0 }
    }

    /// Reads all but the files of sets, which it returns.
    fn policy(&mut self, table: &DeTable) -> Result<Vec<set::SetFile>, Fault> {
        let mut files = Vec::new();
        let mut entries = in_order(table);
        if let Some((key, _)) = entries.iter().find(|(key, _)| !KEYS.contains(&&**key.get_ref())) {
            return Err(unknown(key, KEYS));
        }
        // Networks name profiles, and rules name sets.
        let order = ["profile", "set", "protect", "rule"];
        entries.sort_by_key(|(key, _)| order.iter().position(|it| it == key.get_ref()));
        for (key, value) in entries {
            let key = key.get_ref().as_ref();
            match key {
                "rule" => {
                    self.rules(value)?;
                    continue;
                }
                "tunnels" => {
                    self.tunnels(value)?;
                    continue;
                }
                _ => {}
            }
            let right = format!("written [{key}.NAME], once for each");
            for (name, value) in in_order(expect_table(value, key, &right)?) {
                let within = format!("{key} {}", name.get_ref());
                let read = names::check(name.get_ref())
                    .map_err(|problem| Fault::new(&Position::Text(name.span()), "", problem))
                    .and_then(|()| match key {
                        "profile" => self.profile(name.get_ref(), value),
                        "set" => self.set(name, value).map(|it| files.extend(it)),
                        _ => self.protect(name.get_ref(), value),
                    });
                read.map_err(|fault| fault.within(&within))?;
            }
        }
        Ok(files)
    }

    fn tunnels(&mut self, value: &table::Value) -> Result<(), Fault> {
        let tunnels = &mut self.policy.tunnels;
        for value in each(value, "tunnels")? {
            match choice(value, "tunnels", &[("gre", Tunnel::Gre), ("ipip", Tunnel::IpIp)])? {
                Tunnel::Gre => tunnels.gre = true,
                Tunnel::IpIp => tunnels.ipip = true,
            }
        }
        Ok(())
    }

    fn rules(&mut self, value: &table::Value) -> Result<(), Fault> {
        const RULES: &str = "written [[rule]], once for each";
        let list = value.get_ref().as_array().ok_or_else(|| not(value, "rule", RULES))?;
        let mut names = HashSet::new();
        for value in list.iter() {
            let number = self.policy.rules.len();
            if number == MAX_RULES {
                let problem =
                    format!("more than {MAX_RULES} rules: join some, or move addresses to sets");
                return Err(Fault::new(&place(value), "rule", problem));
            }
            let table = expect_table(value, "rule", RULES)?;
            let name = rule::name(value, table)
                .map_err(|fault| fault.within(&format!("rule {}", number + 1)))?;
            let within = format!("rule {name}");
            let mut read = || {
                if !names.insert(name.to_owned()) {
                    let at = table.get("name").map_or_else(|| place(value), place);
                    return Err(Fault::new(&at, "name", "another rule has this name: change one"));
                }
                self.rule(name, value, table)
            };
            let rule = read().map_err(|fault| fault.within(&within))?;
            self.policy.rules.push(rule);
        }
        Ok(())
    }

    /// Reads a rule that is to be added to a policy.
    fn one_rule(&mut self, table: &DeTable, policy: &Policy) -> Result<Rule, Fault> {
        if let Some((key, _)) = in_order(table).iter().find(|(key, _)| key.get_ref() != "rule") {
            return Err(unknown(key, &["rule"]));
        }
        if let Some(rules) = table.get("rule") {
            self.rules(rules)?;
        }
        let problem = match (self.policy.rules.pop(), self.policy.rules.len()) {
            (Some(rule), 0) if policy.rules.iter().any(|it| it.name == rule.name) => {
                format!(
                    "the policy has a rule '{}': change the name, or delete that rule",
                    rule.name
                )
            }
            (Some(_), 0) if policy.rules.len() >= MAX_RULES => {
                format!("the policy has {MAX_RULES} rules, the maximum: delete some")
            }
            (Some(rule), 0) => return Ok(Rule { line: None, ..rule }),
            _ => "write one rule at a time".into(),
        };
        Err(Fault::new(&Position::Nowhere, "rule", problem))
    }

    /// Counts limits that `value` gave.
    fn count_limits(&mut self, value: &table::Value, count: usize) -> Result<(), Fault> {
        self.limits += count;
        if self.limits <= MAX_LIMITS {
            return Ok(());
        }
        let problem = format!("more than {MAX_LIMITS} limits in all: remove some");
        Err(Fault::new(&place(value), "", problem))
    }

    /// Returns the line, from 1, of a byte of the text.
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|end| *end < at) + 1
    }
}
