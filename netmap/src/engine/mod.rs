//! The engine: everything that netmap's kernel module does for a program, without a kernel module.
//!
//! It knows no socket, no process and no interposed call: a host opens an [`OpenFile`] for each open of
//! `/dev/netmap`, and passes on what the program asks for.
//!
//! ```text
//!   host: ioctl, mmap, poll            OpenFile: the rings that one file has bound      open_file, binding
//!                                        |
//!   program: netmap_if, netmap_ring,   Adapter: a port with its rings, shared by files  adapter, kring, ring
//!   slots, buffers in a Region           |
//!                                      PortDriver, a RingDriver for each ring:
//!                                        card, vale, pipe, monitor
//! ```
//!
//! A program may write anything into its region at any time: `memory.rs` has the only accesses to it, by value.
//!
//! Locks, from the outside in: the control lock (registering and closing), an adapter's list of rings, a transmit
//! ring, a receive ring, a monitor's ring. A sync takes the lock of its ring, and those of the rings that it
//! delivers to.

mod adapter;
mod binding;
mod card;
mod control;
mod indirect;
mod kring;
mod mapped_port;
mod memory;
mod monitor;
mod netmap_file;
mod open_file;
mod pipe;
mod region;
mod register;
mod ring;
mod sleepers;
mod vale;
mod wake;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use serde_json::Value;
use sluicegate::Error;

use control::Control;
pub use mapped_port::{MappedPort, MappedRing};
pub(crate) use memory::check_size;
pub use netmap_file::NetmapFile;
pub use open_file::OpenFile;
pub use sleepers::Sleeper;

/// How an engine treats ports.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// The kind of port that serves an interface; by default `Live` if there are at least 2N+2 CPUs for N transmit
    /// rings, otherwise `Xdp`.
    pub backend: Option<Backend>,
    /// The number of CPUs that the default backend counts on; by default those that the process may use.
    pub cpus: Option<u32>,
    /// The packets that a registered interface takes, as a pcap-filter expression; by default all. The host
    /// keeps the others.
    pub filter: Option<String>,
    /// Interfaces that may be registered without a filter although they carry the default route.
    pub allow: Vec<String>,
    /// The network namespace of interfaces, as `ip netns` names it; by default this process's.
    pub netns: Option<String>,
    /// Receives a line for each thing that the user should know, such as a fallback or the cause of an errno.
    pub log: Option<fn(&str)>,
}

impl EngineOptions {
    /// Logs a line.
    fn say(&self, line: fmt::Arguments<'_>) {
        if let Some(log) = self.log {
            log(&line.to_string());
        }
    }

    /// Logs an error. Returns its errno for the program.
    fn errno(&self, object: &str, error: &Error) -> Errno {
        self.say(format_args!("{object}: {error}"));
        Self::errno_of(error)
    }

    /// Returns the errno of an error for the program.
    fn errno_of(error: &Error) -> Errno {
        match error {
            Error::Privilege { .. } => Errno::EPERM,
            Error::Removed { .. } => Errno::ENXIO,
            Error::Unsupported { .. } => Errno::EOPNOTSUPP,
            Error::Usage(_) => Errno::EINVAL,
            Error::InUse(_) => Errno::EBUSY,
            // EINVAL would mean that the program's request is invalid.
            _ => match error.errno().map(Errno::from_raw) {
                // Another program has a queue's place.
                Some(Errno::EEXIST) => Errno::EBUSY,
                Some(errno) if errno != Errno::EINVAL => errno,
                _ => Errno::EIO,
            },
        }
    }
}

/// The kind of port that serves an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// AF_XDP receives and sends.
    Xdp,
    /// AF_XDP receives, live frames send.
    Live,
    /// Packet sockets: copies, and the host keeps its packets.
    Packet,
}

/// All regions, ports and switches of one host.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    control: Mutex<Control>,
}

impl Engine {
    /// Makes an engine without ports.
    pub fn new(options: EngineOptions) -> Arc<Self> {
        Arc::new(Self { options, control: Mutex::default() })
    }

    /// Opens a file, as open(2) of `/dev/netmap` does.
    pub fn open(self: &Arc<Self>) -> OpenFile {
        OpenFile::new(self)
    }

    /// Describes regions, ports, and rings with their cursors.
    pub fn list(&self) -> Value {
        self.control().list()
    }

    /// Returns the options.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Locks what registering and closing change.
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a port: what mmap(2) maps at offset 0.
#[derive(Clone, Debug)]
pub struct Region {
    /// The memory file.
    pub fd: Arc<OwnedFd>,
    /// Its size.
    pub bytes: u64,
}

/// The events that end a sleep of poll(2); valid for one sleep.
#[derive(Clone, Debug, Default)]
pub struct WaitSources {
    /// Descriptors, with the events to poll them for. They stay open as long as the file.
    pub descriptors: Vec<(RawFd, PollFlags)>,
    /// The longest sleep; None if a descriptor reports everything.
    pub longest: Option<Duration>,
}

impl WaitSources {
    /// Returns the descriptors for poll(2).
    #[allow(unsafe_code)]
    pub(crate) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.descriptors.iter().map(|&(fd, events)| {
            // SAFETY: the caller has the file, and the descriptors stay open as long as it.
            PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, events)
        })
    }

    /// Limits the sleep.
    pub(crate) fn limit(&mut self, limit: Duration) {
        self.longest = Some(self.longest.map_or(limit, |longest| longest.min(limit)));
    }
}
