//! Entries and rules that were added: their time left, in JSON and in lists.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use sluicegate_scrub::scrubber::Until;

use crate::units::show_duration;

/// Inserts the time left, if it ends.
pub fn insert_left(entry: &mut Map<String, Value>, until: Until, now: Instant) {
    let left = until.map(|end| end.saturating_duration_since(now).as_secs_f64());
    entry.extend(left.map(|left| ("left_s".to_owned(), left.into())));
}

/// Describes how an entry or a rule was added; empty for those of the policy.
pub fn note(entry: &Value) -> String {
    match (entry["added"] == true, entry["left_s"].as_f64()) {
        (true, Some(left)) => {
            // Whole seconds: a list is no clock.
            format!("added, {} left", show_duration(Duration::from_secs(left.ceil() as u64)))
        }
        (true, None) => "added".into(),
        (false, _) => String::new(),
    }
}
