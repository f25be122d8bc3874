//! Numbers in what programs have said.

use serde_json::Value;

use crate::process::Said;

/// The number at a path in the last JSON object on standard output: `["ledger", "out"]`.
pub fn number(said: &Said, path: &[&str]) -> Option<f64> {
    let line = said.out.lines().rev().find(|line| line.starts_with('{'))?;
    let value: Value = serde_json::from_str(line).ok()?;
    path.iter().try_fold(&value, |value, key| value.get(key))?.as_f64()
}

/// Packets that `sluice count` has counted.
pub fn of_sluice(said: &Said) -> Option<u64> {
    number(said, &["ledger", "out"]).map(|n| n as u64)
}

/// Packets that `sluice generate` says it has handed on.
pub fn of_sender(said: &Said) -> Option<u64> {
    number(said, &["attempted"]).map(|n| n as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_object_is_the_result() {
        let out = "{\"time_s\":1,\"lost\":0}\n{\"ledger\":{\"in\":9,\"out\":7},\"attempted\":8}\n";
        let said = Said { out: out.into(), err: String::new() };
        assert_eq!(of_sluice(&said), Some(7));
        assert_eq!(of_sender(&said), Some(8));
        assert_eq!(number(&said, &["ledger", "losses"]), None);
        assert_eq!(of_sluice(&Said::default()), None, "who said nothing");
    }
}
