//! The engine: everything that netmap's kernel module does for a program, without a kernel module.
//!
//! It knows no socket, no process and no interposed call: a host opens an [`OpenFile`] for each open of
//! `/dev/netmap`, and passes on what the program asks for.
//!
//! ```text
//!   host: ioctl, mmap, poll          OpenFile: what one open file has registered
//!                                      |
//!   region: interfaces, rings,       Adapter: a port with its rings, shared by its files
//!   buffers, mapped by the program     |
//!                                    a card, a host stack, a pipe, a port of a VALE switch
//! ```

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;

/// How an engine treats ports.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// The kind of port that serves an interface; by default the best that it offers.
    pub backend: Option<Backend>,
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
}

impl Engine {
    /// Makes an engine without ports.
    pub fn new(options: EngineOptions) -> Arc<Self> {
        Arc::new(Self { options })
    }

    /// Opens a file, as open(2) of `/dev/netmap` does.
    pub fn open(self: &Arc<Self>) -> OpenFile {
        OpenFile { engine: Arc::clone(self) }
    }

    /// Returns the options.
    pub fn options(&self) -> &EngineOptions {
        &self.options
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

/// One open of `/dev/netmap`. Dropping it is its last close.
#[derive(Debug)]
pub struct OpenFile {
    engine: Arc<Engine>,
}

impl OpenFile {
    /// Returns the memory of the registered port.
    ///
    /// # Errors
    /// EINVAL before a port is registered.
    pub fn region(&self) -> Result<Region, Errno> {
        Err(Errno::EINVAL)
    }

    /// Syncs the rings as netmap's poll does, and returns the events of these that are ready. Never sleeps.
    pub fn poll(&self, _events: PollFlags) -> PollFlags {
        PollFlags::POLLERR
    }

    /// Arms and returns the events that end a sleep. [`poll`](Self::poll) again after this call and before the sleep.
    pub fn wait(&self, _events: PollFlags) -> WaitSources {
        WaitSources::default()
    }

    /// NIOCTXSYNC: sends the packets that the program has released, and hands out room.
    ///
    /// # Errors
    /// ENXIO before a port is registered.
    pub fn txsync(&self) -> Result<(), Errno> {
        Err(Errno::ENXIO)
    }

    /// NIOCRXSYNC: takes back released slots, and hands out received packets.
    ///
    /// # Errors
    /// ENXIO before a port is registered.
    pub fn rxsync(&self) -> Result<(), Errno> {
        Err(Errno::ENXIO)
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}
