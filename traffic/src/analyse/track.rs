//! Tracks the packets of one worker in one stream: received, missing, reordered.

use std::cmp::Ordering;

/// The maximum distance below the highest number at which duplicates are recognized.
pub const WINDOW: u64 = 65_536;

/// The count of different numbers in stamps, after which they wrap.
const ROUND: u64 = 1 << 32;

/// An offset of all numbers, so that packets sent before the first received one also have numbers.
const BEGIN: u64 = ROUND;

/// One run of a sender, until it restarts. Numbers have 64 bits and do not wrap. They begin at 2³², so that
/// packets sent before the first received one also have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberRun {
    /// The lowest number received.
    pub first: u64,
    /// The highest number received.
    pub last: u64,
    /// The count of different numbers received.
    pub different: u64,
    /// The time in the stamp with the lowest number.
    pub first_ns: u64,
    /// The time in the stamp with the highest number.
    pub last_ns: u64,
}

impl NumberRun {
    /// Returns the count of numbers between the first and the last that were not received.
    pub fn lost(&self) -> u64 {
        // Counters that are read while a program writes them may be inconsistent.
        (self.last + 1).saturating_sub(self.first).saturating_sub(self.different)
    }

    /// Reports whether a packet belongs to a new run: it was made later, but its number is not higher. A
    /// number slightly ahead has wrapped past 2³².
    fn is_over(&self, number: u32, time_ns: u64) -> bool {
        let last = self.last as u32;
        let ahead = u64::from(number.wrapping_sub(last));
        time_ns > self.last_ns && number <= last && !(1..WINDOW).contains(&ahead)
    }

    /// Merges the counts of the same run in another queue, whose lowest number was made no earlier. Returns
    /// `None`, without a change, if the other queue's run is another one.
    pub fn join(&mut self, other: &Self) -> Option<()> {
        if self.is_over(other.first as u32, other.first_ns) {
            return None;
        }
        let mut first = self.in_round(other);
        let mut last = first + other.last.saturating_sub(other.first);
        if other.last_ns > self.last_ns && last <= self.last {
            // The other run lasts longer, so its numbers have wrapped more often, if that fits.
            let rounds = ((self.last - last) / ROUND + 1) * ROUND;
            if first + rounds <= self.last {
                (first, last) = (first + rounds, last + rounds);
            }
        }
        if last > self.last {
            (self.last, self.last_ns) = (last, other.last_ns);
        }
        if first < self.first {
            (self.first, self.first_ns) = (first, other.first_ns);
        }
        self.different += other.different;
        Some(())
    }

    /// Returns the other queue's first number, converted to this queue's count. Each queue counts from the
    /// round of 2³² of its own first packet. The later of two packets has the higher number.
    fn in_round(&self, other: &Self) -> u64 {
        let ahead_of = |number: u64| (other.first as u32).wrapping_sub(number as u32);
        let near =
            |number: u64| number.saturating_add_signed(ahead_of(number).cast_signed().into());
        let behind_first = self.first + u64::from(ahead_of(self.first));
        match other.first_ns.cmp(&self.last_ns) {
            Ordering::Greater => self.last + u64::from(ahead_of(self.last)),
            Ordering::Equal => near(self.last),
            Ordering::Less if other.first_ns > self.first_ns && behind_first <= self.last => {
                behind_first
            }
            Ordering::Less => near(self.first),
        }
    }
}

/// Counts of a worker's packets in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Packets received without a detected fault: all checkable lengths and checksums are right.
    pub received: u64,
    /// Received packets with a number received before.
    pub duplicates: u64,
    /// Received packets that arrived after one with a higher number (RFC 4737).
    pub reordered: u64,
    /// Received packets too far below the highest number to be distinguished from duplicates.
    pub late: u64,
    /// Packets received with a wrong checksum or length; not in `received`.
    pub corrupt: u64,
}

/// The packets of one worker in a stream that one queue received.
#[derive(Clone, Debug, Default)]
pub struct TrackShare {
    /// The stream's number.
    pub stream: u8,
    /// The worker's number.
    pub worker: u8,
    /// Packet counts.
    pub counts: StreamCounts,
    /// The sender's last runs, in order of time.
    pub runs: Vec<NumberRun>,
    /// Packets lost in runs before these, and the number of those runs.
    pub forgotten: (u64, u64),
}

