//! A thread that runs a live-frame program repeatedly, and the signal that ends a run.
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::program::{LiveProgram, RedirectTarget, RunEnd};
use crate::error::{Error, Result};
use crate::file::without_signals;
use crate::link::{LinkState, ThreadCpuUsage, pin_thread};
use crate::xdp::RedirectCounts;

/// Pause between two checks of an interface that is down.
const DOWN_INTERVAL: Duration = Duration::from_millis(50);
/// Pause between two signals to a thread that should end, because it may be about to start a run.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(1);
/// Time between two checks of the interface.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The next action of a [`LiveThread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadAction {
    /// Runs the program at most this many times, fewer if that takes long or a signal arrives.
    Run(u64),
    /// Runs the program as `Run` does, on frames of at most this many bytes.
    RunOn(u64, usize),
    /// Sleeps until it is [woken](LiveThread::wake).
    Sleep,
    /// Ends the thread.
    End,
}

/// Configuration of a [`LiveThread`].
#[derive(Clone, Debug)]
pub struct LiveThreadConfig {
    /// The target, an interface of this thread's network namespace. When the interface goes down or is
    /// removed, the thread ends with an error: the program does not notice.
    pub target: Arc<RedirectTarget>,
    /// The CPU to pin the thread to.
    pub cpu: Option<usize>,
    /// Length of the first run after the start and after each wake-up: a compromise between many packets to
    /// send and none.
    pub first_runs: u32,
    /// Waits while the interface is down, in place of ending.
    pub waits: bool,
}

/// A thread that runs a program until it is stopped, or has nothing more to do. A forked child has no copy of
/// it: for the child it has ended, and ending it there does nothing to the parent.
#[derive(Debug)]
pub struct LiveThread {
    /// None once the thread is joined. Returns its result, its CPU share, and the program.
    thread: Option<JoinHandle<(Result<()>, f64, LiveProgram)>>,
    /// The process of the thread.
    process: u32,
    /// The share of time that the thread was on a CPU, once it is joined.
    busy: f64,
    /// The program, once the thread is joined. It is dropped at the end, together with the other programs:
    /// unregistering a program delays runs of others, and interface queries, in the kernel.
    _program: Option<LiveProgram>,
    state: Arc<ThreadState>,
    target: Arc<RedirectTarget>,
}

/// State shared by a [`LiveThread`] and its thread.
#[derive(Debug)]
struct ThreadState {
    ends: AtomicBool,
    /// The interface's MTU; 0 while it is down.
    mtu: AtomicU32,
}

impl LiveThread {
    /// Starts the thread. It calls `next` before each run.
    ///
    /// # Errors
    /// The system has no thread or socket left.
    pub fn start(
        program: LiveProgram,
        config: &LiveThreadConfig,
        mut next: impl FnMut() -> ThreadAction + Send + 'static,
    ) -> Result<Self> {
        let failed = |error| Error::start("a thread for live frames", error);
        install_handler().map_err(|error| failed(error.into()))?;
        let mtu = AtomicU32::new(config.target.interface().mtu);
        let state = Arc::new(ThreadState { ends: AtomicBool::new(false), mtu });
        let quick = program.is_quick();
        let mut runs = Runs {
            program,
            link_state: LinkState::of(config.target.interface())?,
            checked: Instant::now(),
            length: RunLength::new(config.first_runs, quick),
            waits: config.waits,
            state: Arc::clone(&state),
        };
        let (cpu, target) = (config.cpu, Arc::clone(&config.target));
        let name = std::thread::Builder::new().name("live".into());
        let work = move || {
            let clocks = ThreadCpuUsage::begin();
            let _mark = target.mark_thread();
            let ran = unblock_signal()
                .map_err(|error| Error::system("unblock", "a signal", error))
                .and_then(|()| cpu.map_or(Ok(()), pin_thread))
                .and_then(|()| runs.run_until_stopped(&mut next));
            (ran, clocks.share(), runs.program)
        };
        let thread = without_signals(|| name.spawn(work));
        let thread = Some(thread.map_err(failed)?);
        let (process, target) = (std::process::id(), Arc::clone(&config.target));
        Ok(Self { thread, process, busy: 0.0, _program: None, state, target })
    }

