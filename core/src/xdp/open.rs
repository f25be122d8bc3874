//! Opening an AF_XDP socket: its configuration, the modes to try, and the steps up to the binding.
//!
//! The binding comes last, after the fill ring has frames, because a driver takes its first zero-copy
//! frames when the socket is bound.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_base::memory::Pool;

use super::receive::{RxRings, XskReceiver};
use super::resident::CAPABILITIES;
use super::ring::{RingSizes, Rings};
use super::send::{TxLimits, TxPath, XskSender};
use super::socket::{BindSettings, Probe, RELEASE_TIMEOUT, RETRY_INTERVAL, XskSocket};
use super::uapi::{TX_SKB_BUDGET, XDP_MAX_TX_SKB_BUDGET, raise_memory_lock};
use super::umem::{self, HEADER_BYTES, Umem};
use crate::error::{Error, Result};
use crate::link::{self, netns};
use crate::raw_socket::RawSocket;

/// Limit on the entries of a ring: far beyond use, far below overflow.
const MAX_ENTRIES: u32 = 1 << 20;
/// Maximum number of pieces of a packet that the kernel can send in copy mode: MAX_SKB_FRAGS (17) plus one
/// (net/xdp/xsk.c, xsk_build_skb).
const COPIED_PIECES: u32 = 18;
/// Frames for the fill ring of a zero-copy socket that only sends.
const SEND_ONLY_FRAMES: u32 = 64;
/// A generous estimate of the kernel's memory per packet besides its bytes.
const SKB_BYTES: u32 = 1024;

/// Remedy if zero-copy is not possible.
const USE_COPY: &str = ": use copy mode";

/// The capability for locking memory.
const LOCK: &str = "CAP_IPC_LOCK or a higher limit of locked memory";

/// How packets move between driver and frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMode {
    /// The card reads and writes the frames.
    ZeroCopy,
    /// The kernel copies each packet; works with every driver.
    Copy,
}

impl BindMode {
    /// Returns "zero-copy" or "copy".
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
        }
    }
}

/// Busy polling: system calls of this process poll the driver's queue in place of interrupts (Linux 5.11).
/// It needs `napi_defer_hard_irqs` and `gro_flush_timeout` on the interface: a port sets them, a socket
/// does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// SO_BUSY_POLL: maximum duration of a call's polling in microseconds.
    pub time_us: u32,
    /// SO_BUSY_POLL_BUDGET: maximum number of packets that a call takes.
    pub budget_packets: u32,
}

/// Configuration of an AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XskConfig {
    /// Name of the interface.
    pub interface: String,
    /// Name of its network namespace (`ip netns`); this thread's if none.
    pub netns: Option<String>,
    /// Number of the queue, from 0.
    pub queue: u32,
    /// Number of frames of the pool to lend to the kernel for receiving; 0 not to receive.
    pub receive_frames: u32,
    /// Number of slots of the transmit ring to serve; 0 not to send.
    pub send_slots: u32,
    /// The only mode to try. If none, zero-copy is tried first, then copy.
    pub mode: Option<BindMode>,
    /// Packets may span several frames (Linux 6.6, and a program that supports it).
    pub multi_buffer: bool,
    /// Busy polling, if wanted.
    pub busy_poll: Option<BusyPoll>,
    /// How long to retry while another socket has the queue. A closed socket keeps its queue for a
    /// moment, nearly always less than the default of a second.
    pub busy_timeout: Duration,
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
            multi_buffer: false,
            busy_poll: None,
            busy_timeout: RELEASE_TIMEOUT,
        }
    }
}

/// A fallback from zero-copy to copy, for the user to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeFallback {
    /// The mode that failed.
    pub from: BindMode,
    /// The mode in use.
    pub to: BindMode,
    /// The reason.
    pub reason: String,
    /// The kernel's error, if the reason leaves it out.
    pub detail: Option<String>,
}

