//! Opening: socket, UMEM or a share in one, rings, frames in the fill ring, and only then the
//! binding, for a driver that works without copying takes its first frames there.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Descriptor, raise_memory_lock};
use super::config::{BindMode, BusyPoll, ModeFallback, Xsk, XskConfig};
use super::frame_size::{self, HEADER_BYTES};
use super::receive::{Receiver, RxRings};
use super::ring::{Rings, Sizes};
use super::send::{Limits, Sender, TxPath};
use super::socket::{Binding, LET_GO, LOOK_AGAIN, XskSocket};
use super::uapi;
use super::umem::{self, Traits, Umem};
use crate::error::{Error, Result};
use crate::link::{self, netns};

/// Pieces of a packet that the kernel can send where it copies: MAX_SKB_FRAGS (17), and one
/// (net/xdp/xsk.c, xsk_build_skb).
const COPIED_PIECES: u32 = 18;
/// Frames that a socket gets which only sends, without copying.
const SEND_ONLY_FRAMES: u32 = 64;
/// What the kernel spends on a packet besides its bytes, generously.
const SKB_BYTES: u32 = 1024;

/// What to do where zero-copy cannot be had.
const USE_COPY: &str = ": use copy mode";

/// What locking memory takes.
const LOCK: &str = "CAP_IPC_LOCK or a higher limit of locked memory";

/// What one try has met.
#[derive(Debug)]
enum OpenFailure {
    /// The binding was refused.
    Bind(io::Error),
    /// It would not be refused, but the card would cut packets into pieces.
    TooSmall(String),
    /// Something before it failed.
    Other(Error),
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl OpenFailure {
    /// Whether it is the mode that cannot be.
    fn is_of_mode(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::TooSmall(_))
    }

    fn is_limit(&self) -> bool {
        matches!(self, Self::Other(Error::Privilege { capability, .. }) if *capability == LOCK)
    }

    /// The kernel's answer to the binding.
    fn answer(&self) -> Option<String> {
        match self {
            Self::Bind(error) => Some(format!("bind: {error}")),
            Self::TooSmall(_) | Self::Other(_) => None,
        }
    }

    fn is_busy(&self) -> bool {
        matches!(self, Self::Bind(error) if error.raw_os_error() == Some(libc::EBUSY))
    }
}

/// A socket on its way: its rings are filled, and it is bound if all goes well.
struct Bound {
    intake: Option<RxRings>,
    outlet: Option<TxPath>,
    /// Frames in the fill ring of a socket that does not receive.
    fed: Vec<u32>,
    fd: Descriptor,
    probe: Option<Descriptor>,
}

impl Bound {
    /// Puts the frames into the fill ring; the caller holds them, and nobody else.
    fn new(
        umem: &Umem,
        rings: Rings,
        frames: Vec<u32>,
        limits: Limits,
        fd: Descriptor,
        probe: Option<Descriptor>,
    ) -> Self {
        let Rings { mut fill, receive, transmit, completion } = rings;
        let outlet = transmit
            .zip(completion)
            .map(|(transmit, completion)| TxPath::new(umem, transmit, completion, limits));
        match (receive, fill.take()) {
            (Some(receive), Some(fill)) => {
                let intake = Some(RxRings::new(umem, receive, fill, frames));
                Self { intake, outlet, fed: Vec::new(), fd, probe }
            }
            (_, Some(mut fill)) => {
                let n = fill.reserve(frames.len() as u32);
                (0..n).zip(&frames).for_each(|(i, &it)| fill.write(i, umem.address(it, 0)));
                fill.submit(n);
                Self { intake: None, outlet, fed: frames, fd, probe }
            }
            (_, None) => Self { intake: None, outlet, fed: frames, fd, probe },
        }
    }

    fn take_frames(&mut self) -> Vec<u32> {
        let mut frames = self.intake.as_mut().map(RxRings::take_frames).unwrap_or_default();
        frames.append(&mut self.fed);
        frames
    }
}

/// Has the kernel take up to 256 packets a call where it copies, in place of 32. Kernels before 6.17
/// do not know of it, and drivers that send without copying have no use for it: either is right.
fn take_more_a_call(fd: &Descriptor, send_slots: u32) {
    let most = send_slots.next_power_of_two().min(uapi::COPIED_A_CALL);
    let _ = fd.set(libc::SOL_XDP, uapi::XDP_MAX_TX_SKB_BUDGET, most);
}

/// What is to be opened, and on what.
pub(super) struct Opening<'a> {
    config: &'a XskConfig,
    umem: Umem,
    interface: link::Interface,
}

impl<'a> Opening<'a> {
    pub(super) fn new(config: &'a XskConfig, umem: Umem, interface: link::Interface) -> Self {
        Self { config, umem, interface }
    }

    pub(super) fn run(&self) -> Result<Xsk> {
        match self.config.mode {
            Some(mode) => self
                .in_mode(mode, self.config.patience)
                .map_err(|failure| self.explain(mode, failure)),
            None => self.in_best_mode(),
        }
    }

