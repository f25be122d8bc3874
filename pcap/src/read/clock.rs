//! The clock of an interface in a capture file: what one of its ticks is worth.

use std::fmt;

/// A clock's resolution and offset, as pcapng's `if_tsresol` and `if_tsoffset` give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolution {
    resolution: u8,
    ticks_per_second: u64,
    offset_s: i64,
}

/// The highest bit of `if_tsresol` tells powers of two from powers of ten.
const BINARY: u8 = 0x80;

impl Default for Resolution {
    /// Microseconds since 1970.
    fn default() -> Self {
        Self { resolution: 6, ticks_per_second: 1_000_000, offset_s: 0 }
    }
}

impl Resolution {
    /// A clock of 10^-n seconds a tick, or of 2^-n where the highest bit is set; none where a
    /// second has more ticks than 64 bits count.
    pub(super) fn with_resolution(self, resolution: u8) -> Option<Self> {
        let exponent = u32::from(resolution & !BINARY);
        let base: u64 = if resolution & BINARY == 0 { 10 } else { 2 };
        Some(Self { resolution, ticks_per_second: base.checked_pow(exponent)?, ..self })
    }

    /// The same clock, its zero so many seconds after 1970.
    pub(super) fn with_offset(self, offset_s: i64) -> Self {
        Self { offset_s, ..self }
    }

    /// Nanoseconds since 1970; a time outside what 64 bits hold (1970 to 2554) is the nearest
    /// inside.
    #[inline]
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        const NS: u64 = 1_000_000_000;
        let seconds = ticks / self.ticks_per_second;
        let rest = ticks % self.ticks_per_second;
        let fraction = match self.ticks_per_second {
            1_000_000 => rest * 1000,
            NS => rest,
            ticks_per_second => {
                // Below 10^9 in the end, whatever the resolution.
                (u128::from(rest) * u128::from(NS) / u128::from(ticks_per_second)) as u64
            }
        };
        let seconds = i128::from(seconds) + i128::from(self.offset_s);
        let ns = seconds * i128::from(NS) + i128::from(fraction);
        u64::try_from(ns).unwrap_or(if ns < 0 { 0 } else { u64::MAX })
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = if self.resolution & BINARY == 0 { 10 } else { 2 };
        write!(f, "clock ticks of {base}^-{} s", self.resolution & !BINARY)?;
        if self.offset_s != 0 {
            write!(f, ", {:+} s", self.offset_s)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        for (why, resolution, offset_s, ticks, ns) in [
            ("microseconds", 6, 0, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
            ("nanoseconds", 9, 0, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
            ("whole seconds", 0, 0, 1_700_000_000, 1_700_000_000_000_000_000),
            ("finer than a nanosecond is cut", 12, 0, 1_999, 1),
            ("the finest power of ten", 19, 0, 10_000_000_000, 1),
            ("half a second of a binary clock", 0x80 | 10, 0, 512, 500_000_000),
            ("the finest power of two", 0x80 | 63, 0, 1 << 62, 500_000_000),
            ("an offset moves the zero", 6, 3, 1, 3_000_001_000),
            ("an offset goes both ways", 6, -3, 4_000_000, 1_000_000_000),
            ("before 1970 is 1970", 6, -3, 1, 0),
            ("after 2554 is 2554", 0, 0, u64::MAX, u64::MAX),
        ] {
            let clock = Resolution::default().with_resolution(resolution).unwrap();
            assert_eq!(clock.with_offset(offset_s).nanoseconds(ticks), ns, "{why}");
        }
    }

    #[test]
    fn a_tick_too_fine_to_count_is_refused() {
        assert_eq!(Resolution::default().with_resolution(20), None);
        assert_eq!(Resolution::default().with_resolution(0x80 | 64), None);
    }
}