/// An open socket and its two sides.
#[derive(Debug)]
pub struct Xsk {
    /// The socket itself.
    pub socket: Arc<XskSocket>,
    /// The receiving side, if it receives.
    pub receiver: Option<XskReceiver>,
    /// The sending side, if it sends.
    pub sender: Option<XskSender>,
    /// The mode in use.
    pub mode: BindMode,
    /// The fallback to that mode, if another was tried first.
    pub fallback: Option<ModeFallback>,
}

impl XskConfig {
    /// Opens the socket with frames of `pool`.
    ///
    /// # Errors
    /// A missing CAP_NET_RAW, no such interface or queue, a queue that another socket has, too few free
    /// buffers, or an unsupported mode.
    pub fn open(&self, pool: &Arc<Pool>) -> Result<Xsk> {
        if !(1..=MAX_ENTRIES).contains(&self.receive_frames.max(self.send_slots)) {
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
        Opening { config: self, umem, interface }.run()
    }
}

/// Failure of one attempt.
#[derive(Debug)]
enum OpenFailure {
    /// The binding was refused.
    Bind(io::Error),
    /// A step before the binding failed.
    Other(Error),
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl OpenFailure {
    /// Returns true if another mode may succeed. The next mode may find a UMEM to share, which locks no
    /// more memory.
    fn is_of_mode(&self) -> bool {
        match self {
            Self::Bind(_) | Self::Other(Error::Unsupported { .. }) => true,
            Self::Other(Error::Privilege { capability, .. }) => *capability == LOCK,
            Self::Other(_) => false,
        }
    }

    fn is_busy(&self) -> bool {
        matches!(self, Self::Bind(error) if error.raw_os_error() == Some(libc::EBUSY))
    }
}

/// A bound socket without its two sides.
struct Bound {
    fd: RawSocket,
    probe: Option<Probe>,
    rx: Option<RxRings>,
    tx: Option<TxPath>,
    /// Frames in the fill ring of a socket that does not receive.
    fed: Vec<u32>,
}

/// A configuration that is being opened.
struct Opening<'a> {
    config: &'a XskConfig,
    umem: Umem,
    interface: link::Interface,
}

impl Opening<'_> {
    fn run(&self) -> Result<Xsk> {
        let timeout = self.config.busy_timeout;
        if let Some(mode) = self.config.mode {
            return self.in_mode(mode, timeout).map_err(|failure| self.explain(mode, failure));
        }
        let (best, next) = (BindMode::ZeroCopy, BindMode::Copy);
        let failure = match self.in_mode(best, timeout) {
            Ok(xsk) => return Ok(xsk),
            Err(failure) if failure.is_of_mode() => failure,
            Err(failure) => return Err(self.explain(best, failure)),
        };
        // The first attempt has waited for a busy queue already.
        let timeout = if failure.is_busy() { Duration::ZERO } else { timeout };
        let mut xsk = self.in_mode(next, timeout).map_err(|failure| self.explain(next, failure))?;
        let detail = match &failure {
            OpenFailure::Bind(error) => Some(format!("bind: {error}")),
            OpenFailure::Other(_) => None,
        };
        let (reason, detail) = match self.explain(best, failure) {
            // Most drivers have no zero-copy: the errno adds no information.
            Error::Unsupported { remedy, .. } => {
                (remedy.strip_suffix(USE_COPY).unwrap_or(&remedy).to_owned(), detail)
            }
            error => (error.to_string(), None),
        };
        xsk.fallback = Some(ModeFallback { from: best, to: next, reason, detail });
        Ok(xsk)
    }

    /// Opens in one mode, and retries a busy queue until the timeout.
    fn in_mode(&self, mode: BindMode, timeout: Duration) -> Result<Xsk, OpenFailure> {
        let end = Instant::now() + timeout;
        if mode == BindMode::ZeroCopy && self.config.receive_frames > 0 {
            let (netns, bytes) = (self.config.netns.as_deref(), self.umem.pool().buffer_bytes());
            if let Some(remedy) =
                umem::too_small(bytes, netns, &self.interface.name, self.interface.mtu)
            {
                return Err(self.lacks(mode, remedy).into());
            }
        }
        loop {
            match self.attempt(mode) {
                Err(failure) if failure.is_busy() && Instant::now() < end => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                result => return result,
            }
        }
    }

