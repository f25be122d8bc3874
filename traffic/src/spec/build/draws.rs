//! Which bits of the random numbers are whose.

use crate::plan::{Draw, Per, Words};

/// Gives each that is random bits of its own, of as few numbers as there may be.
#[derive(Debug, Default)]
pub(super) struct Draws {
    /// The bits of each of the packet's numbers that are given away.
    packet: Vec<u8>,
    /// And of the flow's.
    flow: Vec<u8>,
}

impl Draws {
    /// Bits for a number below `count`: as many as a plan's rule for such takes.
    pub(super) fn draw(&mut self, per: Per, count: u64) -> Result<Draw, String> {
        let bits = match count {
            _ if count.is_power_of_two() => count.trailing_zeros() as u8,
            0..=0x1_0000_0000 => 32,
            _ => 64,
        };
        let used = match per {
            Per::Packet => &mut self.packet,
            Per::Flow => &mut self.flow,
        };
        let word = used.iter().position(|used| used + bits <= 64).unwrap_or(used.len());
        if word == usize::from(u8::MAX) {
            return Err("there is too much at random in it".into());
        }
        if word == used.len() {
            used.push(0);
        }
        let shift = used[word];
        used[word] += bits;
        Ok(Draw { word: word as u8, shift })
    }

    pub(super) fn words(&self) -> Words {
        // A place per number was checked above.
        Words { packet: self.packet.len() as u8, flow: self.flow.len() as u8 }
    }
}
