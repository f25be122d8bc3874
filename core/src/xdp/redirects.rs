//! Counts the fate of the frames that XDP redirected for this process.
//!
//! A program that redirects a frame does not learn its fate, and an interface's counters include all
//! packets. The kernel's tracepoints report it, once per bulk of at most 16 frames, to the programs of
//! `bpf/redirects.bpf.c`. They are attached while this process has a [`RedirectSender`], which reads its
//! own counters.
//!
//! ```text
//!   live frames: thread --mark--> sluice_threads --+
//!                exit ----------> sluice_exits ----+--> sender's number --> sluice_counts, mapped
//!   forwarding:  interfaces ----> sluice_paths ----+
//! ```
//!
//! Needs Linux 5.13 with BTF, CAP_BPF and CAP_PERFMON. It lowers the rate of live frames by some 4 %.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{fmt, fs, io};

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput as Input,
};

use super::bpf::{self, SharedCounters};

/// The compiled `bpf/redirects.bpf.c`.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redirects.bpf.o"));

// As in bpf/redirects.bpf.c.
const MAX_SENDERS: u32 = 4096;
const WORDS: usize = 8;
/// The program that marks a thread, the only one that is not attached.
const MARK: &str = "sluice_mark";

/// Redirected frames by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirectCounts {
    /// The driver accepted them.
    pub sent: u64,
    /// The driver had no room for them.
    pub dropped: u64,
    /// They were longer than the interface's MTU allows (EMSGSIZE).
    pub too_long: u64,
    /// The interface was down (ENETDOWN).
    pub down: u64,
    /// The driver takes no redirected frames at present (ENXIO, EOPNOTSUPP): a veth whose far end has no
    /// NAPI, a closed TAP device, a card without an XDP program.
    pub unsupported: u64,
    /// The kernel or the driver refused them for another reason.
    pub failed: u64,
    /// The interface had been removed.
    pub removed: u64,
}

impl RedirectCounts {
    /// Returns the number of frames with a known fate.
    pub fn total(&self) -> u64 {
        self.sent + self.lost()
    }

    /// Returns the number of frames that were not sent.
    pub fn lost(&self) -> u64 {
        self.dropped + self.too_long + self.down + self.unsupported + self.failed + self.removed
    }

    /// Returns the number of frames that the kernel or the driver refused; one without room accepted and dropped
    /// them.
    pub fn refused(&self) -> u64 {
        self.lost() - self.dropped
    }

    /// Returns the sum of two counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            dropped: self.dropped + other.dropped,
            too_long: self.too_long + other.too_long,
            down: self.down + other.down,
            unsupported: self.unsupported + other.unsupported,
            failed: self.failed + other.failed,
            removed: self.removed + other.removed,
        }
    }
}

/// The attached programs, shared by all senders of this process.
struct Redirects {
    object: Object,
    _links: Vec<Link>,
    counts: SharedCounters,
    paths: MapHandle,
    exits: MapHandle,
    free: Mutex<Vec<u32>>,
}

impl Redirects {
    /// Returns the instance of this process, and attaches it if no sender exists yet.
    fn shared() -> io::Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Redirects>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(redirects) = shared.upgrade() {
            return Ok(redirects);
        }
        let redirects = Arc::new(Self::attach()?);
        *shared = Arc::downgrade(&redirects);
        Ok(redirects)
    }

    fn attach() -> io::Result<Self> {
        bpf::silence_libbpf();
        let object = ObjectBuilder::default().open_memory(OBJECT).map_err(io::Error::other)?;
        let object = object.load().map_err(io::Error::other)?;
        let traced = object.progs_mut().filter(|program| program.name() != MARK);
        let links = traced.map(|program| program.attach()).collect::<Result<_, _>>();
        let counts = bpf::map_in(&object, "sluice_counts")?;
        if counts.value_size() as usize != WORDS * 8 || counts.max_entries() != MAX_SENDERS {
            return Err(io::Error::other("bpf/redirects.bpf.c has another layout"));
        }
        let counts = counts.as_fd().try_clone_to_owned()?;
        Ok(Self {
            _links: links.map_err(io::Error::other)?,
            counts: SharedCounters::over(counts, MAX_SENDERS as usize * WORDS)?,
            paths: bpf::map_in(&object, "sluice_paths")?,
            exits: bpf::map_in(&object, "sluice_exits")?,
            object,
            free: Mutex::new((0..MAX_SENDERS).rev().collect()),
        })
    }

    /// Marks the calling thread as a sender's, or removes its mark.
    fn mark(&self, sender: Option<u32>) -> io::Result<()> {
        let program = self.object.progs_mut().find(|program| program.name() == MARK);
        let program = program.ok_or_else(|| io::Error::other("no program to mark a thread"))?;
        let mut number = sender.map_or(u64::MAX, u64::from).to_ne_bytes();
        let input = Input { context_in: Some(&mut number), ..Input::default() };
        let output = program.test_run(input).map_err(io::Error::other)?;
        match output.return_value.cast_signed() {
            0.. => Ok(()),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

impl fmt::Debug for Redirects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redirects").finish_non_exhaustive()
    }
}