    fn in_best_mode(&self) -> Result<Xsk> {
        let (best, next) = (BindMode::ZeroCopy, BindMode::Copy);
        let patience = self.config.patience;
        let failure = match self.in_mode(best, patience) {
            Ok(xsk) => return Ok(xsk),
            // In the next mode there may be a UMEM to share, which locks no more memory.
            Err(failure) if failure.is_of_mode() || failure.is_limit() => failure,
            Err(failure) => return Err(self.explain(best, failure)),
        };
        // Whoever has waited for a busy queue need not wait again.
        let mut xsk = self
            .in_mode(next, if failure.is_busy() { Duration::ZERO } else { patience })
            .map_err(|failure| self.explain(next, failure))?;
        let detail = failure.answer();
        let (reason, detail) = match self.explain(best, failure) {
            // Most drivers have no zero-copy: the answer's number says no more.
            Error::Unsupported { remedy, .. } => {
                (remedy.strip_suffix(USE_COPY).unwrap_or(&remedy).to_owned(), detail)
            }
            error => (error.to_string(), None),
        };
        xsk.fallback = Some(ModeFallback { from: best, to: next, reason, detail });
        Ok(xsk)
    }

    /// Binds in one mode. A busy queue is tried again for so long.
    fn in_mode(&self, mode: BindMode, patience: Duration) -> Result<Xsk, OpenFailure> {
        let end = Instant::now() + patience;
        if mode == BindMode::ZeroCopy && self.config.receive_frames > 0 {
            let (netns, bytes) = (self.config.netns.as_deref(), self.umem.pool().buffer_bytes());
            let reason =
                frame_size::too_small(bytes, netns, &self.interface.name, self.interface.mtu);
            reason.map_or(Ok(()), |reason| Err(OpenFailure::TooSmall(reason)))?;
        }
        loop {
            match self.once(mode) {
                Err(failure) if failure.is_busy() && Instant::now() < end => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                result => return result,
            }
        }
    }

    /// One try: with the UMEM of a socket of this pool that works the same way, or a new one.
    fn once(&self, mode: BindMode) -> Result<Xsk, OpenFailure> {
        let traits = Traits {
            zero_copy: mode == BindMode::ZeroCopy,
            need_wakeup: self.config.need_wakeup,
            multi_buffer: self.config.multi_buffer,
        };
        let shared =
            umem::with_donor(self.umem.pool(), traits, |donor| self.bound(traits, Some(donor)));
        let bound = match shared {
            Some(Ok(bound)) => bound,
            Some(Err(failure @ OpenFailure::Other(_))) => return Err(failure),
            // What one UMEM cannot do another may: the donor's interface may be gone.
            Some(Err(_)) | None => self.bound(traits, None)?,
        };
        Ok(self.assemble(mode, traits, bound))
    }

    /// A bound socket with its rings. The binding comes last: whatever fails before it, the
    /// kernel has no frame of ours.
    fn bound(&self, traits: Traits, donor: Option<RawFd>) -> Result<Bound, OpenFailure> {
        let fd = self.socket()?;
        let probe = if traits.zero_copy { Some(self.socket()?) } else { None };
        if donor.is_none() {
            self.register(&fd)?;
        }
        let XskConfig { receive_frames, send_slots, .. } = *self.config;
        // Some drivers send nothing without copying unless they have frames to receive into.
        let fill_frames = match receive_frames {
            0 if traits.zero_copy => SEND_ONLY_FRAMES,
            frames => frames,
        };
        let rings =
            Rings::make(&fd, Sizes { fill_frames, receive_frames, send_slots }, &self.object())?;
        if send_slots > 0 {
            self.make_room_to_send(&fd);
            take_more_a_call(&fd, send_slots);
        }
        let frames = self.umem.pool().take(fill_frames as usize)?;
        let mut bound = Bound::new(&self.umem, rings, frames, self.limits(traits), fd, probe);
        let flags = match donor {
            // The kernel takes them over from the donor, and wants no others.
            Some(_) => libc::XDP_SHARED_UMEM,
            None => flags(traits),
        };
        let (ifindex, queue) = (self.interface.index, self.config.queue);
        match bound.fd.bind(ifindex, queue, flags, donor) {
            Ok(()) => Ok(bound),
            Err(error) => {
                // SAFETY: just taken; a socket that is not bound writes to none.
                #[allow(unsafe_code, reason = "buffers change hands by number")]
                unsafe {
                    self.umem.pool().give(bound.take_frames())
                };
                Err(OpenFailure::Bind(error))
            }
        }
    }