    /// Makes one attempt: with the UMEM of a socket of this pool with the same settings, or a new one.
    fn attempt(&self, mode: BindMode) -> Result<Xsk, OpenFailure> {
        let settings = BindSettings {
            zero_copy: mode == BindMode::ZeroCopy,
            multi_buffer: self.config.multi_buffer,
        };
        // The donor stays open until the new socket is bound.
        let donor = XskSocket::donor(self.umem.pool(), settings);
        let shared = donor.map(|donor| self.bind(settings, Some(donor.as_raw_fd())));
        let Bound { fd, probe, rx, tx, fed } = match shared {
            Some(Ok(bound)) => bound,
            Some(Err(failure @ OpenFailure::Other(_))) => return Err(failure),
            // A new UMEM may succeed: the donor's interface may have been removed.
            Some(Err(_)) | None => self.bind(settings, None)?,
        };
        // From here on nothing may fail, because the kernel has frames.
        let zero_copy = match fd.get::<libc::xdp_options>(libc::SOL_XDP, libc::XDP_OPTIONS) {
            Ok((options, _)) => options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
            // A socket binds in the requested mode or not at all.
            Err(_) => settings.zero_copy,
        };
        let settings = BindSettings { zero_copy, ..settings };
        let busy_poll = self.config.busy_poll.is_some();
        let socket =
            XskSocket::new(fd, self.umem.pool(), settings, probe, busy_poll, self.object());
        socket.keep(fed);
        let receiver = rx.map(|rx| XskReceiver::new(rx, &socket));
        let sender = tx.map(|tx| XskSender::new(tx, &socket));
        Ok(Xsk { socket, receiver, sender, mode, fallback: None })
    }

    /// Binds a socket with its rings. The binding comes last: if a step before it fails, the kernel has
    /// no frames.
    fn bind(&self, settings: BindSettings, donor: Option<RawFd>) -> Result<Bound, OpenFailure> {
        let fd = self.socket()?;
        let (ifindex, queue) = (self.interface.index, self.config.queue);
        let probe = match settings.zero_copy {
            true => Some(Probe { fd: self.socket()?, ifindex, queue }),
            false => None,
        };
        if donor.is_none() {
            self.register(&fd)?;
        }
        let XskConfig { receive_frames, send_slots, .. } = *self.config;
        // Some drivers send with zero-copy only if they have frames to receive into.
        let fill_frames = match receive_frames {
            0 if settings.zero_copy => SEND_ONLY_FRAMES,
            frames => frames,
        };
        let sizes = RingSizes { fill_frames, receive_frames, send_slots };
        let Rings { fill, receive, transmit, completion } =
            Rings::create(&fd, sizes, &self.object())?;
        if send_slots > 0 {
            self.make_room_to_send(&fd);
        }
        let limits = self.limits(settings);
        let tx = transmit
            .zip(completion)
            .map(|(transmit, completion)| TxPath::new(&self.umem, transmit, completion, limits));
        let mut fed = self.umem.pool().take(fill_frames as usize)?;
        let mut rx = None;
        match (receive, fill) {
            (Some(receive), Some(fill)) => {
                rx = Some(RxRings::new(&self.umem, receive, fill, std::mem::take(&mut fed)));
            }
            (_, Some(mut fill)) => {
                let n = fill.reserve(fed.len() as u32);
                (0..n).zip(&fed).for_each(|(i, &it)| fill.write(i, self.umem.address(it, 0)));
                fill.submit(n);
            }
            (_, None) => {}
        }
        // A shared UMEM has the donor's other flags, and the kernel rejects any here.
        let flags = if donor.is_some() { libc::XDP_SHARED_UMEM } else { flags(settings) };
        if let Err(error) = fd.bind_xdp(ifindex, queue, flags, donor) {
            fed.extend(rx.iter_mut().flat_map(RxRings::take_frames));
            // SAFETY: taken above, and the kernel does not write to frames of a socket that is not bound.
            #[allow(unsafe_code, reason = "buffers change hands by number")]
            unsafe {
                self.umem.pool().give(fed)
            };
            return Err(OpenFailure::Bind(error));
        }
        Ok(Bound { fd, probe, rx, tx, fed })
    }

