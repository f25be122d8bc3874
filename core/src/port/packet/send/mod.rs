//! Sending: each way takes what the program has released, in order, and goes on where it stopped.

mod calls;
mod frames;

use std::io;
use std::time::{Duration, Instant};

use calls::Calls;
use frames::FrameRing;

use super::config::{PacketConfig, Sending};
use super::link_header::link_type;
use crate::error::{Error, Result};
use crate::link::{self, LinkState};
use crate::port::interface::{HOST_MARK, LengthLimits};
use crate::port::options::{Fallback, Use};
use crate::port::packet_socket::Socket;
use crate::port::rings::TxProgress;
use crate::port::stats::QueueStats;
use sluicegate_base::ring::Ring;

/// How long a packet may be dropped by an interface with a carrier before it is given up, whatever
/// the reason (the other end of a veth may have a smaller MTU): it would hold up all packets behind
/// it.
const PATIENCE: Duration = Duration::from_millis(50);
/// The most that counts of the time between two tries: a stalled thread does not try, and its next
/// try may find room.
const BETWEEN: Duration = Duration::from_millis(5);

/// The sending side of a socket.
#[derive(Debug)]
pub(super) struct SocketSender {
    name: &'static str,
    method: SendMethod,
    progress: RingProgress,
    /// The interface it sends by.
    presence: LinkState,
}

#[derive(Debug)]
enum SendMethod {
    Calls(Calls),
    Ring(FrameRing),
}

/// How far a transmit ring has been sent, and how often the kernel dropped.
#[derive(Debug, Default)]
struct RingProgress {
    tx: TxProgress,
    /// Attempts that the queue or the driver answered with a drop.
    rejected: u64,
    /// The drop by the interface, if it is still of the next packet.
    dropped: Option<Dropped>,
}

/// A packet that was dropped again and again.
#[derive(Debug)]
struct Dropped {
    /// How many had left or been left out before it.
    at: u64,
    /// When it was dropped last.
    last: Instant,
    /// For how long it has been dropped, of which no more than [`BETWEEN`] counts for each try.
    time: Duration,
}

impl SocketSender {
    /// Sets a socket up for sending through an interface.
    pub(super) fn open(
        socket: &Socket,
        config: &PacketConfig,
        interface: &link::Interface,
        usage: Use,
        fallbacks: &mut Vec<Fallback>,
    ) -> Result<Self> {
        // Where it may not (CAP_NET_ADMIN; since Linux 5.17 CAP_NET_RAW is enough), nobody forwards
        // from a host: port through this one, for that needs more.
        let _ = socket.set(libc::SOL_SOCKET, libc::SO_MARK, HOST_MARK, "mark what is sent to");
        if config.bypass {
            let operation = "bypass the queueing discipline of";
            socket.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1i32, operation).map_err(
                |error| match error.errno() {
                    Some(libc::ENOPROTOOPT) => error.remedy("qdisc=bypass needs Linux 3.14"),
                    _ => error,
                },
            )?;
        }
        let mut sending = config.sending;
        let ring = match sending {
            Sending::Ring => ring(socket, config, interface, usage)?.map(Some),
            Sending::Sendmmsg | Sending::Sendto => Ok(None),
        };
        let ring = ring.unwrap_or_else(|reason| {
            sending = Sending::Sendmmsg;
            let fallback = Fallback::new("transmit ring", "sendmmsg", reason);
            // Once for all queues.
            if !fallbacks.contains(&fallback) {
                fallbacks.push(fallback);
            }
            None
        });
        let method = match ring {
            Some(ring) => SendMethod::Ring(ring),
            None if sending == Sending::Sendto => SendMethod::Calls(Calls::one_by_one()),
            None => SendMethod::Calls(Calls::in_batches(config.batch)),
        };
        let (name, progress) = (sending.name(), RingProgress::default());
        Ok(Self { name, method, progress, presence: LinkState::of(interface)? })
    }

    /// The name of the method in use.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the counts of packets to be sent.
    pub(super) fn stats(&self) -> QueueStats {
        QueueStats { rejected: self.progress.rejected, ..self.progress.tx.stats() }
    }

    /// Sends the packets the program has released. Returns how many slots are room again. What
    /// the kernel has no room for stays for the next call.
    pub(super) fn send(&mut self, socket: &Socket, ring: &mut Ring) -> Result<u32> {
        let Self { method, progress, presence, .. } = self;
        let before = progress.tx.next;
        let target = Target { socket, presence };
        let result = match method {
            SendMethod::Calls(calls) => calls.send(&target, ring, progress),
            SendMethod::Ring(frames) => frames.send(&target, ring, progress),
        };
        let slots = progress.tx.publish(ring, before);
        result.map(|()| slots)
    }

    /// Returns true if packets have been released and not sent.
    pub(super) fn is_waiting(&self, ring: &Ring) -> bool {
        self.progress.tx.is_waiting(ring)
    }

    /// Counts what waits as refused, and unsent.
    pub(super) fn give_up(&mut self, ring: &mut Ring) {
        if let SendMethod::Ring(frames) = &mut self.method {
            frames.take_back();
        }
        self.progress.tx.give_up(ring);
    }
}

