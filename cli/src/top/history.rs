//! The recent rates of interfaces, drawn as a line of blocks.

use std::collections::{HashMap, VecDeque};

use sluicegate::link::Rates;

/// Intervals kept, which is the width of the longest line.
pub const INTERVALS: usize = 60;
/// Blocks of growing height.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The recent bits per second of interfaces: received and sent.
#[derive(Clone, Debug, Default)]
pub struct History(HashMap<u32, VecDeque<[f64; 2]>>);

impl History {
    /// Adds an interval's rates, and forgets interfaces that were removed.
    pub fn add(&mut self, rates: &Rates) {
        self.0.retain(|index, _| rates.interfaces.iter().any(|it| it.index == *index));
        for interface in &rates.interfaces {
            let past = self.0.entry(interface.index).or_default();
            if past.len() == INTERVALS {
                past.pop_front();
            }
            past.push_back([interface.rx.bits_l2, interface.tx.bits_l2]);
        }
    }

    /// Draws an interface's rates received (0) or sent (1), the last one at the right. Both have the same scale.
    pub fn line(&self, index: u32, way: usize, width: usize) -> String {
        let Some(past) = self.0.get(&index) else { return String::new() };
        let shown = || past.iter().skip(past.len().saturating_sub(width));
        let highest = shown().flatten().copied().fold(0.0, f64::max);
        let line: String = shown().map(|rates| block(rates[way], highest)).collect();
        format!("{line:>width$}")
    }
}

/// Returns the block of a rate, of which `highest` is the highest one shown.
pub fn block(rate: f64, highest: f64) -> char {
    match rate > 0.0 {
        true => BLOCKS[((rate / highest * 8.0).ceil() as usize).clamp(1, 8)],
        false => BLOCKS[0],
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::link::{DirectionRates, InterfaceRates};

    use super::*;

    fn rates(rx: f64, tx: f64) -> Rates {
        let way = |bits_l2| DirectionRates { bits_l2, ..DirectionRates::default() };
        let interface = InterfaceRates { index: 7, rx: way(rx), tx: way(tx), ..Default::default() };
        Rates { interfaces: vec![interface], ..Rates::default() }
    }

    #[test]
    fn blocks_grow_with_the_rate_and_both_directions_have_one_scale() {
        let mut history = History::default();
        for (rx, tx) in [(0.0, 1.0), (100.0, 200.0), (800.0, 400.0)] {
            history.add(&rates(rx, tx));
        }
        assert_eq!(history.line(7, 0, 4), "  ▁█");
        assert_eq!(history.line(7, 1, 4), " ▁▂▄");
        assert_eq!(history.line(7, 1, 2), "▂▄", "the last ones");
        for _ in 0..2 * INTERVALS {
            history.add(&rates(1.0, 0.0));
        }
        assert_eq!(history.line(7, 0, INTERVALS), "█".repeat(INTERVALS), "higher rates are past");
        history.add(&Rates::default());
        assert_eq!(history.line(7, 0, 4), "", "removed");
    }
}