    fn limits(&self, settings: BindSettings) -> TxLimits {
        let slots = match (settings.multi_buffer, settings.zero_copy) {
            (false, _) => 1,
            // Every driver accepts packets of one piece.
            (true, true) => self.abilities().and_then(|it| it.zero_copy_pieces).unwrap_or(1),
            (true, false) => COPIED_PIECES,
        };
        TxLimits { bytes: self.interface.mtu.saturating_add(HEADER_BYTES), slots }
    }

    /// Enlarges the send buffer, which limits packets in copy mode, to the ring's size. Makes the kernel
    /// send up to 256 packets per call in place of 32. Both are optional: kernels before 6.17 lack the
    /// second option, and zero-copy drivers have no use for it.
    fn make_room_to_send(&self, fd: &RawSocket) {
        let each = self.umem.pool().buffer_bytes() + SKB_BYTES;
        let bytes = self.config.send_slots.saturating_mul(each).min(i32::MAX as u32 / 2);
        let forced = fd.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes);
        let _ = forced.or_else(|_| fd.set(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes));
        let budget = self.config.send_slots.next_power_of_two().min(TX_SKB_BUDGET);
        let _ = fd.set(libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, budget);
    }

    /// Opens a socket in the interface's namespace, with its options.
    fn socket(&self) -> Result<RawSocket> {
        let fd = netns::run_in(self.config.netns.as_deref(), || {
            RawSocket::open(libc::AF_XDP).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Error::Privilege {
                    operation: format!("opening an AF_XDP socket on {}", self.object()),
                    capability: CAPABILITIES,
                    remedy: "run it with sudo, or use a packet: port".into(),
                },
                Some(libc::EAFNOSUPPORT) => Error::Unsupported {
                    feature: "AF_XDP".into(),
                    remedy: "use a kernel with CONFIG_XDP_SOCKETS, or a packet: port".into(),
                },
                _ => self.system("open", error),
            })
        })?;
        if let Some(BusyPoll { time_us, budget_packets }) = self.config.busy_poll {
            for (option, value) in [
                (libc::SO_PREFER_BUSY_POLL, 1),
                (libc::SO_BUSY_POLL, time_us),
                (libc::SO_BUSY_POLL_BUDGET, budget_packets),
            ] {
                fd.set(libc::SOL_SOCKET, option, value).map_err(|e| {
                    self.system("set busy polling on", e)
                        .remedy("it needs Linux 5.11 and CAP_NET_ADMIN")
                })?;
            }
        }
        Ok(fd)
    }

    /// Registers the pool as UMEM. The pages count as locked memory: a low limit is raised if allowed. A
    /// UMEM that was released, such as the last attempt's, counts for a moment longer.
    fn register(&self, fd: &RawSocket) -> Result<()> {
        let register = || fd.set(libc::SOL_XDP, libc::XDP_UMEM_REG, self.umem.registration());
        let mut result = register();
        if result.as_ref().is_err_and(is_locked_memory_limit) {
            raise_memory_lock();
            result = register();
        }
        let end = Instant::now() + RELEASE_TIMEOUT;
        while result.as_ref().is_err_and(is_locked_memory_limit) && Instant::now() < end {
            std::thread::sleep(RETRY_INTERVAL);
            result = register();
        }
        result.map_err(|error| match is_locked_memory_limit(&error) {
            true => Error::Privilege {
                operation: format!(
                    "locking {} KiB of packet buffers for {} ({error})",
                    self.umem.bytes() / 1024,
                    self.object()
                ),
                capability: LOCK,
                remedy:
                    "raise the limit (ulimit -l, LimitMEMLOCK= of a service), give the program \
                         the capability, or take fewer ring_size="
                        .into(),
            },
            false => self.system("register the packet buffers for", error),
        })
    }

    /// Turns a failure into an error with its cause and a remedy.
    fn explain(&self, mode: BindMode, failure: OpenFailure) -> Error {
        let error = match failure {
            OpenFailure::Bind(error) => error,
            OpenFailure::Other(error) => return error,
        };
        let Self { config, interface, .. } = self;
        let zero_copy = mode == BindMode::ZeroCopy;
        let remedy = match error.raw_os_error() {
            Some(libc::EBUSY) => format!(
                "another socket has queue {} of {}: `ss --xdp --processes`, in the interface's \
                 network namespace, shows whose",
                config.queue, config.interface
            ),
            Some(libc::EOPNOTSUPP) => {
                let pieces = self.abilities().and_then(|it| it.zero_copy_pieces);
                return self.lacks(mode, no_zero_copy(config.multi_buffer, pieces, interface.mtu));
            }
            Some(libc::EINVAL) if zero_copy => {
                return self.lacks(mode, format!(
                    "the driver refuses zero-copy, because an MTU of {} is too much for one buffer, the \
                     queue is not in use (ethtool -l), or it has no room for queues of its own{USE_COPY}",
                    interface.mtu
                ));
            }
            Some(libc::EINVAL) if config.multi_buffer => {
                return self.lacks(
                    mode,
                    "packets of several buffers need Linux 6.6; or the queue is not in use \
                     (ethtool -l)"
                        .into(),
                );
            }
            Some(libc::EINVAL) => "the queue is not in use: ethtool -l shows how many are".into(),
            Some(libc::ENOMEM) => "the kernel or the card has no memory for it".into(),
            Some(libc::ENODEV) => {
                return Error::Removed {
                    object: self.object(),
                    remedy: "the interface was removed just now: try again".into(),
                };
            }
            Some(libc::ENETDOWN) => "the interface is down: bring it up".into(),
            _ => String::new(),
        };
        Error::system("bind", format!("{} in {} mode", self.object(), mode.name()), error)
            .remedy(remedy)
    }

    fn lacks(&self, mode: BindMode, remedy: String) -> Error {
        let feature = format!("{} mode on {}", mode.name(), self.object());
        Error::Unsupported { feature, remedy }
    }

    /// Returns the driver's abilities, if the kernel reports them.
    fn abilities(&self) -> Option<link::XdpAbilities> {
        link::xdp_abilities(self.config.netns.as_deref(), &self.interface).ok().flatten()
    }

    fn object(&self) -> String {
        format!("{}/{}", self.config.interface, self.config.queue)
    }

    fn system(&self, operation: &'static str, error: io::Error) -> Error {
        Error::system(operation, self.object(), error)
    }
}

