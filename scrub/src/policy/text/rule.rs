//! Reads rules.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use sluicegate_base::text_error::{Fault, Position};
use sluicegate_base::units;
use toml::de::{DeTable, DeValue};

use super::names::{self, DSCP};
use super::table::{Value, choice, expect_text, in_order, integer, not, place, unknown};
use super::{PolicyReader, expression, limit, numbers, tcp};
use crate::packet::protocol;
use crate::policy::{Conditions, LimitKey, Rule, RuleAction, UdpChallenge, UdpQuery};

const KEYS: &[&str] =
    &["name", "match", "action", "limit", "challenge", "above", "cache", "sample", "mark"];
const MATCH: &str = "{ } with fields, or a pcap-filter expression like \"udp and src port 53\"";
/// How long answers may be used.
const CACHE_TIMES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Returns a rule's name.
pub(super) fn name<'a>(rule: &Value, table: &'a DeTable) -> Result<&'a str, Fault> {
    let Some(value) = table.get("name") else {
        return Err(Fault::new(&place(rule), "", "it has no name: its counters need one"));
    };
    let name = expect_text(value, "name", "a text")?;
    names::check(name).map_err(|problem| Fault::new(&place(value), "name", problem))?;
    Ok(name)
}

impl PolicyReader<'_> {
    pub(super) fn rule(
        &mut self,
        name: &str,
        value: &Value,
        table: &DeTable,
    ) -> Result<Rule, Fault> {
        let (mut conditions, mut action, mut limits) = (None, None, None);
        let (mut query, mut above, mut cache) = (None, None, None);
        let (mut sample, mut mark) = (0, None);
        for (key, value) in in_order(table) {
            match key.get_ref().as_ref() {
                "name" => {}
                "match" => conditions = Some(self.conditions(value)?),
                "action" => {
                    let choices = [
                        ("drop", Action::Drop),
                        ("pass", Action::Pass),
                        ("continue", Action::Continue),
                    ];
                    action = Some((choice(value, "action", &choices)?, value));
                }
                "limit" => {
                    let given = limit::read(value, LimitKey::Source)
                        .and_then(|it| self.count_limits(value, it.len()).map(|()| it));
                    limits = Some(given.map_err(|fault| fault.within("limit"))?);
                }
                "challenge" => {
                    let choices = [("a2s", UdpQuery::A2s), ("dns", UdpQuery::Dns)];
                    query = Some((choice(value, "challenge", &choices)?, value));
                }
                "above" => above = Some((tcp::rate(value, "above", "5kpps")?, value)),
                "cache" => cache = Some((cache_time(value)?, value)),
                "sample" => {
                    let one_in = integer(value).and_then(|it| u32::try_from(it).ok());
                    let right = "a number from 1 to 4294967295: 1 packet in N is sampled";
                    sample =
                        one_in.filter(|it| *it > 0).ok_or_else(|| not(value, "sample", right))?;
                }
                "mark" => mark = Some((dscp(value)?, value)),
                _ => return Err(unknown(key, KEYS)),
            }
        }
        let Some(conditions) = conditions else {
            let problem = "it has no match: {} matches all packets";
            return Err(Fault::new(&place(value), "", problem));
        };
        if let (Some((_, value)), None) = (above, query) {
            let problem = "it belongs to a challenge: add that, or leave it out";
            return Err(Fault::new(&place(value), "above", problem));
        }
        if let Some((_, value)) = cache
            && query.is_none_or(|(query, _)| query != UdpQuery::A2s)
        {
            let problem =
                "only answers to A2S are kept: write challenge = \"a2s\", or leave it out";
            return Err(Fault::new(&place(value), "cache", problem));
        }
        let action = match (action, limits, query) {
            (Some((Action::Drop, _)), None, None) => RuleAction::Drop,
            (Some((Action::Pass, _)), None, None) => RuleAction::Pass,
            (Some((Action::Continue, _)), None, None) => RuleAction::Continue,
            (None, Some(limits), None) => RuleAction::Limit(limits),
            (None, None, Some((query, value))) => {
                if !conditions.protocol.is_empty() && !conditions.protocol.contains(&protocol::UDP)
                {
                    let problem = "only UDP has such queries, and the match excludes it: change the match, or leave it \
                        out";
                    return Err(Fault::new(&place(value), "challenge", problem));
                }
                let (above, cache) = (above.map(|(rate, _)| rate), cache.map(|(time, _)| time));
                RuleAction::Challenge(UdpChallenge { query, above, cache })
            }
            (Some((_, value)), Some(_), None) => {
                let problem = "the limit drops what exceeds it: leave one of them out";
                return Err(Fault::new(&place(value), "action", problem));
            }
            (_, _, Some((_, value))) => {
                let problem = "a rule has an action, a limit or a challenge: leave one of them out";
                return Err(Fault::new(&place(value), "challenge", problem));
            }
            (None, None, None) => {
                let problem = "it has no action: write \"drop\", \"pass\" or \"continue\", or a limit or challenge";
                return Err(Fault::new(&place(value), "", problem));
            }
        };
        if let (Some((_, value)), RuleAction::Drop) = (mark, &action) {
            let problem = "dropped packets get no mark: leave it out, or change the action";
            return Err(Fault::new(&place(value), "mark", problem));
        }
        let line = self.line(value.span().start);
        let mark = mark.map(|(mark, _)| mark);
        Ok(Rule { name: name.into(), conditions, action, sample, mark, line: Some(line) })
    }

    fn conditions(&self, value: &Value) -> Result<Conditions, Fault> {
        match value.get_ref() {
            DeValue::Table(table) => self.fields(table),
            DeValue::String(text) => {
                let at = |at| Position::Text(self.inside(value, text, at));
                expression::conditions(text, &at).map_err(|fault| fault.within("match"))
            }
            _ => Err(not(value, "match", MATCH)),
        }
    }

    /// Returns the position in the policy of some bytes of a text in it, or of the whole text if it is written with
    /// escapes.
    fn inside(&self, value: &Value, text: &str, at: Range<usize>) -> Range<usize> {
        let written = self.text.get(value.span()).unwrap_or_default();
        let quotes = written.len() - written.trim_start_matches(['"', '\'', '\r', '\n']).len();
        let begin = (1..=quotes).find(|begin| written[*begin..].starts_with(text));
        match begin {
            Some(begin) => {
                let begin = value.span().start + begin;
                begin + at.start..begin + at.end
            }
            None => value.span(),
        }
    }
}

#[derive(Clone, Copy)]
enum Action {
    Drop,
    Pass,
    Continue,
}

/// Reads how long answers are used.
fn cache_time(value: &Value) -> Result<Duration, Fault> {
    let given = value.get_ref().as_str().and_then(|text| units::duration(text).ok());
    let given = given.filter(|it| CACHE_TIMES.contains(it));
    given.ok_or_else(|| not(value, "cache", "a time from 100ms to 60s, like \"2s\""))
}

/// Reads one DSCP.
fn dscp(value: &Value) -> Result<u8, Fault> {
    let by_name = |name: &str| numbers::named(DSCP, "class", name);
    let ranges = numbers::read(value, "mark", 63, &by_name)?;
    match numbers::values(&ranges).as_slice() {
        [mark] => Ok(*mark),
        _ => Err(not(value, "mark", "one DSCP from 0 to 63, or its name, like \"ef\"")),
    }
}
