//! Lines of several queues, printed in the order of time.
//!
//! Each queue's lines are in order. A line may go when no other queue can still have an earlier
//! one: each has a later line waiting, has said that nothing older will come, or has ended. A live
//! queue that says nothing holds the others up for the window at most, from their arrival on, and for
//! no more lines than there is room for: a live queue that waited would lose packets, so it loses the
//! order. Files have all the time there is.

use std::collections::VecDeque;
use std::io::{self, Write, stdout};
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The text of one queue that may wait: as much as chunks of a queue on their way to a file.
const MAX_BYTES: usize = 32 << 20;
/// The output takes no more lines once it holds this many bytes.
const PIECE_BYTES: usize = 64 << 10;
/// How often a queue that waits looks at what may go by the window.
const TICK: Duration = Duration::from_millis(10);

/// Where the lines of all queues meet on their way to standard output.
pub struct LineOrder {
    state: Mutex<OrderState>,
    /// Signals that lines were moved to the output.
    moved: Condvar,
    /// How long a line waits for others; for ever if none.
    window: Option<Duration>,
}

/// Lines of one queue on their way to the others.
#[derive(Default)]
pub struct LineBatch {
    pub text: String,
    /// Each line's time and bytes.
    lines: VecDeque<(u64, usize)>,
    /// Bytes of the lines that have ended.
    ended: usize,
}

impl LineBatch {
    /// Notes that a line of this time ends here.
    pub fn end_line(&mut self, at_ns: u64) {
        self.lines.push_back((at_ns, self.text.len() - self.ended));
        self.ended = self.text.len();
    }

    fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
        self.ended = 0;
    }
}

impl LineOrder {
    /// For that many queues, numbered from 0; a line waits for others for the window at most.
    pub fn new(queues: usize, window: Option<Duration>) -> Self {
        Self { state: Mutex::new(OrderState::new(queues)), moved: Condvar::new(), window }
    }

    /// Takes a queue's lines and writes what may go. A queue that is not `live` waits here while
    /// too many of its lines wait. Break: nobody takes them any more.
    pub fn push(&self, queue: usize, batch: &mut LineBatch, live: bool) -> ControlFlow<()> {
        let mut state = self.lock();
        state.queues[queue].live = live;
        state.append(queue, batch, Instant::now());
        batch.clear();
        let mut flow = self.write(&mut state);
        while flow.is_continue() && state.queues[queue].is_full() {
            let waited = self.moved.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            flow = self.write(&mut state);
        }
        flow
    }

    /// Notes that nothing older than this will come from a queue; when it has ended, nothing at
    /// all ([`u64::MAX`]).
    pub fn quiet(&self, queue: usize, until_ns: u64) -> ControlFlow<()> {
        let mut state = self.lock();
        let watermark_ns = &mut state.queues[queue].watermark_ns;
        *watermark_ns = until_ns.max(*watermark_ns);
        self.write(&mut state)
    }

    /// Lines of a queue that standard output did not take.
    pub fn lost(&self, queue: usize) -> u64 {
        self.lock().queues[queue].lost
    }

    /// Lines of a queue that were written after a later line.
    pub fn late(&self, queue: usize) -> u64 {
        self.lock().queues[queue].late
    }

