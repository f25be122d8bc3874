//! Live frames: packets that a program makes in the kernel and that are sent at once, without a
//! socket (BPF_PROG_RUN with `BPF_F_TEST_XDP_LIVE_FRAMES`; Linux 5.18, CAP_BPF and CAP_NET_ADMIN).
//!
//! ```text
//!   Maker::run: pages of a pool ---> program writes a packet ---> XDP_REDIRECT ---> interface
//!                     ^                         |                                       |
//!                     |                         `--- XDP_DROP: not yet                  |
//!                     `-----------------------------------------------------------------'
//! ```
//!
//! A run sets up a pool of pages, which takes milliseconds, and then goes on for up to 2³² packets.
//! A signal ends it: [`Running::end`] sends one to the thread that runs.
//!
//! Sources: net/bpf/test_run.c (`xdp_test_run_batch`), Documentation/bpf/bpf_prog_run.rst.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::bpf;
use crate::error::{Error, Result};
use crate::filter::ebpf::{Insn, xdp_action};
use crate::link::pin_thread;
use crate::memory::{Mmap, PAGE_BYTES};

/// Frames between two looks at whether a signal came. 256 can be had, but no more speed.
const BATCH: u32 = 64;
/// Interrupts the system call and does nothing else. Without a handler it is ignored; few have one.
const SIGNAL: Signal = Signal::SIGURG;
/// How often a thread is told to end its run: it may just be about to begin.
const INSIST: Duration = Duration::from_millis(1);

/// Memory that a program and this process share: numbers of 64 bits, as the value of an array map
/// with one entry.
pub struct Sheet {
    map: OwnedFd,
    memory: Mmap,
    words: usize,
}

impl Sheet {
    /// Makes one that holds these numbers.
    ///
    /// # Errors
    /// The kernel has no memory for it; a missing privilege.
    pub fn new(words: &[u64]) -> Result<Self> {
        let failed = |error| super::resident::privileged(error, "make a map for", "live frames");
        let bytes = size_of_val(words).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let map = bpf::create_mapped_array(c"sluice_live", bytes as u32, 1).map_err(failed)?;
        let memory = Mmap::shared(map.as_fd(), bytes).map_err(failed)?;
        let sheet = Self { map, memory, words: bytes / 8 };
        for (index, &word) in words.iter().enumerate() {
            sheet.set(index, word);
        }
        Ok(sheet)
    }

    /// The number at an index.
    ///
    /// # Panics
    /// If it is beyond the sheet.
    pub fn get(&self, index: usize) -> u64 {
        // Pairs with the program's plain stores: it has one writer, and nothing else follows from
        // what is read.
        self.word(index).load(Ordering::Relaxed)
    }

    /// Changes the number at an index.
    ///
    /// # Panics
    /// If it is beyond the sheet.
    pub fn set(&self, index: usize, number: u64) {
        // Pairs with the program's plain loads, as above.
        self.word(index).store(number, Ordering::Relaxed);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the address is in the mapping, which lives as long as the answer, and aligned;
        // everybody here accesses it atomically, and the program, on another CPU, by whole words.
        unsafe { AtomicU64::from_ptr(self.memory.at(index * 8).cast().as_ptr()) }
    }
}

impl AsFd for Sheet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl fmt::Debug for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sheet").field("words", &self.words).finish_non_exhaustive()
    }
}

/// A program that makes packets.
#[derive(Debug)]
pub struct Maker {
    program: OwnedFd,
    frame: Vec<u8>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All its packets are made.
    Done,
    /// A signal came.
    Interrupted,
}

impl Maker {
    /// Loads a program. `frame` is what lies in the frames before it runs on them the first time.
    ///
    /// # Errors
    /// The kernel does not take the program, or a privilege is missing.
    pub fn load(name: &CStr, instructions: &[Insn], frame: Vec<u8>) -> Result<Self> {
        let program = bpf::load(name, instructions, false).map_err(|refused| {
            match refused.said.as_str() {
                "" => {
                    super::resident::privileged(refused.error, "load a program for", "live frames")
                }
                // It refuses with the number of a missing privilege.
                said => Error::Unsupported {
                    feature: "a program for these live frames".into(),
                    remedy: format!("send by another method; the kernel's verifier says: {said}"),
                },
            }
        })?;
        Ok(Self { program, frame })
    }

