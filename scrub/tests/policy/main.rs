//! Policies are read from TOML, and errors name their position.

mod errors;
mod expressions;
mod files;
mod matches;
mod meaning;
mod random;
mod values;

use sluicegate_scrub::policy::{Conditions, Policy, PolicyError};

/// Returns the conditions of one rule with this match.
fn conditions(of: &str) -> Result<Conditions, PolicyError> {
    let text = format!("[[rule]]\nname = 'x'\nmatch = {of}\naction = 'drop'\n");
    Policy::parse(&text).map(|mut policy| policy.rules.remove(0).conditions)
}