    /// Takes the error of standard output; a second call returns none.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.lock().failure.take()
    }

    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all that may go.
    fn write(&self, state: &mut OrderState) -> ControlFlow<()> {
        let expired = self.window.and_then(|window| Instant::now().checked_sub(window));
        while !state.failed && state.drain(expired) {
            let mut out = stdout().lock();
            let written = out.write_all(state.out.as_bytes()).and_then(|()| out.flush());
            state.done(written);
            self.moved.notify_all();
        }
        if state.failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The waiting lines, and the text that is written next.
struct OrderState {
    queues: Vec<Waiting>,
    out: String,
    /// The latest time moved into `out`.
    out_ns: u64,
    failed: bool,
    failure: Option<io::Error>,
}

/// One queue's lines.
struct Waiting {
    /// The text of `lines` starts at `moved`.
    text: String,
    moved: usize,
    lines: VecDeque<PendingLine>,
    /// Nothing earlier will come.
    watermark_ns: u64,
    /// It must not wait for room.
    live: bool,
    late: u64,
    /// Lines of this queue in `out`.
    going: u64,
    lost: u64,
}

struct PendingLine {
    at_ns: u64,
    bytes: usize,
    arrived: Instant,
}

impl OrderState {
    fn new(queues: usize) -> Self {
        let waiting = || Waiting {
            text: String::new(),
            moved: 0,
            lines: VecDeque::new(),
            watermark_ns: 0,
            live: true,
            late: 0,
            going: 0,
            lost: 0,
        };
        let queues = (0..queues).map(|_| waiting()).collect();
        Self { queues, out: String::new(), out_ns: 0, failed: false, failure: None }
    }

    fn append(&mut self, queue: usize, batch: &LineBatch, arrived: Instant) {
        let waiting = &mut self.queues[queue];
        if self.failed {
            waiting.lost += batch.lines.len() as u64;
            return;
        }
        waiting.text.push_str(&batch.text[..batch.ended]);
        let lines = batch.lines.iter();
        waiting.lines.extend(lines.map(|&(at_ns, bytes)| PendingLine { at_ns, bytes, arrived }));
        if let Some(last) = waiting.lines.back() {
            waiting.watermark_ns = waiting.watermark_ns.max(last.at_ns);
        }
    }

    /// Moves lines that may go into `out`, a piece at most. True if there are any. What came by
    /// `expired` waits no longer, nor what is before it.
    fn drain(&mut self, expired: Option<Instant>) -> bool {
        while self.out.len() < PIECE_BYTES
            && let Some((queue, until_ns)) = self.next(expired)
        {
            self.queues[queue].move_to(&mut self.out, until_ns, &mut self.out_ns);
        }
        !self.out.is_empty()
    }

    /// The queue with the earliest line, if that may go, and up to when it may go on before the
    /// others have to be asked again.
    fn next(&self, expired: Option<Instant>) -> Option<(usize, u64)> {
        let heads = self.queues.iter().map(Waiting::head_ns).enumerate();
        let (head_ns, first) = heads.filter_map(|(queue, head)| Some((head?, queue))).min()?;
        let hurried = self.queues.iter().filter(|queue| queue.is_hurried(expired));
        let hurried_ns = hurried.filter_map(Waiting::head_ns).max().unwrap_or(0);
        // A line earlier than the last one moved is late already: waiting does not help.
        let least_ns = hurried_ns.max(self.out_ns);
        let others = self.queues.iter().enumerate().filter(|(queue, _)| *queue != first);
        let until_ns = others
            .map(|(_, other)| other.head_ns().unwrap_or_else(|| other.watermark_ns.max(least_ns)));
        let until_ns = until_ns.min().unwrap_or(u64::MAX);
        (head_ns <= until_ns).then_some((first, until_ns))
    }

    /// Notes that `out` was written, or that writing failed.
    fn done(&mut self, written: io::Result<()>) {
        self.out.clear();
        let failed = written.is_err();
        self.failure = written.err();
        self.failed = failed;
        for queue in &mut self.queues {
            let going = std::mem::take(&mut queue.going);
            if failed {
                queue.lost += going + queue.lines.len() as u64;
                queue.lines.clear();
            }
        }
    }
}

impl Waiting {
    fn head_ns(&self) -> Option<u64> {
        self.lines.front().map(|line| line.at_ns)
    }

    /// Its first line has to go: it has waited for the window, or takes the room of others.
    fn is_hurried(&self, expired: Option<Instant>) -> bool {
        let has_waited =
            |line: &PendingLine| expired.is_some_and(|expired| line.arrived <= expired);
        self.lines.front().is_some_and(has_waited) || self.live && self.is_full()
    }

    fn is_full(&self) -> bool {
        self.text.len() - self.moved > MAX_BYTES
    }

    /// Moves lines up to a time, as long as there is room; notes the latest time moved.
    fn move_to(&mut self, out: &mut String, until_ns: u64, out_ns: &mut u64) {
        while out.len() < PIECE_BYTES
            && let Some(line) = self.lines.pop_front_if(|line| line.at_ns <= until_ns)
        {
            out.push_str(&self.text[self.moved..self.moved + line.bytes]);
            self.moved += line.bytes;
            self.going += 1;
            self.late += u64::from(line.at_ns < *out_ns);
            *out_ns = line.at_ns.max(*out_ns);
        }
        // The text is shifted by no more bytes than were moved: each byte moves once.
        if self.lines.is_empty() || self.moved > self.text.len() / 2 {
            self.text.drain(..self.moved);
            self.moved = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step of a queue: lines of these times, or the promise that no older line follows.
    enum Does {
        Lines(&'static [u64]),
        /// Lines that have waited for the window.
        Waited(&'static [u64]),
        Quiet(u64),
    }
    use Does::{Lines, Quiet, Waited};

    fn after(queues: usize, steps: &[(usize, Does)]) -> (OrderState, String) {
        let mut state = OrderState::new(queues);
        let expired = Instant::now();
        let arrived = expired + Duration::from_nanos(1);
        for (queue, does) in steps {
            match does {
                Lines(times) | Waited(times) => {
                    let mut batch = LineBatch::default();
                    for at_ns in *times {
                        batch.text.push_str(&format!("{queue}:{at_ns} "));
                        batch.end_line(*at_ns);
                    }
                    let arrived = if matches!(does, Waited(_)) { expired } else { arrived };
                    state.append(*queue, &batch, arrived);
                }
                Quiet(until_ns) => state.queues[*queue].watermark_ns = *until_ns,
            }
        }
        state.drain(Some(expired));
        let out = state.out.trim_end().to_owned();
        (state, out)
    }

    #[test]
    fn a_line_goes_when_none_before_it_can_come() {
        for (sentence, queues, steps, out) in [
            ("one queue waits for nobody", 1, &[(0, Lines(&[1, 2]))][..], "0:1 0:2"),
            (
                "two take turns, up to where one ends",
                2,
                &[(0, Lines(&[1, 3, 9])), (1, Lines(&[2, 4]))],
                "0:1 1:2 0:3 1:4",
            ),
            ("a silent queue holds them up", 2, &[(0, Lines(&[1, 2]))], ""),
            ("not for longer than the window", 2, &[(0, Waited(&[1])), (0, Lines(&[2]))], "0:1"),
            (
                "nor if their clock is 37 s ahead of that of the silent one's promises",
                2,
                &[(1, Quiet(50)), (0, Waited(&[37_000_000_000]))],
                "0:37000000000",
            ),
            (
                "what is before a line that has waited goes with it, for more may come for ever",
                3,
                &[(0, Waited(&[37])), (1, Lines(&[36, 38]))],
                "1:36 0:37",
            ),
            (
                "one that promises lets go what is older",
                2,
                &[(0, Lines(&[1, 2, 3])), (1, Quiet(2))],
                "0:1 0:2",
            ),
            (
                "one that has ended holds up nobody",
                3,
                &[(0, Lines(&[7])), (1, Quiet(u64::MAX)), (2, Lines(&[5])), (2, Quiet(u64::MAX))],
                "2:5 0:7",
            ),
            (
                "what comes late goes at once",
                2,
                &[(0, Waited(&[8])), (1, Waited(&[9])), (1, Quiet(9)), (0, Lines(&[3]))],
                "0:8 0:3 1:9",
            ),
        ] {
            assert_eq!(after(queues, steps).1, out, "{sentence}");
        }
    }

    #[test]
    fn what_goes_after_a_later_line_is_counted() {
        let late = |state: &OrderState| [0, 1].map(|queue: usize| state.queues[queue].late);
        let steps = [(0, Lines(&[8, 3, 9])), (1, Lines(&[9]))];
        let (state, out) = after(2, &steps);
        assert_eq!((out.as_str(), late(&state)), ("0:8 0:3 0:9 1:9", [1, 0]));
    }

    #[test]
    fn a_live_queue_without_room_lets_its_lines_go_and_a_file_waits() {
        let line = "x".repeat(1 << 20);
        for (sentence, live, written) in [("it may not wait", true, 1), ("it may", false, 0)] {
            let mut state = OrderState::new(2);
            state.queues[0].live = live;
            let mut pushed = 0;
            while !state.queues[0].is_full() {
                assert!(!state.drain(None), "{sentence}: what there is room for waits");
                let mut batch = LineBatch { text: line.clone(), ..LineBatch::default() };
                pushed += 1;
                batch.end_line(pushed);
                state.append(0, &batch, Instant::now());
            }
            assert_eq!(state.drain(None), live, "{sentence}");
            assert_eq!((state.out.len() >> 20, pushed), (written, 33), "{sentence}");
        }
    }

    #[test]
    fn what_waits_when_writing_fails_is_lost_by_its_queue() {
        let (mut state, out) = after(2, &[(0, Lines(&[1, 9])), (1, Lines(&[2, 3, 4]))]);
        assert_eq!(out, "0:1 1:2 1:3 1:4");
        state.done(Err(io::ErrorKind::BrokenPipe.into()));
        let lost = |state: &OrderState| [0, 1].map(|queue: usize| state.queues[queue].lost);
        assert_eq!(lost(&state), [2, 3]);
        let mut batch = LineBatch { text: "more".into(), ..LineBatch::default() };
        batch.end_line(10);
        state.append(1, &batch, Instant::now());
        assert_eq!((lost(&state), state.drain(None)), ([2, 4], false), "nothing goes any more");
    }

    #[test]
    fn lines_go_in_pieces_and_leave_no_room_taken() {
        let mut state = OrderState::new(1);
        let mut batch = LineBatch::default();
        for number in 0..10_000 {
            batch.text.push_str(&format!("line {number}, long enough to fill several pieces\n"));
            batch.end_line(number);
        }
        state.append(0, &batch, Instant::now());
        let mut whole = String::new();
        while state.drain(None) {
            assert!(state.out.len() < PIECE_BYTES + 100);
            whole.push_str(&state.out);
            state.done(Ok(()));
        }
        assert_eq!(whole, batch.text);
        assert!(state.queues[0].text.is_empty());
    }
}
