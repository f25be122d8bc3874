//! Reads the protection of TCP.

use std::time::Duration;

use sluicegate_base::text_error::Fault;
use sluicegate_base::units;

use super::limit;
use super::table::{Value, choice, in_order, not, unknown};
use crate::policy::{Challenge, Handover, TcpProtection};

const KEYS: &[&str] = &["challenge", "above", "below", "verified_for", "state", "handover"];
const CHALLENGES: &[(&str, Challenge)] =
    &[("off", Challenge::Off), ("auto", Challenge::Auto), ("always", Challenge::Always)];

const HANDOVERS: &[(&str, Handover)] =
    &[("off", Handover::Off), ("auto", Handover::Auto), ("on", Handover::On)];

const MIN_VERIFIED: Duration = Duration::from_secs(10);
const MAX_VERIFIED: Duration = Duration::from_secs(86_400);

/// Reads when to challenge, or a table.
pub(super) fn read(value: &Value) -> Result<TcpProtection, Fault> {
    let Some(table) = value.get_ref().as_table() else {
        let challenge = choice(value, "", CHALLENGES).map_err(|_| {
            not(
                value,
                "",
                "\"off\", \"auto\", \"always\" or { challenge = \"auto\", above = \"20kpps\" }",
            )
        })?;
        return Ok(TcpProtection { challenge, ..TcpProtection::default() });
    };
    let mut tcp = TcpProtection { challenge: Challenge::Auto, ..TcpProtection::default() };
    let mut below = None;
    for (key, value) in in_order(table) {
        match key.get_ref().as_ref() {
            "challenge" => tcp.challenge = choice(value, "challenge", CHALLENGES)?,
            "above" => tcp.above = rate(value, "above", "20kpps")?,
            "below" => below = Some((rate(value, "below", "5kpps")?, value)),
            "verified_for" => {
                let right = "a time from 10s to 24h, like \"10m\"";
                let given = value.get_ref().as_str().and_then(|text| units::duration(text).ok());
                let given = given.filter(|it| (MIN_VERIFIED..=MAX_VERIFIED).contains(it));
                tcp.verified_for = given.ok_or_else(|| not(value, "verified_for", right))?;
            }
            "state" => tcp.state = choice(value, "state", &[("off", false), ("on", true)])?,
            "handover" => tcp.handover = choice(value, "handover", HANDOVERS)?,
            _ => return Err(unknown(key, KEYS)),
        }
    }
    tcp.below = match below {
        None => (tcp.above / 4).max(1),
        Some((below, _)) if below <= tcp.above => below,
        Some((_, value)) => {
            let right = format!("a rate up to {}pps, which is `above`", tcp.above);
            return Err(not(value, "below", &right));
        }
    };
    Ok(tcp)
}

/// Reads a rate of packets that is not 0.
pub(super) fn rate(value: &Value, object: &str, example: &str) -> Result<u32, Fault> {
    let rate = limit::rate(value, object, "pps", example)?;
    u32::try_from(rate).map_err(|_| not(value, object, "a rate below 4Gpps"))
}
