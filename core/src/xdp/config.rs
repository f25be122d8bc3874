//! What AF_XDP socket to open, and what comes of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_base::memory::Pool;

use super::open::Opening;
use super::receive::Receiver;
use super::send::Sender;
use super::socket::{LET_GO, XskSocket};
use super::umem::Umem;
use crate::error::{Error, Result};
use crate::filter::Frame;
use crate::filter::ebpf::Assembler;
use crate::link;

/// Most entries of a ring: far beyond use, far below overflow.
const MAX_ENTRIES: u32 = 1 << 20;

/// How packets come from the driver and go to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMode {
    /// The card reads and writes the frames.
    ZeroCopy,
    /// The kernel copies each packet; works with every driver.
    Copy,
}

impl BindMode {
    /// "zero-copy", "copy".
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
        }
    }
}

/// Polling the driver's queue from this side's calls instead of by interrupts (Linux 5.11). The
/// interface has to be told to wait with those, by `napi_defer_hard_irqs` and
/// `gro_flush_timeout`: a port does that, a socket by itself does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// SO_BUSY_POLL: microseconds that a call polls for.
    pub time_us: u32,
    /// SO_BUSY_POLL_BUDGET: packets that a call takes at most.
    pub budget_packets: u32,
}

/// What socket to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XskConfig {
    /// The interface's name.
    pub interface: String,
    /// Its network namespace, as `ip netns` names it; this thread's if none.
    pub netns: Option<String>,
    /// The queue's number, from 0.
    pub queue: u32,
    /// Frames to lend to the kernel for packets to come, out of the pool; 0 not to receive.
    pub receive_frames: u32,
    /// Slots of the transmit ring that it will serve; 0 not to send.
    pub send_slots: u32,
    /// The mode to use or none; without it zero-copy is tried first, then copy.
    pub mode: Option<BindMode>,
    /// Has the driver ask to be called rather than look by itself (Linux 5.4).
    pub need_wakeup: bool,
    /// Packets may have several frames (Linux 6.6, and a program that knows of it).
    pub multi_buffer: bool,
    /// Most pieces of a packet to send where the card reads them; as many as the driver takes
    /// (`xdp-zc-max-segs`) if none.
    pub zero_copy_pieces: Option<u32>,
    /// Busy polling, if wanted.
    pub busy_poll: Option<BusyPoll>,
    /// How long a queue that another socket has is tried again: one that has ended keeps its
    /// queue for a moment, nearly always less than the second that is the default.
    pub patience: Duration,
}

impl Default for XskConfig {
    fn default() -> Self {
        Self {
            interface: String::new(),
            netns: None,
            queue: 0,
            receive_frames: 2048,
            send_slots: 0,
            mode: None,
            need_wakeup: true,
            multi_buffer: false,
            zero_copy_pieces: None,
            busy_poll: None,
            patience: LET_GO,
        }
    }
}

/// A fallback from zero-copy to copy, for the user to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeFallback {
    /// What was tried.
    pub from: BindMode,
    /// What is used.
    pub to: BindMode,
    /// Why.
    pub reason: String,
    /// The kernel's own answer, where the reason leaves it out.
    pub detail: Option<String>,
}

/// An open socket and its two sides.
#[derive(Debug)]
pub struct Xsk {
    /// The socket itself.
    pub socket: Arc<XskSocket>,
    /// Where it receives.
    pub receiver: Option<Receiver>,
    /// Where it sends.
    pub sender: Option<Sender>,
    /// The mode in use.
    pub mode: BindMode,
    /// The mode that was tried before.
    pub fallback: Option<ModeFallback>,
}

impl XskConfig {
    /// Opens the socket, its frames out of `pool`. What the XSKMAP gets is its descriptor.
    ///
    /// # Errors
    /// A missing CAP_NET_RAW, no such interface or queue, a queue that another socket has, too
    /// few free buffers, a mode that was asked for and is not to be had.
    pub fn open(&self, pool: &Arc<Pool>) -> Result<Xsk> {
        let most = self.receive_frames.max(self.send_slots);
        if most == 0 || most > MAX_ENTRIES {
            return Err(Error::Usage(format!(
                "an AF_XDP socket with {} frames to receive and {} slots to send: use 1 to \
                 {MAX_ENTRIES} of one or both",
                self.receive_frames, self.send_slots
            )));
        }
        let umem = Umem::new(pool)?;
        let interface = link::interface(self.netns.as_deref(), &self.interface)?;
        let queues = interface.rx_queues.max(interface.tx_queues);
        if queues > 0 && self.queue >= queues {
            return Err(Error::Usage(format!(
                "{} has no queue {}: they are numbered from 0 to {}",
                self.interface,
                self.queue,
                queues - 1
            )));
        }
        Opening::new(self, umem, interface).run()
    }
}

/// A piece of program that looks at each packet of a port that only counts them (`xdp:` with
/// `action=drop` or `action=pass`), before it is counted. What it finds it leaves in maps of its own.
pub trait Inspect: fmt::Debug + Send + Sync {
    /// Writes the piece. It finds the registers of `frame` as they were loaded, and leaves them so;
    /// all others and the whole stack are free. It goes on behind itself.
    fn write(&self, asm: &mut Assembler, frame: &Frame);
}
