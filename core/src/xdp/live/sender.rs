//! A ring, its program, and the thread that runs it while there is something to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use nix::sched::sched_getcpu;

use super::exit::Exit;
use super::live_program::LiveProgram;
use super::live_thread::{LiveThread, LiveThreadConfig, Next};
use super::program::{Access, program};
use super::ring::{Geometry, LiveCounts, LiveMemory, LiveWriter};
use crate::error::{Error, Result};
use crate::link::{Allowed, Interface};
use crate::xdp::RedirectCounts;

/// A look at an empty ring takes 30 to 80 ns. After so many in a row the thread goes to sleep.
const IDLE_LOOKS: u64 = 1 << 13;
/// Runs of the program when there is something to send after a sleep: more may come at once.
const FIRST_RUNS: u32 = 1 << 13;

/// Sends packets that are written into a ring.
#[derive(Debug)]
pub(crate) struct LiveSender {
    writer: LiveWriter,
    memory: Arc<LiveMemory>,
    running: LiveThread,
    terms: Arc<Terms>,
    /// Writer and thread have one CPU between them.
    alone: bool,
}

/// What writer and thread let each other know besides.
#[derive(Debug)]
struct Terms {
    /// Whether the thread sleeps, or is about to.
    asleep: AtomicBool,
    /// The CPU that the writer was seen on last; [`NOWHERE`] at first.
    writer: AtomicUsize,
}

/// No CPU.
const NOWHERE: usize = usize::MAX;

impl LiveSender {
    /// Makes one, asleep, that sends out of an interface of this thread's network namespace; its
    /// thread on a CPU of its own if one is given. While the interface is down it `waits`, or it ends.
    ///
    /// # Errors
    /// A missing privilege; the kernel has no memory, no thread, or no live frames.
    pub(crate) fn open(
        geometry: Geometry,
        interface: &Interface,
        cpu: Option<usize>,
        waits: bool,
    ) -> Result<Self> {
        let exit = Arc::new(Exit::by(interface)?);
        Self::starting_at(
            0,
            geometry,
            LiveThreadConfig { exit, cpu, first_runs: FIRST_RUNS, waits },
        )
    }

    /// The same with indices that do not begin at 0.
    pub(super) fn starting_at(
        start: u32,
        geometry: Geometry,
        config: LiveThreadConfig,
    ) -> Result<Self> {
        let LiveThreadConfig { exit, cpu, .. } = &config;
        let memory = LiveMemory::new(geometry, start, &exit.interface().name)?;
        let program = load(&memory, exit, Access::Direct).or_else(|error| match error {
            // Also without CAP_PERFMON, and slower.
            Error::Unsupported { .. } => load(&memory, exit, Access::Calls),
            error => Err(error),
        })?;
        let allowed = Allowed::here()?;
        let alone = cpu.is_none() && allowed.count() == 1;
        let terms = Terms { asleep: AtomicBool::new(false), writer: AtomicUsize::new(NOWHERE) };
        let terms = Arc::new(terms);
        let mut feed = Feed {
            memory: Arc::clone(&memory),
            terms: Arc::clone(&terms),
            allowed: Some(allowed).filter(|_| cpu.is_none() && !alone),
            avoided: NOWHERE,
            alone,
            bytes: geometry.most_bytes as usize,
        };
        let running = LiveThread::start(program, &config, move || feed.next())?;
        Ok(Self { writer: LiveWriter::new(&memory, start), memory, running, terms, alone })
    }

    /// What the slots look like.
    pub(crate) fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    /// Where packets are written. Follow with [`publish`](Self::publish).
    #[inline]
    pub(crate) fn writer(&mut self) -> &mut LiveWriter {
        &mut self.writer
    }

