//! A policy with changes made while it runs: entries of sets, and rules, some until a time.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use sluicegate::error::{Error, Result};

use crate::policy::{MAX_SETS, Policy, Rule, Set, SetAction};

/// The set of [`EditedPolicy::set_session`].
pub const SESSION: &str = "session";

/// The end of what was added; none: it stays until it is deleted.
pub type Until = Option<Instant>;

/// A policy with changes. What was added stays when [`replace`](Self::replace) changes the policy below.
#[derive(Clone, Debug, Default)]
pub struct EditedPolicy {
    /// The policy, without what was deleted.
    base: Policy,
    /// Added entries by set.
    entries: BTreeMap<String, BTreeMap<IpNet, Until>>,
    rules: Vec<AddedRule>,
    /// The address that passes until the policy is confirmed.
    session: Option<IpAddr>,
}

/// A rule that was added.
#[derive(Clone, Debug)]
pub struct AddedRule {
    /// The rule, as read for the present policy.
    pub rule: Rule,
    /// Its text: conditions name sets by their indexes, which another policy changes.
    text: String,
    /// It comes before the policy's rules, not after them.
    pub first: bool,
    /// Its end.
    pub until: Until,
}

/// Added entries and rules that did not fit another policy.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    entries: BTreeMap<String, BTreeMap<IpNet, Until>>,
    /// Rules, and why they do not fit.
    rules: Vec<(AddedRule, String)>,
}

impl Removed {
    /// Adds what a later policy removed.
    pub fn extend(&mut self, later: Self) {
        for (set, mut entries) in later.entries {
            self.entries.entry(set).or_default().append(&mut entries);
        }
        self.rules.extend(later.rules);
    }

    /// Describes the entries of each set, and each rule.
    pub fn texts(&self) -> Vec<String> {
        let entries = self.entries.iter().filter(|(_, entries)| !entries.is_empty());
        let entries = entries.map(|(name, entries)| {
            let count = match entries.len() {
                1 => "1 added network".into(),
                count => format!("{count} added networks"),
            };
            format!("{count} of set {name}, which the policy lacks")
        });
        let rules = self.rules.iter();
        let rules = rules.map(|(it, why)| format!("the added rule {}: {why}", it.rule.name));
        entries.chain(rules).collect()
    }
}

impl EditedPolicy {
    /// Returns a policy without changes.
    pub fn new(base: Policy) -> Self {
        Self { base, ..Self::default() }
    }

    /// Returns the policy with its changes.
    pub fn policy(&self) -> Policy {
        let mut policy = self.base.clone();
        for set in &mut policy.sets {
            set.networks.extend(self.entries.get(&set.name).into_iter().flat_map(BTreeMap::keys));
        }
        if let Some(address) = self.session.filter(|_| policy.sets.len() < MAX_SETS) {
            let (name, networks) = (SESSION.into(), vec![address.into()]);
            policy.sets.push(Set { name, action: SetAction::Pass, networks });
        }
        policy.rules = self.rules().map(|(rule, _)| rule.clone()).collect();
        policy
    }

