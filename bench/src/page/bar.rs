//! A rate as a bar, and its spread across the end of it.

use std::fmt::{self, Display};

use crate::statistics::Spread;

/// A bar, as shapes of SVG from the origin to the right. Its colours are in colours.css.
pub struct Bar<'a> {
    /// Whose step it is: "sluice", "linux", or a peer's name.
    pub by: &'a str,
    /// The rate.
    pub mpps: Spread,
    /// The rate of the longest bar there can be,
    pub most: f64,
    /// and so many units long that is.
    pub across: f64,
    /// Units from its top to its bottom.
    pub height: f64,
}

impl Display for Bar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.by {
            "sluice" => "sluice",
            "linux" => "linux",
            _ => "peer",
        };
        let at = |value: f64| value / self.most * self.across;
        let Spread { median, min, max } = self.mpps;
        // What is next to nothing is seen all the same.
        let (length, height) = (at(median).max(2.0), self.height);
        let (min, max) = (at(min), at(max));
        let (top, middle, bottom) = (height / 4.0, height / 2.0, height * 0.75);
        write!(
            f,
            "<rect class=\"{class}\" width=\"{length:.1}\" height=\"{height}\"/>\
             <path class=\"spread\" d=\"M{min:.1} {middle}H{max:.1}\
             M{min:.1} {top}V{bottom}M{max:.1} {top}V{bottom}\"/>"
        )
    }
}
