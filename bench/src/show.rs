//! Numbers as people read them, in a terminal as on a page.

/// A rate or a ratio, as fine as three digits are.
pub fn short(value: f64) -> String {
    match value {
        ..0.9995 => format!("{value:.3}"),
        ..99.95 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// A share in percent; what is not nothing does not look like it.
pub fn of_share(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        percent if percent < 0.05 => "<0.1 %".into(),
        percent => format!("{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_and_losses_are_not_rounded_to_nothing() {
        for (value, text) in
            [(0.0123, "0.012"), (0.9996, "1.00"), (12.345, "12.35"), (226.1, "226")]
        {
            assert_eq!(short(value), text);
        }
        for (share, text) in [(0.0, "0 %"), (0.0001, "<0.1 %"), (0.2, "20.0 %")] {
            assert_eq!(of_share(share), text);
        }
    }
}
