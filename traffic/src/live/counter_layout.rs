//! Layout of the memory that a program shares with this process.

use crate::plan::Plan;
use crate::rate::Gaps;

/// The words at the start: what the program counts.
pub(super) mod word {
    /// Packets handed to the interface.
    pub const PACKETS: i16 = 0;
    /// Their bytes.
    pub const BYTES: i16 = 8;
    /// Packets that the kernel refused to make as long as they should be.
    pub const REFUSED: i16 = 16;
    /// Where in the turns it is.
    pub const TURN: i16 = 24;
    /// From one of this worker's bursts to its next: [`crate::rate::Period::ns`]. We write it.
    pub const PERIOD: i16 = 32;
    /// Packets a burst. We write it.
    pub const BURST: i16 = 40;
    /// The period by which [`DUE`] was found; 0 before the first burst. A period is never 0.
    pub const KEPT: i16 = 48;
    /// When the next burst is due, in ns of CLOCK_MONOTONIC.
    pub const DUE: i16 = 56;
    /// Packets left of this burst.
    pub const IN_BURST: i16 = 64;
    /// Times it was too late to keep to the timetable.
    pub const RESTARTS: i16 = 72;
    /// Packets after which none is due any more.
    pub const LIMIT: i16 = 80;
    /// [`crate::rate::Period::fraction`]. We write it.
    pub const FRACTION: i16 = 88;
    /// And parts of a ns when the next burst is due.
    pub const DUE_FRACTION: i16 = 96;
    /// How long after a timetable's begin this worker's first burst is due, in ns. We write it.
    pub const PHASE: i16 = 104;
    /// How long until the next burst, when it was last looked at, in ns; 0 if one was due.
    pub const IDLE: i16 = 112;
    /// The time that stamps say, in ns of CLOCK_MONOTONIC, where packets share one.
    pub const CLOCK: i16 = 120;
    /// How many packets more say it. We set it back before each run of the program.
    pub const CLOCK_LEFT: i16 = 128;
    /// Bytes of all of these; the streams' numbers come next.
    pub const END: usize = 136;
}

/// A table of 64-bit numbers in the shared counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Offset in bytes from the start of the counters.
    pub at: u32,
    /// Count of numbers.
    pub count: u32,
}

/// The offsets of all words and tables, with their initial content.
#[derive(Debug, Default)]
pub(super) struct CounterLayout {
    words: Vec<u64>,
}

impl CounterLayout {
    /// Creates the counters of a plan and its streams, and the histogram of a timetable.
    pub fn new(plan: &Plan) -> Self {
        let mut sheet = Self { words: vec![0; word::END / 8 + plan.streams.len()] };
        sheet.table(std::iter::repeat_n(0, Gaps::CLASSES));
        sheet
    }

    /// The histogram, at the same offset in all programs of a plan.
    pub fn gaps(plan: &Plan) -> Table {
        Table { at: Self::number_of(plan.streams.len()), count: Gaps::CLASSES as u32 }
    }

    /// The offset of the number of a stream's next packet.
    pub fn number_of(stream: usize) -> u32 {
        (word::END + stream * 8) as u32
    }

    /// Adds a table.
    pub fn table(&mut self, numbers: impl IntoIterator<Item = u64>) -> Table {
        let at = self.words.len();
        self.words.extend(numbers);
        Table { at: (at * 8) as u32, count: (self.words.len() - at) as u32 }
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Table {
        self.table(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        }))
    }

    /// Returns the initial content.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}