/// Why a port that receives too has no ring to send by.
const ONE_SOCKET: &str = "a port that receives too has one socket, and its rings would have to be \
                          of one version: use a port that only sends";
/// Why a loopback interface has none.
const LOOPBACK: &str = "loopback gives frames back before their packets are received";

/// The ring to send by, or the reason why there is none.
fn ring(
    socket: &Socket,
    config: &PacketConfig,
    interface: &link::Interface,
    usage: Use,
) -> Result<Result<FrameRing, String>> {
    if usage == Use::Both {
        // A second socket to send by would have the first receive what is sent: the kernel spares
        // a packet socket its own packets only.
        return Ok(Err(ONE_SOCKET.into()));
    }
    if interface.loopback {
        return Ok(Err(LOOPBACK.into()));
    }
    let limits = LengthLimits::of(interface, link_type(interface)?);
    match FrameRing::new(socket, config.slots, limits) {
        Ok(ring) => Ok(Ok(ring)),
        Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENOPROTOOPT)) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

impl RingProgress {
    /// The queue or the driver has dropped a packet just now. Whether the interface has a carrier.
    fn rejected(&mut self, target: &Target<'_>) -> Result<bool> {
        self.rejected += 1;
        Ok(target.presence.look()?.running)
    }

    /// How long the next packet has been dropped, which it has just been again.
    fn dropped_for(&mut self, now: Instant) -> Duration {
        let at = self.tx.sent + self.tx.refused;
        let time = match &self.dropped {
            Some(dropped) if dropped.at == at => {
                dropped.time + now.saturating_duration_since(dropped.last).min(BETWEEN)
            }
            _ => Duration::ZERO,
        };
        self.dropped = Some(Dropped { at, last: now, time });
        time
    }
}

/// The destination of packets.
struct Target<'a> {
    socket: &'a Socket,
    presence: &'a LinkState,
}

/// The next step after a system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// The queue is full, of the discipline or, past it, of the driver: the packet stays for the
    /// next sync. The kernel has dropped it if it took it at all, so sending it again sends it
    /// once (net/packet/af_packet.c, packet_xmit; net/core/dev.c, dev_direct_xmit).
    Wait,
    /// The packet will never go: leave it out, go on with the next.
    LeaveOut { too_long: bool },
    /// The answer may be about a time that is over: call again.
    Again,
}

impl Failed {
    /// Classifies an error; `was_down` is true if this call to send has had an answer of
    /// [`Again`](Self::Again) already.
    fn of(
        error: io::Error,
        target: &Target<'_>,
        progress: &mut RingProgress,
        was_down: &mut bool,
    ) -> Result<Self> {
        let socket = target.socket;
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => match progress.rejected(target)? {
                true if progress.dropped_for(Instant::now()) > PATIENCE => {
                    Ok(Self::LeaveOut { too_long: false })
                }
                true => Ok(Self::Wait),
                // Time without a carrier does not count.
                false => {
                    progress.dropped = None;
                    Ok(Self::Wait)
                }
            },
            Some(libc::EAGAIN | libc::EINTR) => Ok(Self::Wait),
            Some(libc::EMSGSIZE) => Ok(Self::LeaveOut { too_long: true }),
            Some(libc::EINVAL) => Ok(Self::LeaveOut { too_long: false }),
            // The socket says it once for a time when the interface was down.
            Some(libc::ENETDOWN) if !std::mem::replace(was_down, true) => Ok(Self::Again),
            Some(libc::ENETDOWN) => Err(target.presence.down()),
            Some(libc::ENXIO | libc::ENODEV) => Err(socket.interface_removed()),
            _ => Err(Error::system("send to", socket.object(), error)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stands_still_between_two_tries_has_not_tried_meanwhile() {
        let ms = Duration::from_millis;
        for (after, counts, sentence) in [
            (ms(2), ms(2), "one that tries again and again"),
            (ms(200), BETWEEN, "one that stood still"),
        ] {
            let (mut progress, start) = (RingProgress::default(), Instant::now());
            for tries in 0..3 {
                let time = progress.dropped_for(start + after * tries);
                assert_eq!(time, counts * tries, "{sentence}");
            }
            progress.tx.sent += 1;
            let time = progress.dropped_for(start + after * 3);
            assert_eq!(time, Duration::ZERO, "{sentence}: it is another packet");
        }
    }
}
