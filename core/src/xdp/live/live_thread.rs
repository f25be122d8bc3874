//! A thread that runs a program of live frames, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::exit::Exit;
use super::live_program::{Ended, LiveProgram};
use super::run_length::RunLength;
use super::signal;
use crate::error::{Error, Result};
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
        let thread = name.spawn(move || {
            let clocks = ThreadCpuUsage::begin();
            let _mark = exit.mark_thread();
            let ran = signal::only()
                .map_err(|error| Error::system("take", "signals", error))
                .and_then(|()| cpu.map_or(Ok(()), pin_thread))
                .and_then(|()| runs.go_on(&mut next));
            Ending { ran, busy: clocks.share(), program: runs.program }
        });
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
            Ended::Done => self.stretch.took(times, start.elapsed()),
            Ended::Interrupted => {}
        }
        Ok(())
    }
}
