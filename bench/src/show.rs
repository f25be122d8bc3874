//! Numbers as people read them, in a terminal as on a page.

/// A rate or a ratio, as fine as three digits are.
pub fn short(value: f64) -> String {
    match value {
        ..0.9995 => format!("{value:.3}"),
        ..99.95 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// A share in percent with this number of decimals; a share above zero is never shown as zero.
pub fn of_share(share: f64, digits: usize) -> String {
    let least = 0.1_f64.powi(i32::try_from(digits).unwrap_or(i32::MAX));
    match share * 100.0 {
        0.0 => "0 %".into(),
        percent if percent < least / 2.0 => format!("<{least:.digits$} %"),
        percent => format!("{percent:.digits$} %"),
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
        for (share, digits, text) in [
            (0.0, 1, "0 %"),
            (0.0001, 1, "<0.1 %"),
            (0.2, 1, "20.0 %"),
            (1e-7, 3, "<0.001 %"),
            (0.001, 3, "0.100 %"),
        ] {
            assert_eq!(of_share(share, digits), text);
        }
    }
}
