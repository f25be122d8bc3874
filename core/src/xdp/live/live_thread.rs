//! A thread that runs a program of live frames, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::exit::Exit;
use super::live_program::{LiveProgram, RunEnd};
use super::signal;
use crate::error::{Error, Result};
use crate::file::without_signals;
use crate::link::{LinkState, ThreadCpuUsage, pin_thread};
use crate::xdp::RedirectCounts;

/// Between two looks at an interface that is down.
const DOWN: Duration = Duration::from_millis(50);
/// How often a thread is told to end its run: it may just be about to begin.
const INSIST: Duration = Duration::from_millis(1);
/// Between two looks at the interface.
const CHECK: Duration = Duration::from_millis(500);

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It runs the program, so many times at most, and asks again: after fewer where these would
    /// take long, or where a signal comes.
    Run(u64),
    /// The same on frames that have so many bytes before the program runs on them, of those that the
    /// program has.
    RunOn(u64, usize),
    /// It sleeps until it is [woken](LiveThread::wake), and asks again.
    Sleep,
    /// It ends: all is done.
    End,
}

/// Where a thread runs, and what it sends out of.
#[derive(Clone, Debug)]
pub struct LiveThreadConfig {
    /// By an interface of this thread's network namespace. When it goes down or is removed, the
    /// thread ends with an error: the program does not see it.
    pub exit: Arc<Exit>,
    /// The CPU, if it is pinned to one.
    pub cpu: Option<usize>,
    /// How often the program is run at first, from the start and from each waking: long enough for
    /// who has much to do, short for who may have nothing after all.
    pub first_runs: u32,
    /// Whether it waits for an interface that is down; it ends otherwise.
    pub waits: bool,
}

/// A thread that runs a program: until it is told to end, or has nothing more to do.
#[derive(Debug)]
pub struct LiveThread {
    /// Until it is joined.
    thread: Option<JoinHandle<Ending>>,
    /// The share of its time that it was on a CPU, once it is joined.
    busy: f64,
    /// Once it is joined. It stays until this is dropped: that the kernel forgets a program holds up
    /// the runs of others, and who asks for interfaces (`known`).
    _program: Option<LiveProgram>,
    ends: Arc<AtomicBool>,
    mtu: Arc<AtomicU32>,
    exit: Arc<Exit>,
}

impl LiveThread {
    /// Starts it. `next` says, before each run, what it does.
    ///
    /// # Errors
    /// The system has no thread left, or no socket.
    pub fn start(
        program: LiveProgram,
        config: &LiveThreadConfig,
        mut next: impl FnMut() -> Next + Send + 'static,
    ) -> Result<Self> {
        let failed = |error| Error::system("start", "a thread for live frames", error);
        signal::receive().map_err(|error| failed(error.into()))?;
        let ends = Arc::new(AtomicBool::new(false));
        let mtu = Arc::new(AtomicU32::new(config.exit.interface().mtu));
        let quick = program.is_quick();
        let mut runs = Runs {
            program,
            link_state: LinkState::of(config.exit.interface())?,
            looked: Instant::now(),
            stretch: RunLength::new(config.first_runs, quick),
            waits: config.waits,
            ends: Arc::clone(&ends),
            mtu: Arc::clone(&mtu),
        };
        let (cpu, exit) = (config.cpu, Arc::clone(&config.exit));
        let name = std::thread::Builder::new().name("live".into());
        let work = move || {
            let clocks = ThreadCpuUsage::begin();
            let _mark = exit.mark_thread();
            let ran = signal::unblock()
                .map_err(|error| Error::system("take", "signals", error))
                .and_then(|()| cpu.map_or(Ok(()), pin_thread))
                .and_then(|()| runs.go_on(&mut next));
            Ending { ran, busy: clocks.share(), program: runs.program }
        };
        let thread = without_signals(|| name.spawn(work));
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { thread, busy: 0.0, _program: None, ends, mtu, exit: Arc::clone(&config.exit) })
    }

    /// Whether it has ended, for whatever reason.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has it go on if it sleeps.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// The interface's MTU, when the thread last looked; 0 while it waits for it to be up.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        // Pairs with the thread's store: a number, from which nothing else follows.
        self.mtu.load(Ordering::Relaxed)
    }

    /// Tells it to end, and does not wait for that: who ends several tells all of them first.
    pub fn tell(&self) {
        // Pairs with the thread's load; the signal or the waking orders the two.
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            signal::send(thread);
            thread.thread().unpark();
        }
    }

    /// Ends it, and waits for that: a millisecond or two.
    ///
    /// # Errors
    /// Why it ended before, if it failed; said once.
    pub fn end(&mut self) -> Result<()> {
        self.tell();
        let Some(thread) = self.thread.take() else { return Ok(()) };
        while !thread.is_finished() {
            std::thread::sleep(INSIST);
            // It may have been about to begin a run when it was told.
            signal::send(&thread);
        }
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (self.busy, self._program) = (ended.busy, Some(ended.program));
        ended.ran
    }

    /// What became of its frames: exact once it has been ended.
    pub fn redirects(&self) -> RedirectCounts {
        self.exit.counts()
    }

    /// The share of its time that it was on a CPU, once it has been ended.
    pub fn busy(&self) -> f64 {
        self.busy
    }
}

