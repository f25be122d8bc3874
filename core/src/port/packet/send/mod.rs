//! Sending: each method sends released packets in order, and continues where it stopped.

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
use crate::port::options::{Directions, Fallback};
use crate::port::packet_socket::Socket;
use crate::port::rings::TxProgress;
use crate::port::stats::QueueStats;
use sluicegate_base::ring::Ring;

/// Time after which a packet is given up if an interface with a carrier drops it repeatedly (the other end
/// of a veth may have a smaller MTU), because it holds up all packets after it.
const DROP_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum time that is counted between two attempts: a stalled thread makes no attempts, and its next one
/// may find room.
const MAX_INTERVAL: Duration = Duration::from_millis(5);

/// The sending side of a socket.
#[derive(Debug)]
pub(super) struct SocketSender {
    name: &'static str,
    method: SendMethod,
    progress: RingProgress,
    /// The interface through which it sends.
    presence: LinkState,
}

#[derive(Debug)]
enum SendMethod {
    Calls(Calls),
    Ring(FrameRing),
}

/// How much of a transmit ring has been sent, and how often the kernel dropped a packet.
#[derive(Debug, Default)]
struct RingProgress {
    tx: TxProgress,
    /// Attempts that the queueing discipline or the driver answered with a drop.
    rejected: u64,
    /// The drops of the next packet by the interface, if there were any.
    dropped: Option<Dropped>,
}

/// A packet that was dropped repeatedly.
#[derive(Debug)]
struct Dropped {
    /// The number of packets sent or skipped before it.
    at: u64,
    /// When it was last dropped.
    last: Instant,
    /// The time for which it has been dropped; each attempt counts at most [`MAX_INTERVAL`].
    time: Duration,
}

impl SocketSender {
    /// Sets a socket up for sending through an interface.
    pub(super) fn open(
        socket: &Socket,
        config: &PacketConfig,
        interface: &link::Interface,
        usage: Directions,
        fallbacks: &mut Vec<Fallback>,
    ) -> Result<Self> {
        // Ignored if it fails: a process without the privilege (CAP_NET_ADMIN; since Linux 5.17 CAP_NET_RAW
        // suffices) has no host: port to forward from, which needs more.
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

    /// Returns the name of the method in use.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the counts of packets to send.
    pub(super) fn stats(&self) -> QueueStats {
        QueueStats { rejected: self.progress.rejected, ..self.progress.tx.stats() }
    }

    /// Sends released packets. Returns the number of freed slots. If the kernel has no room for a packet,
    /// it stays for the next call.
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

    /// Counts waiting packets as refused and unsent.
    pub(super) fn give_up(&mut self, ring: &mut Ring) {
        if let SendMethod::Ring(frames) = &mut self.method {
            frames.take_back();
        }
        self.progress.tx.give_up(ring);
    }
}

/// The reason why a port that also receives has no ring for sending.
const ONE_SOCKET: &str = "a port that receives too has one socket, and its rings would have to be \
                          of one version: use a port that only sends";
/// The reason why a loopback interface has none.
const LOOPBACK: &str = "loopback gives frames back before their packets are received";

/// Returns the ring for sending, or the reason why there is none.
fn ring(
    socket: &Socket,
    config: &PacketConfig,
    interface: &link::Interface,
    usage: Directions,
) -> Result<Result<FrameRing, String>> {
    if usage == Directions::Both {
        // The first socket would receive the second one's packets: the kernel only keeps a socket's own
        // packets from it.
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
    /// Counts a drop by the queueing discipline or the driver. Returns true if the interface has a carrier.
    fn rejected(&mut self, target: &Target<'_>) -> Result<bool> {
        self.rejected += 1;
        Ok(target.presence.query()?.running)
    }

    /// Counts another drop of the next packet. Returns how long it has been dropped.
    fn dropped_for(&mut self, now: Instant) -> Duration {
        let at = self.tx.sent + self.tx.refused;
        let time = match &self.dropped {
            Some(dropped) if dropped.at == at => {
                dropped.time + now.saturating_duration_since(dropped.last).min(MAX_INTERVAL)
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
enum SendFailure {
    /// The queue of the discipline or, if it is bypassed, of the driver is full: the packet stays for the
    /// next sync. If the kernel took it at all, it has dropped it, so sending it again does not send it
    /// twice (net/packet/af_packet.c, packet_xmit; net/core/dev.c, dev_direct_xmit).
    Wait,
    /// The packet will never be sent: skip it.
    LeaveOut { too_long: bool },
    /// The error may be out of date: call again.
    Again,
}

impl SendFailure {
    /// Classifies an error. `was_down` is true if this call to send has already had [`Again`](Self::Again)
    /// as an answer.
    fn of(
        error: io::Error,
        target: &Target<'_>,
        progress: &mut RingProgress,
        was_down: &mut bool,
    ) -> Result<Self> {
        let socket = target.socket;
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => match progress.rejected(target)? {
                true if progress.dropped_for(Instant::now()) > DROP_TIMEOUT => {
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
            // The socket reports once that the interface was down earlier.
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
            (ms(200), MAX_INTERVAL, "one that stood still"),
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
