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
        // A number of which nothing is left cannot be moved by all its bits.
        let room = |used: &u8| *used < 64 && used + bits <= 64;
        let word = used.iter().position(room).unwrap_or(used.len());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_a_bit_in_common() {
        let rows = [
            ("a byte", Per::Packet, 256, Draw { word: 0, shift: 0 }),
            ("a range takes 32 bits", Per::Packet, 1000, Draw { word: 0, shift: 8 }),
            ("16 beside them", Per::Packet, 1 << 16, Draw { word: 0, shift: 40 }),
            ("another range does not fit", Per::Packet, 3, Draw { word: 1, shift: 0 }),
            ("what is left of the first", Per::Packet, 256, Draw { word: 0, shift: 56 }),
            ("a flow has numbers of its own", Per::Flow, 1 << 32, Draw { word: 0, shift: 0 }),
            (
                "a great range has a number alone",
                Per::Packet,
                1 << 40 | 1,
                Draw { word: 2, shift: 0 },
            ),
            ("one of one needs no bit, but a place", Per::Packet, 1, Draw { word: 1, shift: 32 }),
        ];
        let mut draws = Draws::default();
        for (name, per, count, draw) in rows {
            assert_eq!(draws.draw(per, count), Ok(draw), "{name}");
        }
        assert_eq!(draws.words(), Words { packet: 3, flow: 1 });
    }
}