    /// Returns the rules in their order, and how each was added, if it was.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, Option<&AddedRule>)> {
        let added = |first| self.rules.iter().filter(move |it| it.first == first);
        let added = |first| added(first).map(|it| (&it.rule, Some(it)));
        let base = self.base.rules.iter().map(|it| (it, None));
        added(true).chain(base).chain(added(false))
    }

    /// Returns the sets of the policy.
    pub fn sets(&self) -> &[Set] {
        &self.base.sets
    }

    /// Returns a set of the policy.
    ///
    /// # Errors
    /// The policy has no such set.
    pub fn find_set(&self, name: &str) -> Result<&Set> {
        self.set(name).map(|index| &self.base.sets[index])
    }

    /// Returns a rule.
    ///
    /// # Errors
    /// There is no such rule.
    pub fn find_rule(&self, name: &str) -> Result<&Rule> {
        let found = self.rules().map(|it| it.0).find(|it| it.name == name);
        found.ok_or_else(|| {
            Error::Usage(format!("no rule '{name}'; list the rules: sluice scrub rules list"))
        })
    }

    /// Returns the added entries of a set.
    pub fn added(&self, set: &str) -> impl ExactSizeIterator<Item = (&IpNet, &Until)> {
        static NONE: BTreeMap<IpNet, Until> = BTreeMap::new();
        self.entries.get(set).unwrap_or(&NONE).iter()
    }

    /// Replaces the policy below. Returns what was added and does not fit the new one, which is removed.
    pub fn replace(&mut self, base: Policy) -> Removed {
        self.base = base;
        let has_set = |name: &String| self.base.sets.iter().any(|it| it.name == *name);
        let entries = std::mem::take(&mut self.entries);
        let (fitting, others) = entries.into_iter().partition(|(name, _)| has_set(name));
        self.entries = fitting;
        let mut removed = Removed { entries: others, rules: Vec::new() };
        for added in std::mem::take(&mut self.rules) {
            removed.rules.extend(self.fit_rule(added));
        }
        removed
    }

    /// Returns to an earlier policy, and adds again what later ones removed. Returns what does not fit it.
    pub fn return_to(&mut self, earlier: &Self, removed: &Removed, now: Instant) -> Removed {
        let mut unfit = self.replace(earlier.base.clone());
        for (set, entries) in &removed.entries {
            let entries = entries.iter().filter(|(_, until)| stays(until, now));
            let mut entries: BTreeMap<_, _> = entries.map(|(it, until)| (*it, *until)).collect();
            let present = match self.set(set) {
                Ok(_) => self.entries.entry(set.clone()).or_default(),
                Err(_) => unfit.entries.entry(set.clone()).or_default(),
            };
            // The present entries replace removed ones, because users added them later.
            entries.append(present);
            *present = entries;
        }
        for (added, _) in removed.rules.iter().filter(|it| stays(&it.0.until, now)) {
            unfit.rules.extend(self.fit_rule(added.clone()));
        }
        // Of rules, the first that matches acts: they have their earlier order.
        let index =
            |it: &AddedRule| earlier.rules.iter().position(|old| old.rule.name == it.rule.name);
        self.rules.sort_by_key(|it| match index(it) {
            None if it.first => (0, 0),
            Some(index) => (1, index),
            None => (2, 0),
        });
        unfit
    }

    /// Adds a rule, as read for the present policy. Returns one that does not fit it, and why.
    fn fit_rule(&mut self, added: AddedRule) -> Option<(AddedRule, String)> {
        match self.without_entries().parse_rule(&added.text) {
            Ok(rule) => self.rules.push(AddedRule { rule, ..added }),
            Err(error) => return Some((added, error.to_string())),
        }
        None
    }

    /// Adds entries to a set, or changes their end.
    ///
    /// # Errors
    /// The policy has no such set.
    pub fn add(&mut self, set: &str, networks: &[IpNet], until: Until) -> Result<()> {
        self.set(set)?;
        let entries = self.entries.entry(set.into()).or_default();
        entries.extend(networks.iter().map(|it| (*it, until)));
        Ok(())
    }

    /// Deletes entries of a set, whether they were added or not.
    ///
    /// # Errors
    /// The policy has no such set, or the set not all of the entries; then nothing is deleted.
    pub fn delete(&mut self, set: &str, networks: &[IpNet]) -> Result<()> {
        let index = self.set(set)?;
        let mut missing: HashSet<&IpNet> = networks.iter().collect();
        let base = &self.base.sets[index].networks;
        base.iter().chain(self.added(set).map(|it| it.0)).for_each(|it| {
            missing.remove(it);
        });
        if let Some(network) = networks.iter().find(|it| missing.contains(it)) {
            return Err(Error::Usage(format!(
                "set {set} has no entry {network}; list its entries: sluice scrub sets list {set}"
            )));
        }
        let deleted: HashSet<&IpNet> = networks.iter().collect();
        self.base.sets[index].networks.retain(|it| !deleted.contains(it));
        if let Some(entries) = self.entries.get_mut(set) {
            entries.retain(|it, _| !deleted.contains(it));
        }
        Ok(())
    }

    /// Replaces all entries of a set.
    ///
    /// # Errors
    /// The policy has no such set.
    pub fn replace_entries(&mut self, set: &str, networks: Vec<IpNet>) -> Result<()> {
        let index = self.set(set)?;
        self.entries.remove(set);
        self.base.sets[index].networks = networks;
        Ok(())
    }

    /// Adds a rule in TOML, before all others or after them.
    ///
    /// # Errors
    /// The first error in the text, or another rule has its name.
    pub fn add_rule(&mut self, text: &str, first: bool, until: Until) -> Result<String> {
        let rule = self
            .without_entries()
            .parse_rule(text)
            .map_err(|error| Error::Usage(error.to_string()))?;
        let name = rule.name.clone();
        let added = AddedRule { rule, text: text.into(), first, until };
        let index = if first { 0 } else { self.rules.len() };
        self.rules.insert(index, added);
        Ok(name)
    }

    /// Deletes a rule, whether it was added or not.
    ///
    /// # Errors
    /// There is no such rule.
    pub fn delete_rule(&mut self, name: &str) -> Result<()> {
        self.find_rule(name)?;
        self.base.rules.retain(|it| it.name != name);
        self.rules.retain(|it| it.rule.name != name);
        Ok(())
    }

    /// Sets the address that passes until the policy is confirmed, as a set of its own.
    pub fn set_session(&mut self, address: Option<IpAddr>) {
        self.session = address;
    }

    /// Returns the address that passes until the policy is confirmed.
    pub fn session(&self) -> Option<IpAddr> {
        self.session
    }

    /// Returns the first end of what was added.
    pub fn next_end(&self) -> Option<Instant> {
        let entries = self.entries.values().flat_map(BTreeMap::values);
        entries.chain(self.rules.iter().map(|it| &it.until)).flatten().min().copied()
    }

    /// Deletes what has ended.
    pub fn expire(&mut self, now: Instant) {
        for entries in self.entries.values_mut() {
            entries.retain(|_, until| stays(until, now));
        }
        self.rules.retain(|it| stays(&it.until, now));
    }

    /// Returns the index of a set.
    fn set(&self, name: &str) -> Result<usize> {
        let index = self.base.sets.iter().position(|it| it.name == name);
        index.ok_or_else(|| {
            let known: Vec<_> = self.base.sets.iter().map(|it| it.name.as_str()).collect();
            let known = match known.as_slice() {
                [] => "the policy has none".into(),
                known => format!("available: {}", known.join(", ")),
            };
            Error::Usage(format!("no set '{name}'; {known}"))
        })
    }

    /// Returns all but the entries of sets: what the text of a rule refers to.
    fn without_entries(&self) -> Policy {
        let named =
            |it: &Set| Set { name: it.name.clone(), action: it.action, networks: Vec::new() };
        Policy {
            networks: Vec::new(),
            profiles: self.base.profiles.clone(),
            sets: self.base.sets.iter().map(named).collect(),
            rules: self.rules().map(|it| it.0.clone()).collect(),
            tunnels: self.base.tunnels,
        }
    }
}

/// Returns false for what has ended.
fn stays(until: &Until, now: Instant) -> bool {
    until.is_none_or(|end| end > now)
}