    /// Hands over what is written, and wakes the thread if it sleeps.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.writer.publish();
        // Pairs with the fence in `Feed::next`: either the thread sees what was handed over, or we
        // see that it is about to sleep.
        fence(Ordering::SeqCst);
        let asleep = &self.terms.asleep;
        if asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed) {
            self.say_where();
            self.running.wake();
        }
    }

    /// Lets the thread know of the writer's CPU, which it keeps off: to be called now and then by who
    /// waits for it.
    #[inline]
    pub(crate) fn say_where(&self) {
        if let Ok(cpu) = sched_getcpu() {
            // Pairs with the load in `Feed::take_seat`: a number is all it publishes.
            self.terms.writer.store(cpu, Ordering::Relaxed);
        }
    }

    /// Whether writer and thread have one CPU between them.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether the thread has ended: because the interface is down or gone.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.running.is_finished()
    }

    /// The interface's MTU, when the thread last looked; 0 while it waits for it to be up.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.running.mtu()
    }

    /// Packets that are handed over and not sent, as far as the program has said. Once it has
    /// [ended](Self::end) that is exact.
    pub(crate) fn waiting(&mut self) -> u32 {
        match self.running.is_finished() {
            true => self.memory.waiting(),
            false => self.writer.waiting(),
        }
    }

    /// Of the others, how many were handed to the interface, and how many refused.
    pub(crate) fn counts(&self) -> LiveCounts {
        self.memory.counts()
    }

    /// What became of those that were handed to the interface: exact once it has been ended.
    pub(crate) fn redirects(&self) -> RedirectCounts {
        self.running.redirects()
    }

    /// One whose thread never runs the program.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn at_rest(geometry: Geometry, interface: &Interface) -> Result<Self> {
        let memory = LiveMemory::new(geometry, 0, &interface.name)?;
        let exit = Arc::new(Exit::by(interface)?);
        let program = load(&memory, &exit, Access::Calls)?;
        let config = LiveThreadConfig { exit, cpu: None, first_runs: FIRST_RUNS, waits: false };
        let running = LiveThread::start(program, &config, || Next::Sleep)?;
        let terms = Terms { asleep: AtomicBool::new(false), writer: AtomicUsize::new(NOWHERE) };
        let writer = LiveWriter::new(&memory, 0);
        Ok(Self { writer, memory, running, terms: Arc::new(terms), alone: false })
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn memory(&self) -> &LiveMemory {
        &self.memory
    }

    /// Ends it, as it is.
    ///
    /// # Errors
    /// Why it had ended before.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.running.end()
    }
}

/// Loads the ring's program.
pub(super) fn load(memory: &LiveMemory, exit: &Exit, access: Access) -> Result<LiveProgram> {
    let geometry = memory.geometry();
    let instructions = program(geometry, exit, access, memory).map_err(|fault| {
        Error::Usage(format!("a ring of this size has no program: use a smaller one: {fault}"))
    })?;
    LiveProgram::load(c"sluice_ring", &instructions, vec![0; geometry.most_bytes as usize])
}

/// What the thread knows of its work.
struct Feed {
    memory: Arc<LiveMemory>,
    terms: Arc<Terms>,
    /// The CPUs it chooses from; none where it is pinned to one, or there is but one.
    allowed: Option<Allowed>,
    /// The one that it keeps off.
    avoided: usize,
    /// On its CPU with the writer.
    alone: bool,
    /// The frames' length in the last run.
    bytes: usize,
}

impl Feed {
    /// What the thread does next: it sleeps when the program has found nothing for a while. On one
    /// CPU with the writer it makes no empty looks: in that time nothing could come.
    fn next(&mut self) -> Next {
        let Self { memory, terms, alone, .. } = self;
        let waiting = memory.waiting();
        if waiting == 0 && (*alone || memory.empty_looks() >= IDLE_LOOKS) {
            terms.asleep.store(true, Ordering::Relaxed);
            // Pairs with the fence in `publish`.
            fence(Ordering::SeqCst);
            if memory.waiting() == 0 {
                return Next::Sleep;
            }
            terms.asleep.store(false, Ordering::Relaxed);
        }
        // A frame that has the packet's length already spares the program a call, and one that is
        // too long is made shorter more cheaply than one that is too short longer.
        self.bytes = memory.longest_waiting().unwrap_or(self.bytes);
        if *alone {
            return Next::RunOn(memory.waiting().into(), self.bytes);
        }
        self.take_seat();
        Next::RunOn(u64::MAX, self.bytes)
    }

    /// Keeps off the writer's CPU. The thread does that itself, between two runs: during one it cannot
    /// be moved, and who wants it to be waits.
    fn take_seat(&mut self) {
        // Pairs with the store of `say_where`.
        let writer = self.terms.writer.load(Ordering::Relaxed);
        if let Some(allowed) = &self.allowed
            && std::mem::replace(&mut self.avoided, writer) != writer
        {
            allowed.but(writer);
        }
    }
}
