//! What stands in the columns.

use crate::units::show_si;

/// A rate: "0", "0.5", "999", "1.20k", "14.9M".
pub fn si(value: f64) -> String {
    show_si(value).to_string()
}

/// A rate that may be unknown.
pub fn si_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), si)
}

/// A share from 0 to 1: "34%".
pub fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// The causes that are not zero: "missed 3.0k, errors 2".
pub fn causes(drops: &[(&'static str, f64)]) -> String {
    let causes = drops.iter().filter(|(_, rate)| *rate > 0.0);
    let causes: Vec<String> =
        causes.map(|(cause, rate)| format!("{cause} {}", si(*rate))).collect();
    causes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_without_packets_are_not_named() {
        assert_eq!(
            causes(&[("missed", 0.0), ("dropped", 1500.0), ("errors", 2.0)]),
            "dropped 1.50k, errors 2"
        );
        assert_eq!(causes(&[("missed", 0.0)]), "");
    }
}
