//! Numbers for people: three digits and an SI prefix.

/// A rate: "0", "0.5", "999", "1.20k", "14.9M".
pub fn si(value: f64) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut scaled = value;
    for (at, prefix) in PREFIXES.iter().enumerate() {
        // Decimals that make three digits; whole numbers below a thousand need none.
        let decimals = match scaled {
            s if at == 0 && (s.fract() == 0.0 || s >= 9.95) => 0,
            _ if at == 0 => 1,
            s if s < 9.995 => 2,
            s if s < 99.95 => 1,
            _ => 0,
        };
        if scaled < 999.5 || at + 1 == PREFIXES.len() {
            return format!("{scaled:.decimals$}{prefix}");
        }
        scaled /= 1000.0;
    }
    String::new()
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
    fn a_number_has_three_digits_and_a_prefix() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (1.0, "1"),
            (9.94, "9.9"),
            (9.96, "10"),
            (999.0, "999"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1234.0, "1.23k"),
            (9999.0, "10.0k"),
            (99_960.0, "100k"),
            (14_880_952.0, "14.9M"),
            (1e10, "10.0G"),
            (2.5e20, "250000P"),
        ] {
            assert_eq!(si(value), text, "{value}");
        }
    }

    #[test]
    fn causes_without_packets_are_not_named() {
        assert_eq!(
            causes(&[("missed", 0.0), ("dropped", 1500.0), ("errors", 2.0)]),
            "dropped 1.50k, errors 2"
        );
        assert_eq!(causes(&[("missed", 0.0)]), "");
    }
}