/// Describes why zero-copy failed; `pieces` is the driver's limit on the pieces of a packet.
fn no_zero_copy(multi_buffer: bool, pieces: Option<u32>, mtu: u32) -> String {
    match pieces {
        Some(1) if multi_buffer => format!(
            "the driver's zero-copy is for packets of one buffer (its xdp-zc-max-segs is 1), and an \
             MTU of {mtu} takes several; a lower MTU would do{USE_COPY}"
        ),
        _ => format!("the driver has no zero-copy{USE_COPY}"),
    }
}

/// Returns true if the kernel refused to lock more memory.
fn is_locked_memory_limit(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EPERM))
}

fn flags(settings: BindSettings) -> u16 {
    let mode = if settings.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let several = if settings.multi_buffer { libc::XDP_USE_SG } else { 0 };
    // Drivers request wake-up calls in place of polling by themselves (Linux 5.4).
    mode | several | libc::XDP_USE_NEED_WAKEUP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_no_zero_copy_follows_from_the_drivers_abilities() {
        let rows = [
            (false, None, "has no zero-copy", "veth"),
            (true, None, "has no zero-copy", "veth with jumbo frames"),
            (true, Some(1), "is for packets of one buffer", "a driver without several buffers"),
            (true, Some(8), "has no zero-copy", "one with them, that refuses all the same"),
            (false, Some(1), "has no zero-copy", "several are not wanted"),
        ];
        for (multi_buffer, pieces, expected, why) in rows {
            let text = no_zero_copy(multi_buffer, pieces, 9000);
            assert!(text.contains(expected), "{why}: {text}");
        }
    }
}