impl Drop for LiveThread {
    fn drop(&mut self) {
        // Whoever drops it does not ask how it went.
        let _ = self.end();
    }
}

/// How the thread ended, and what it leaves.
#[derive(Debug)]
struct Ending {
    ran: Result<()>,
    busy: f64,
    program: LiveProgram,
}

/// What the thread has.
struct Runs {
    program: LiveProgram,
    link_state: LinkState,
    /// When it was last looked whether the interface is there.
    looked: Instant,
    stretch: RunLength,
    waits: bool,
    ends: Arc<AtomicBool>,
    mtu: Arc<AtomicU32>,
}

impl Runs {
    fn go_on(&mut self, next: &mut impl FnMut() -> Next) -> Result<()> {
        // Pairs with the store of `tell`.
        while !self.ends.load(Ordering::Acquire) {
            match next() {
                Next::Run(times) => self.run(times, usize::MAX)?,
                Next::RunOn(times, bytes) => self.run(times, bytes)?,
                Next::Sleep => {
                    std::thread::park();
                    self.stretch.begin_anew();
                }
                Next::End => break,
            }
        }
        Ok(())
    }

    fn run(&mut self, times: u64, bytes: usize) -> Result<()> {
        let start = Instant::now();
        if start.duration_since(self.looked) >= CHECK {
            self.looked = start;
            let state = match self.waits {
                true => self.link_state.look()?,
                false => self.link_state.check_up()?,
            };
            if !state.up {
                // As `mtu`.
                self.mtu.store(0, Ordering::Relaxed);
                self.looked = start - CHECK;
                std::thread::park_timeout(DOWN);
                return Ok(());
            }
            // Pairs with the load of `mtu`.
            self.mtu.store(state.mtu, Ordering::Relaxed);
        }
        let times = self.stretch.at_most(times);
        match self.program.run_on(times, bytes)? {
            RunEnd::Done => self.stretch.took(times, start.elapsed()),
            RunEnd::Interrupted => {}
        }
        Ok(())
    }
}

// How long a run of the program goes on.
//
// During a run the kernel holds the read lock of RCU, but when it has to let another thread run
// (net/bpf/test_run.c, `bpf_test_timer_continue`): on a CPU of its own, never. Who waits for all
// readers, as each change of an XDP program does, waits for the end of the run. So a run ends after
// a while, and the next begins at once. To set up a run takes the kernel some 20 µs, or 25 ms where
// it does not know the program before (`known`).

/// How long a run takes, more or less, where it begins quickly.
const WHILE: Duration = Duration::from_millis(10);
/// The same where it takes its time.
const LONG_WHILE: Duration = Duration::from_millis(500);
/// Runs that take longer than to set them up, whatever a packet takes.
const LEAST: u32 = 1 << 12;

/// How often the program is run in one run of the kernel's.
#[derive(Debug)]
pub(super) struct RunLength {
    first: u32,
    times: u32,
    time: Duration,
}

impl RunLength {
    /// `quick`: runs begin and end in no time.
    pub(super) fn new(first: u32, quick: bool) -> Self {
        Self { first, times: first, time: if quick { WHILE } else { LONG_WHILE } }
    }

    /// Nothing is known of what comes.
    pub(super) fn begin_anew(&mut self) {
        self.times = self.first;
    }

    /// So many, or fewer.
    pub(super) fn at_most(&self, times: u64) -> u32 {
        u32::try_from(times).map_or(self.times, |times| times.min(self.times))
    }

    /// A run took so long: the next comes nearer to what it should take, by half or twice as many.
    pub(super) fn took(&mut self, times: u32, time: Duration) {
        if times < self.times {
            return;
        }
        let wanted = u128::from(times) * self.time.as_nanos() / time.as_nanos().max(1);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.times = wanted.clamp(times / 2, times.saturating_mul(2)).max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After many runs of a program that takes so long.
    fn after(stretch: &mut RunLength, each: Duration) -> Duration {
        for _ in 0..40 {
            let times = stretch.at_most(u64::MAX);
            stretch.took(times, each * times);
        }
        each * stretch.at_most(u64::MAX)
    }

    #[test]
    fn runs_come_to_take_a_while_and_no_longer() {
        for (quick, wanted) in [(true, WHILE), (false, LONG_WHILE)] {
            let mut stretch = RunLength::new(1 << 15, quick);
            for each in [30, 50, 2000, 120].map(Duration::from_nanos) {
                let time = after(&mut stretch, each);
                assert!((wanted / 2..=wanted * 2).contains(&time), "{each:?} each: {time:?}");
            }
            stretch.begin_anew();
            assert_eq!(stretch.at_most(u64::MAX), 1 << 15);
        }
    }

    #[test]
    fn a_run_is_never_longer_than_asked_for_and_a_short_one_tells_nothing() {
        let mut stretch = RunLength::new(1000, true);
        assert_eq!([stretch.at_most(7), stretch.at_most(1 << 40)], [7, 1000]);
        stretch.took(7, Duration::from_secs(1));
        assert_eq!(stretch.at_most(u64::MAX), 1000);
        stretch.took(1000, Duration::ZERO);
        assert_eq!(stretch.at_most(u64::MAX), LEAST);
    }
}