    /// The next packet, which is not sent.
    ///
    /// # Errors
    /// The program refused to make it.
    pub fn once(&self) -> Result<Vec<u8>> {
        let failed = |error| Error::system("make", "a packet", error);
        let (answer, packet) = bpf::run(self.program.as_fd(), &self.frame).map_err(failed)?;
        match answer {
            xdp_action::REDIRECT => Ok(packet),
            _ => Err(failed(io::Error::other(format!("the program answered {answer}")))),
        }
    }

    /// Runs the program `times` times, or until a signal comes: to this thread.
    ///
    /// # Errors
    /// The kernel has no live frames, or none as long as this.
    pub fn run(&self, times: u32) -> Result<Ended> {
        match bpf::run_live(self.program.as_fd(), &self.frame, times, BATCH) {
            Ok(()) => Ok(Ended::Done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Ended::Interrupted),
            Err(error) => {
                let too_long =
                    self.frame.len() > 3000 && error.raw_os_error() == Some(libc::EINVAL);
                let remedy = match too_long {
                    true => "live frames have one page: send shorter ones, or by another method",
                    false => "live frames need Linux 5.18: send by another method",
                };
                let error = super::resident::privileged(error, "send", "live frames");
                Err(error.remedy(remedy))
            }
        }
    }
}

/// A thread that runs a maker: until it is told to end, or has made all its packets.
#[derive(Debug)]
pub struct Running {
    /// Until it is joined.
    thread: Option<JoinHandle<Result<()>>>,
    ends: Arc<AtomicBool>,
}

impl Running {
    /// Starts it, pinned to a CPU if there is one given. It makes `packets` packets, or endlessly
    /// many.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(maker: Maker, packets: Option<u64>, cpu: Option<usize>) -> Result<Self> {
        let failed = |error| Error::system("start", "a thread for live frames", error);
        receive_signal().map_err(|error| failed(error.into()))?;
        let ends = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&ends);
        let name = std::thread::Builder::new().name("live".into());
        let thread = name.spawn(move || {
            SigSet::from(SIGNAL)
                .thread_unblock()
                .map_err(|error| Error::system("take", "signals", error))?;
            if let Some(cpu) = cpu {
                pin_thread(cpu)?;
            }
            run(&maker, packets, &ending)
        });
        Ok(Self { thread: Some(thread.map_err(failed)?), ends })
    }

    /// Whether it has ended, for whatever reason.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it, and waits for that: a millisecond or two.
    ///
    /// # Errors
    /// Why it ended before, if it failed; said once.
    pub fn end(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Pairs with the thread's load; the signal orders the two.
        self.ends.store(true, Ordering::Release);
        while !thread.is_finished() {
            // The thread is not joined, so its number is still its own; one that has just ended
            // need not be told.
            let _ = pthread_kill(thread.as_pthread_t(), SIGNAL);
            std::thread::sleep(INSIST);
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever drops it does not ask how it went.
        let _ = self.end();
    }
}

fn run(maker: &Maker, packets: Option<u64>, ends: &AtomicBool) -> Result<()> {
    let mut left = packets;
    // Pairs with the store of `end`.
    while !ends.load(Ordering::Acquire) && left != Some(0) {
        let times = left.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
        match maker.run(times)? {
            // How far it came only the program knows. So one with a number of packets ends here,
            // also when another signal came: none too many are sent.
            Ended::Interrupted if left.is_some() => break,
            Ended::Interrupted => {}
            Ended::Done => left = left.map(|left| left - u64::from(times)),
        }
    }
    Ok(())
}

/// Has the signal interrupt system calls, from now on, and nothing else.
fn receive_signal() -> nix::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    static ONCE: Mutex<bool> = Mutex::new(false);
    let mut done = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        // No SA_RESTART: the call is to end.
        let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing, which a signal handler may do.
        unsafe { sigaction(SIGNAL, &action) }?;
        *done = true;
    }
    Ok(())
}