    /// Nothing can fail here any more: the kernel has frames now.
    fn assemble(&self, mode: BindMode, traits: Traits, bound: Bound) -> Xsk {
        let Bound { fd, probe, intake, outlet, fed } = bound;
        let zero_copy = match fd.get::<libc::xdp_options>(libc::XDP_OPTIONS) {
            Ok((options, _)) => options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
            // It got the mode it asked for, or none at all.
            Err(_) => traits.zero_copy,
        };
        let binding = Binding {
            pool: Arc::clone(self.umem.pool()),
            traits: Traits { zero_copy, ..traits },
            ifindex: self.interface.index,
            queue: self.config.queue,
            busy_poll: self.config.busy_poll.is_some(),
            object: self.object(),
        };
        let socket = XskSocket::new(fd, binding, probe);
        socket.keep(fed);
        let receiver = intake.map(|intake| Receiver::new(intake, &socket));
        let sender = outlet.map(|outlet| Sender::new(outlet, &socket));
        Xsk { socket, receiver, sender, mode, fallback: None }
    }

    fn limits(&self, traits: Traits) -> Limits {
        let slots = match (traits.multi_buffer, traits.zero_copy) {
            (false, _) => 1,
            (true, true) => self.config.zero_copy_pieces.unwrap_or_else(|| {
                // One piece goes everywhere.
                self.abilities().and_then(|it| it.zero_copy_pieces).unwrap_or(1)
            }),
            (true, false) => COPIED_PIECES,
        };
        Limits { bytes: self.interface.mtu.saturating_add(HEADER_BYTES), slots }
    }

    /// Where the kernel copies, packets on their way count against the socket's send buffer: it
    /// shall be no tighter than the ring. If the kernel says no, sending goes on with what there
    /// is, in smaller pieces.
    fn make_room_to_send(&self, fd: &Descriptor) {
        let each = self.umem.pool().buffer_bytes() + SKB_BYTES;
        let bytes = self.config.send_slots.saturating_mul(each).min(i32::MAX as u32 / 2);
        let forced = fd.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes);
        let _ = forced.or_else(|_| fd.set(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes));
    }

    /// A new socket in the interface's namespace, with its options.
    fn socket(&self) -> Result<Descriptor> {
        let fd = netns::run_in(self.config.netns.as_deref(), || {
            Descriptor::open().map_err(|error| self.refused(error))
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

    fn refused(&self, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::Privilege {
                operation: format!("opening an AF_XDP socket on {}", self.object()),
                capability: "CAP_NET_RAW",
                remedy: "run it with sudo, or use a packet: port".into(),
            },
            Some(libc::EAFNOSUPPORT) => Error::Unsupported {
                feature: "AF_XDP".into(),
                remedy: "use a kernel with CONFIG_XDP_SOCKETS, or a packet: port".into(),
            },
            _ => self.system("open", error),
        }
    }

    /// Tells the kernel of the pool. The pages count as locked memory. Where the limit is too low
    /// it is raised, if it may be; and a UMEM that has ended, the last try's for one, counts for
    /// a moment longer.
    fn register(&self, fd: &Descriptor) -> Result<()> {
        let register = || fd.set(libc::SOL_XDP, libc::XDP_UMEM_REG, self.umem.registration());
        let mut result = register();
        if result.as_ref().is_err_and(is_limit) {
            raise_memory_lock();
            result = register();
        }
        let end = Instant::now() + LET_GO;
        while result.as_ref().is_err_and(is_limit) && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
            result = register();
        }
        result.map_err(|error| match is_limit(&error) {
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

    /// Why a binding was refused, and what to do.
    fn explain(&self, mode: BindMode, failure: OpenFailure) -> Error {
        let lacks = |remedy| {
            let feature = format!("{} mode on {}", mode.name(), self.object());
            Error::Unsupported { feature, remedy }
        };
        let error = match failure {
            OpenFailure::Bind(error) => error,
            OpenFailure::TooSmall(remedy) => return lacks(remedy),
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
                return lacks(no_zero_copy(config.multi_buffer, pieces, interface.mtu));
            }
            Some(libc::EINVAL) if zero_copy => {
                return lacks(format!(
                    "the driver refuses zero-copy, because an MTU of {} is too much for one buffer, the \
                     queue is not in use (ethtool -l), or it has no room for queues of its own{USE_COPY}",
                    interface.mtu
                ));
            }
            Some(libc::EINVAL) if config.multi_buffer => {
                return lacks(
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

    /// What the driver can do, where the kernel says.
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

/// Why there is no zero-copy; `pieces` is how many the driver takes of a packet then.
fn no_zero_copy(multi_buffer: bool, pieces: Option<u32>, mtu: u32) -> String {
    match pieces {
        Some(1) if multi_buffer => format!(
            "the driver's zero-copy is for packets of one buffer (its xdp-zc-max-segs is 1), and an \
             MTU of {mtu} takes several; a lower MTU would do{USE_COPY}"
        ),
        _ => format!("the driver has no zero-copy{USE_COPY}"),
    }
}

/// Whether the kernel has refused to lock so much memory.
fn is_limit(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EPERM))
}

fn flags(traits: Traits) -> u16 {
    let mode = if traits.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let wakeup = if traits.need_wakeup { libc::XDP_USE_NEED_WAKEUP } else { 0 };
    let several = if traits.multi_buffer { libc::XDP_USE_SG } else { 0 };
    mode | wakeup | several
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_there_is_no_zero_copy_is_what_the_driver_says() {
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
