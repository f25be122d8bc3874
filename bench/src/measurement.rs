//! Measurements of a step: of one round, and over all rounds as medians, spreads and ratios; their format.
//!
//! The load of a machine changes more slowly than rounds. So a ratio of two steps is taken within each round,
//! and the median of these ratios is reported: not the ratio of the medians.

use serde::{Deserialize, Serialize};

/// Quantities measured of a step: a number each in one round, a [`Spread`] over all rounds. A quantity
/// that could not be measured is absent, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures<T> {
    /// Millions of packets per second: received, sent or dropped, by suite.
    pub mpps: T,
    /// Packets sent in the same time, in millions per second.
    #[serde(skip_serializing_if = "Option::is_none", default = "absent")]
    pub offered_mpps: Option<T>,
    /// The share of the packets sent that did not arrive, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default = "absent")]
    pub lost: Option<T>,
    /// CPU time of the measured program's threads in ns per packet, spinning included. Softirqs count only if
    /// they interrupted these threads.
    #[serde(skip_serializing_if = "Option::is_none", default = "absent")]
    pub cpu_ns: Option<T>,
}

/// Default of an absent field; serde's own would require `T: Default`.
fn absent<T>() -> Option<T> {
    None
}

impl Figures<Spread> {
    /// Figures over several rounds; none without a round.
    pub fn over(rounds: &[Figures<f64>]) -> Option<Self> {
        let spread =
            |of: fn(&Figures<f64>) -> Option<f64>| Spread::of(rounds.iter().filter_map(of));
        Some(Self {
            mpps: spread(|it| Some(it.mpps))?,
            offered_mpps: spread(|it| it.offered_mpps),
            lost: spread(|it| it.lost),
            cpu_ns: spread(|it| it.cpu_ns),
        })
    }
}

/// The measurement of one step in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Its rate and losses.
    #[serde(flatten)]
    pub figures: Figures<f64>,
    /// The causes.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// Longest round trip of a cache line between the sender's and the receiver's CPU during the turn, in
    /// nanoseconds; none if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart_ns: Option<u64>,
}

/// The CPU time by CPU and by cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The load of each CPU during the step, by all programs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub cpus: Vec<CpuShare>,
    /// The causes of the time, the largest share first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<Cause>,
    /// One sentence of advice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// The reason why the causes are doubtful or missing; `None` if they are not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doubt: Option<String>,
}

/// The load of one CPU during a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShare {
    /// Its number.
    pub cpu: u32,
    /// The share of time that it was not idle, from 0 to 1.
    pub busy: f64,
    /// That time in ns per packet.
    pub ns: f64,
}

/// A group of functions that took time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Its name: "copying", "wakeups".
    pub name: String,
    /// Its share of the time in which the CPUs were not idle, from 0 to 1.
    pub share: f64,
    /// That time in ns per packet.
    pub ns: f64,
    /// The functions that took most of it, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub functions: Vec<String>,
}

/// The median of values, and their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of values; none if there are no values or one is NaN.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        let upper = values.len() / 2;
        let lower = (values.len() - 1) / 2;
        // Half of each, because the sum of two large values may overflow.
        let median = match upper == lower {
            true => values[upper],
            false => values[lower] / 2.0 + values[upper] / 2.0,
        };
        Some(Self { median, min, max })
    }

    /// The spread of values divided by those of a reference, round by round: `values` and `to` are pairs of a
    /// round's number and a value. Rounds that only one of them has, or in which the reference is
    /// zero, are left out.
    pub fn of_ratios(values: &[(u32, f64)], to: &[(u32, f64)]) -> Option<Self> {
        Self::of(values.iter().filter_map(|&(round, value)| {
            let (_, reference) = to.iter().find(|(other, _)| *other == round)?;
            (*reference != 0.0).then(|| value / reference)
        }))
    }

    /// True if the two spreads overlap.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// Formats a rate or a ratio with three digits.
pub fn short(value: f64) -> String {
    match value {
        ..0.9995 => format!("{value:.3}"),
        ..99.95 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a share in percent with this number of decimals; a share above zero never becomes zero.
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_absent_quantity_is_absent_in_json() {
        let figures = Figures { mpps: 1.5, lost: Some(0.0), ..Figures::default() };
        let measurement = Measurement { figures, ..Measurement::default() };
        let text = serde_json::to_string(&measurement).unwrap();
        assert_eq!(text, r#"{"mpps":1.5,"lost":0.0}"#);
        assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), measurement);
    }

    #[test]
    fn a_quantity_is_spread_over_the_rounds_that_have_it() {
        let rounds = [(1.0, None), (3.0, Some(0.5))].map(|(mpps, lost)| Figures {
            mpps,
            lost,
            ..Figures::default()
        });
        let figures = Figures::over(&rounds).unwrap();
        assert_eq!(figures.mpps, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(figures.lost, Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!((figures.cpu_ns, Figures::over(&[])), (None, None));
        let text = serde_json::to_string(&figures).unwrap();
        assert_eq!(serde_json::from_str::<Figures<Spread>>(&text).unwrap(), figures);
    }

    #[test]
    fn the_middle_is_found() {
        let rows: &[(&str, &[f64], f64, f64, f64)] = &[
            ("one value", &[3.0], 3.0, 3.0, 3.0),
            ("an odd number", &[9.0, 1.0, 2.0], 2.0, 1.0, 9.0),
            ("an even number", &[4.0, 1.0, 2.0, 3.0], 2.5, 1.0, 4.0),
        ];
        for &(what, values, median, min, max) in rows {
            let spread = Spread::of(values.iter().copied());
            assert_eq!(spread, Some(Spread { median, min, max }), "{what}");
        }
        assert_eq!(Spread::of([]), None, "nothing has no middle");
        assert_eq!(Spread::of([1.0, f64::NAN]), None, "what is no number is not ordered");
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        // The machine slowed down to a half in the second round; the ratio did not.
        let step = [(1, 4.0), (2, 2.0), (3, 9.0)];
        let reference = [(1, 2.0), (2, 1.0), (4, 1.0)];
        let ratio = Spread::of_ratios(&step, &reference);
        assert_eq!(ratio, Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(Spread::of_ratios(&step, &[(1, 0.0)]), None, "nothing is a multiple of zero");
    }

    #[test]
    fn spreads_that_touch_overlap() {
        let spread = |min, max| Spread { median: min, min, max };
        assert!(spread(1.0, 2.0).overlaps(&spread(2.0, 3.0)));
        assert!(!spread(1.0, 2.0).overlaps(&spread(2.1, 3.0)));
        assert!(!spread(2.1, 3.0).overlaps(&spread(1.0, 2.0)));
    }

    proptest! {
        #[test]
        fn half_of_the_values_lie_on_each_side(values in prop::collection::vec(-1e300..1e300, 1..50)) {
            let spread = Spread::of(values.iter().copied()).unwrap();
            let below = values.iter().filter(|&&value| value < spread.median).count();
            let above = values.iter().filter(|&&value| value > spread.median).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
            prop_assert!(spread.min <= spread.median && spread.median <= spread.max);
        }
    }

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