/// The numbers received.
#[derive(Clone, Debug)]
pub(super) struct Track {
    /// A bit for each number of the window, by the number modulo its size.
    seen: Box<[u64; WORDS]>,
    run: Option<NumberRun>,
    /// The counts, and the runs before this one.
    ended: TrackShare,
}

const WORDS: usize = (WINDOW / 64) as usize;
/// Maximum of runs stored individually.
const RUNS_MAX: usize = 64;

impl Track {
    pub(super) fn of(stream: u8, worker: u8) -> Self {
        let runs = Vec::with_capacity(RUNS_MAX);
        let ended = TrackShare { stream, worker, runs, ..TrackShare::default() };
        Self { seen: Box::new([0; WORDS]), run: None, ended }
    }

    /// Returns the counts and runs so far.
    pub(super) fn share(&self) -> TrackShare {
        let mut share = self.ended.clone();
        share.runs.extend(self.run);
        share
    }

    /// Counts a packet.
    #[inline]
    pub(super) fn packet(&mut self, number: u32, time_ns: u64) {
        self.ended.counts.received += 1;
        let Some(run) = &mut self.run else { return self.begin(number, time_ns) };
        let ahead = i64::from(number.wrapping_sub(run.last as u32).cast_signed());
        if ahead > 0 && (ahead < WINDOW as i64 || !run.is_over(number, time_ns)) {
            clear(&mut self.seen, run.last, ahead as u64);
            run.last += ahead as u64;
            run.last_ns = time_ns;
            run.different += 1;
            set(&mut self.seen, run.last);
            return;
        }
        self.behind(ahead.unsigned_abs(), number, time_ns);
    }

    /// Counts a packet without the highest number.
    #[cold]
    fn behind(&mut self, behind: u64, number: u32, time_ns: u64) {
        let Some(run) = &mut self.run else { return };
        if time_ns > run.last_ns {
            // The packet was made later, but its number is not higher: the sender has restarted. If more than
            // 2³¹ packets are missing instead, the report joins the runs.
            let TrackShare { runs, forgotten, .. } = &mut self.ended;
            if runs.len() == RUNS_MAX {
                *forgotten = (forgotten.0 + runs.remove(0).lost(), forgotten.1 + 1);
            }
            runs.push(*run);
            return self.begin(number, time_ns);
        }
        if behind >= WINDOW {
            self.ended.counts.late += 1;
            return;
        }
        let number = run.last - behind;
        if !set(&mut self.seen, number) {
            self.ended.counts.duplicates += 1;
            return;
        }
        self.ended.counts.reordered += 1;
        run.different += 1;
        if number < run.first {
            (run.first, run.first_ns) = (number, time_ns);
        }
    }

    fn begin(&mut self, number: u32, time_ns: u64) {
        let number = BEGIN + u64::from(number);
        self.seen.fill(0);
        set(&mut self.seen, number);
        let (first, last, first_ns, last_ns) = (number, number, time_ns, time_ns);
        self.run = Some(NumberRun { first, last, different: 1, first_ns, last_ns });
    }
}

/// Marks a number; false if it was already marked.
#[inline]
fn set(seen: &mut [u64; WORDS], number: u64) -> bool {
    let at = (number % WINDOW) as usize;
    let (word, bit) = (&mut seen[at / 64], 1 << (at % 64));
    let new = *word & bit == 0;
    *word |= bit;
    new
}

/// Unmarks the `count` numbers after `last`, whose bits numbers one window earlier had set.
#[inline]
fn clear(seen: &mut [u64; WORDS], last: u64, count: u64) {
    if count >= WINDOW {
        seen.fill(0);
        return;
    }
    let (mut at, end) = (last + 1, last + count + 1);
    while at < end {
        let (word, bit) = ((at % WINDOW / 64) as usize, at % 64);
        let bits = (64 - bit).min(end - at);
        seen[word] &= !(u64::MAX >> (64 - bits) << bit);
        at += bits;
    }
}