/// A sender of redirected frames, and its counters.
#[derive(Debug)]
pub(crate) struct RedirectSender {
    redirects: Arc<Redirects>,
    number: u32,
    exit: [u8; 8],
    path: Option<[u8; 12]>,
}

impl RedirectSender {
    /// Creates a sender that redirects by a DEVMAP entry.
    ///
    /// # Errors
    /// A missing capability; a kernel without BTF or with other tracepoints; 4096 senders exist.
    pub(crate) fn new(map: BorrowedFd<'_>, key: u32) -> io::Result<Self> {
        let redirects = Redirects::shared()?;
        let exit = bytes([bpf::map_id(map)?, key]);
        let number = {
            let mut free = redirects.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.pop().ok_or_else(|| io::Error::other("4096 senders exist already"))?
        };
        // From here on, dropping the sender returns the number.
        let sender = Self { redirects, number, exit, path: None };
        for word in 0..WORDS {
            sender.redirects.counts.set(sender.word(word), 0);
        }
        let added = sender.redirects.exits.update(&exit, &number.to_ne_bytes(), MapFlags::ANY);
        added.map(|()| sender).map_err(io::Error::other)
    }

    /// Counts frames forwarded between two interfaces of this thread's network namespace, also those of other
    /// programs: one bulk holds frames of all.
    ///
    /// # Errors
    /// Another sender of this process already forwards between the two.
    pub(crate) fn forwards(&mut self, from: u32, to: u32) -> io::Result<()> {
        let netns = fs::metadata("/proc/thread-self/ns/net")?.ino() as u32;
        let path = bytes([netns, from, to]);
        let number = self.number.to_ne_bytes();
        self.redirects
            .paths
            .update(&path, &number, MapFlags::NO_EXIST)
            .map_err(io::Error::other)?;
        self.path = Some(path);
        Ok(())
    }

    /// Counts the live frames of the calling thread until that thread drops the mark.
    ///
    /// # Errors
    /// A missing capability.
    pub(crate) fn mark_thread(self: &Arc<Self>) -> io::Result<ThreadMark> {
        self.redirects.mark(Some(self.number))?;
        Ok(ThreadMark(Arc::clone(self)))
    }

    /// Returns the fate of the sender's frames.
    pub(crate) fn counts(&self) -> RedirectCounts {
        let [sent, dropped, too_long, down, unsupported, failed] =
            [0, 1, 2, 3, 4, 5].map(|word| self.redirects.counts.get(self.word(word)));
        RedirectCounts { sent, dropped, too_long, down, unsupported, failed, removed: 0 }
    }

    fn word(&self, word: usize) -> usize {
        self.number as usize * WORDS + word
    }
}

impl Drop for RedirectSender {
    fn drop(&mut self) {
        let Self { redirects, number, exit, path } = self;
        // Without privileges the entries stay until the process exits; the number is not reused.
        let is_absent = |deleted: libbpf_rs::Result<()>| match deleted {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        let exit_absent = is_absent(redirects.exits.delete(exit));
        if path.is_none_or(|path| is_absent(redirects.paths.delete(&path))) && exit_absent {
            redirects.free.lock().unwrap_or_else(PoisonError::into_inner).push(*number);
        }
    }
}

/// The mark of a thread that sends live frames.
#[derive(Debug)]
pub(crate) struct ThreadMark(Arc<RedirectSender>);

impl Drop for ThreadMark {
    fn drop(&mut self) {
        // A mark that stays does no harm, because the thread ends.
        let _ = self.0.redirects.mark(None);
    }
}

fn bytes<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