    /// Returns true if the thread has ended, for any reason. After a fork, only [`end`](Self::end) notices that
    /// the thread is not this process's.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Wakes the thread if it sleeps.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Returns the interface's MTU at the last check; 0 while the thread waits for the interface.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        // Pairs with the thread's store: an independent number.
        self.state.mtu.load(Ordering::Relaxed)
    }

    /// Requests the thread to end, without waiting; does nothing in a forked child. To end several threads, call this for all of them
    /// first.
    pub fn request_stop(&self) {
        // Pairs with the thread's load; the signal or the wake-up orders the two.
        self.state.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.as_ref().filter(|_| self.is_ours()) {
            send_signal(thread);
            thread.thread().unpark();
        }
    }

    /// Ends the thread and waits for it, which takes a millisecond or two.
    ///
    /// # Errors
    /// The thread's own error, if it failed, or the interface was removed; reported once. Another process
    /// started the thread, before a fork.
    pub fn end(&mut self) -> Result<()> {
        self.request_stop();
        let Some(thread) = self.thread.take() else { return Ok(()) };
        if !self.is_ours() {
            // Detaching would free a stack that libc has taken back at the fork.
            std::mem::forget(thread);
            return Err(Error::Usage(
                "a forked process cannot send live frames for its parent: open the port after the fork".into(),
            ));
        }
        while !thread.is_finished() {
            std::thread::sleep(SIGNAL_INTERVAL);
            // The thread may have been about to start a run when it was told.
            send_signal(&thread);
        }
        let (ran, busy, program) =
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (self.busy, self._program) = (busy, Some(program));
        ran
    }

    /// Returns false in a child that was forked after the start: the thread's ID may be that of another one.
    fn is_ours(&self) -> bool {
        std::process::id() == self.process
    }

    /// Returns the fate of the thread's frames: exact after [`end`](Self::end).
    pub fn redirects(&self) -> RedirectCounts {
        self.target.counts()
    }

    /// Returns the share of time that the thread was on a CPU; known after [`end`](Self::end).
    pub fn busy(&self) -> f64 {
        self.busy
    }
}

impl Drop for LiveThread {
    fn drop(&mut self) {
        // A caller that drops the thread does not need the error.
        let _ = self.end();
    }
}

/// The state of the running thread.
struct Runs {
    program: LiveProgram,
    link_state: LinkState,
    /// Time of the last check of the interface.
    checked: Instant,
    length: RunLength,
    waits: bool,
    state: Arc<ThreadState>,
}

impl Runs {
    fn run_until_stopped(&mut self, next: &mut impl FnMut() -> ThreadAction) -> Result<()> {
        // Pairs with the store of `request_stop`.
        while !self.state.ends.load(Ordering::Acquire) {
            match next() {
                ThreadAction::Run(times) => self.run(times, usize::MAX)?,
                ThreadAction::RunOn(times, bytes) => self.run(times, bytes)?,
                ThreadAction::Sleep => {
                    std::thread::park();
                    self.length.reset();
                }
                ThreadAction::End => break,
            }
        }
        // The last frames met a removed interface if it was removed after the last check.
        self.link_state.query().map(|_| ())
    }

    fn run(&mut self, times: u64, bytes: usize) -> Result<()> {
        let start = Instant::now();
        if start.duration_since(self.checked) >= CHECK_INTERVAL {
            self.checked = start;
            let state = match self.waits {
                true => self.link_state.query()?,
                false => self.link_state.check_up()?,
            };
            if !state.up {
                // Pairs with the load of `mtu`, as below.
                self.state.mtu.store(0, Ordering::Relaxed);
                self.checked = start - CHECK_INTERVAL;
                std::thread::park_timeout(DOWN_INTERVAL);
                return Ok(());
            }
            // Pairs with the load of `mtu`.
            self.state.mtu.store(state.mtu, Ordering::Relaxed);
        }
        let times = self.length.limit(times);
        match self.program.run_on(times, bytes)? {
            RunEnd::Done => self.length.record(times, start.elapsed()),
            RunEnd::Interrupted => {}
        }
        Ok(())
    }
}

/// Target duration of a run that starts quickly.
const RUN_TIME: Duration = Duration::from_millis(10);
/// Target duration of a run with a slow setup.
const LONG_RUN_TIME: Duration = Duration::from_millis(500);
/// Minimum number of packets per run, so that a run takes longer than its setup, however short the packets.
const MIN_RUNS: u32 = 1 << 12;

