//! Reads limits.

use std::time::Duration;

use sluicegate_base::text_error::Fault;
use sluicegate_base::units;

use super::table::{Value, choice, each, expect_table, in_order, integer, not, place, unknown};
use crate::policy::{Limit, LimitKey, MAX_LIMITS_OF_ONE, Rate};

const KEYS: &[&str] = &["packets", "bits", "by", "burst"];
const RIGHT: &str = "a limit is like { packets = \"10kpps\", by = \"source\" }";

/// The cost of the largest frame fits in 64 bits.
const MIN_BITS: u64 = 8000;
const BURST: Duration = Duration::from_millis(100);
const MIN_BURST: Duration = Duration::from_millis(10);
const MAX_BURST: Duration = Duration::from_secs(10);

/// Reads a limit or a list of them, counted by `by` where they do not say it. One with packets and bits is two.
pub(super) fn read(value: &Value, by: LimitKey) -> Result<Vec<Limit>, Fault> {
    let mut limits = Vec::new();
    for value in each(value, "")? {
        limits.extend(read_one(value, by)?);
    }
    if limits.len() > MAX_LIMITS_OF_ONE {
        let problem = format!(
            "{} limits are too many: at most {MAX_LIMITS_OF_ONE}; packets and bits are one each",
            limits.len()
        );
        return Err(Fault::new(&place(value), "", problem));
    }
    Ok(limits)
}

fn read_one(value: &Value, mut by: LimitKey) -> Result<Vec<Limit>, Fault> {
    let (mut rates, mut burst) = (Vec::new(), BURST);
    for (key, value) in in_order(expect_table(value, "", RIGHT)?) {
        match key.get_ref().as_ref() {
            "packets" => rates.push(Rate::Packets(rate(value, "packets", "pps", "10kpps")?)),
            "bits" => {
                let bits = rate(value, "bits", "bps", "100Mbps")?;
                if bits < MIN_BITS {
                    return Err(not(value, "bits", "a rate of at least \"8kbps\""));
                }
                rates.push(Rate::Bits(bits));
            }
            "by" => {
                let choices = [
                    ("source", LimitKey::Source),
                    ("source-network", LimitKey::SourceNetwork),
                    ("destination", LimitKey::Destination),
                    ("all", LimitKey::All),
                ];
                by = choice(value, "by", &choices)?;
            }
            "burst" => {
                let right = "a time from 10ms to 10s, like \"200ms\"";
                let given = value.get_ref().as_str().and_then(|text| units::duration(text).ok());
                let given = given.filter(|it| (MIN_BURST..=MAX_BURST).contains(it));
                burst = given.ok_or_else(|| not(value, "burst", right))?;
            }
            _ => return Err(unknown(key, KEYS)),
        }
    }
    if rates.is_empty() {
        return Err(Fault::new(&place(value), "", format!("it has no rate: {RIGHT}")));
    }
    Ok(rates.into_iter().map(|rate| Limit { by, rate, burst }).collect())
}

/// Reads a rate that is not 0: a number, or one with the unit.
pub(super) fn rate(value: &Value, object: &str, unit: &str, example: &str) -> Result<u64, Fault> {
    let rate = match value.get_ref().as_str() {
        Some(text) => text.trim().strip_suffix(unit).and_then(|it| units::count(it).ok()),
        None => integer(value),
    };
    let right = format!("a whole rate above 0, like \"{example}\"");
    rate.filter(|it| *it > 0).ok_or_else(|| not(value, object, &right))
}