/// The number of program runs in one call of the kernel.
///
/// During a call the kernel holds the RCU read lock, except when it lets another thread run
/// (net/bpf/test_run.c, `bpf_test_timer_continue`): on a CPU of its own, never. A change of any XDP program
/// waits for all readers, and so for the end of the call. Therefore a call ends after a while, and the next
/// starts at once. Its setup takes some 20 µs, or 25 ms for a program that the kernel does not have
/// registered.
#[derive(Debug)]
struct RunLength {
    first: u32,
    times: u32,
    time: Duration,
}

impl RunLength {
    /// Makes the length of the first call. `quick`: calls start and end without delay.
    fn new(first: u32, quick: bool) -> Self {
        Self { first, times: first, time: if quick { RUN_TIME } else { LONG_RUN_TIME } }
    }

    /// Starts again with the first length.
    fn reset(&mut self) {
        self.times = self.first;
    }

    /// Limits `times` to the length of one call.
    fn limit(&self, times: u64) -> u32 {
        u32::try_from(times).map_or(self.times, |times| times.min(self.times))
    }

    /// Adapts the length to the duration of a call, at most by a factor of two.
    fn record(&mut self, times: u32, time: Duration) {
        if times < self.times {
            return;
        }
        let wanted = u128::from(times) * self.time.as_nanos() / time.as_nanos().max(1);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.times = wanted.clamp(times / 2, times.saturating_mul(2)).max(MIN_RUNS);
    }
}

/// The signal that interrupts a run. Without a handler the kernel ignores it.
const SIGNAL: Signal = Signal::SIGURG;

/// Installs a handler that does nothing, so that the signal interrupts a run. A handler of the program's own
/// stays: it interrupts a run too, even with SA_RESTART (net/bpf/test_run.c returns EINTR).
fn install_handler() -> nix::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    static INSTALLED: OnceLock<nix::Result<()>> = OnceLock::new();
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    *INSTALLED.get_or_init(|| {
        // SAFETY: the handler does nothing, which a signal handler may do.
        let before = unsafe { sigaction(SIGNAL, &action) }?;
        if !matches!(before.handler(), SigHandler::SigDfl | SigHandler::SigIgn) {
            // SAFETY: the program had installed it.
            unsafe { sigaction(SIGNAL, &before) }?;
        }
        Ok(())
    })
}

/// Unblocks the signal in this thread, which starts with all signals blocked: the program's own threads
/// take signals that are sent to the process.
fn unblock_signal() -> nix::Result<()> {
    SigSet::from(SIGNAL).thread_unblock()
}

/// Sends the signal to a thread.
fn send_signal<T>(thread: &JoinHandle<T>) {
    // The thread is not joined, so its id is still valid; an error means that it has ended.
    let _ = pthread_kill(thread.as_pthread_t(), SIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the duration of a call after many calls, if a packet takes `each`.
    fn after(length: &mut RunLength, each: Duration) -> Duration {
        for _ in 0..40 {
            let times = length.limit(u64::MAX);
            length.record(times, each * times);
        }
        each * length.limit(u64::MAX)
    }

    #[test]
    fn runs_come_to_take_a_while_and_no_longer() {
        for (quick, wanted) in [(true, RUN_TIME), (false, LONG_RUN_TIME)] {
            let mut length = RunLength::new(1 << 15, quick);
            for each in [30, 50, 2000, 120].map(Duration::from_nanos) {
                let time = after(&mut length, each);
                assert!((wanted / 2..=wanted * 2).contains(&time), "{each:?} each: {time:?}");
            }
            length.reset();
            assert_eq!(length.limit(u64::MAX), 1 << 15);
        }
    }

    #[test]
    fn a_run_is_never_longer_than_requested_and_a_short_one_changes_nothing() {
        let mut length = RunLength::new(1000, true);
        assert_eq!([length.limit(7), length.limit(1 << 40)], [7, 1000]);
        length.record(7, Duration::from_secs(1));
        assert_eq!(length.limit(u64::MAX), 1000);
        length.record(1000, Duration::ZERO);
        assert_eq!(length.limit(u64::MAX), MIN_RUNS);
    }
}
