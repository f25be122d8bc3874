//! Decides when to poll a socket whose packets may wait in its ring (`latency=`).
//!
//! A socket wakes a sleeper with each packet. So while packets arrive, a reader that only records or counts
//! sleeps by time: as long as an eighth of the ring takes to fill at the current rate. While no packets
//! arrive, it waits on the socket.

use std::time::{Duration, Instant};

/// The minimum nap per packet that the ring has room for: at a million packets per second the ring is full
/// after 20 naps. At higher rates the reader does not nap at all.
const MIN_NAP_A_PACKET: Duration = Duration::from_nanos(50);
/// The maximum nap per packet that the ring has room for: the ring is full at its end if packets suddenly
/// arrive at two million per second.
const MAX_NAP_A_PACKET: Duration = Duration::from_nanos(500);
/// The reciprocal of the part of the ring that may fill during a nap.
const SHARE: u32 = 8;

/// Decides the naps of one reader.
#[derive(Debug)]
pub(super) struct PollPacer {
    /// Number of packets that the ring has room for.
    room: u32,
    shortest: Duration,
    longest: Duration,
    nap: Duration,
    looked: Instant,
    /// True if no packets arrived in the longest nap.
    idle: bool,
}

impl PollPacer {
    /// Makes the pace of a reader whose packets may wait for `latency`.
    pub(super) fn new(room: u32, latency: Duration, now: Instant) -> Self {
        let longest = latency.min(MAX_NAP_A_PACKET * room);
        let shortest = longest.min(MIN_NAP_A_PACKET * room);
        Self { room, shortest, longest, nap: shortest, looked: now, idle: true }
    }

    /// Records that a poll has found `packets` packets.
    pub(super) fn found(&mut self, packets: u32, now: Instant) {
        let since = now.saturating_duration_since(self.looked);
        self.looked = now;
        let grown = (self.nap * 2).clamp(self.shortest, self.longest);
        if packets == 0 {
            self.idle = self.nap >= self.longest;
            self.nap = grown;
            return;
        }
        if std::mem::take(&mut self.idle) {
            // The rate is not known yet.
            self.nap = self.shortest;
            return;
        }
        let bearable = since * (self.room / SHARE) / packets;
        self.nap = if bearable < self.shortest { Duration::ZERO } else { grown.min(bearable) };
    }

    /// Returns the time of the next poll.
    pub(super) fn next_poll(&self) -> Instant {
        self.looked + self.nap
    }

    /// Returns the length of a nap that begins now. None if the socket wakes the reader.
    pub(super) fn nap(&self, now: Instant) -> Option<Duration> {
        let naps = !self.idle && !self.nap.is_zero();
        naps.then(|| self.next_poll().saturating_duration_since(now))
    }

    /// Returns true if packets arrive so fast that the reader should spin.
    pub(super) fn is_busy(&self) -> bool {
        self.nap.is_zero()
    }

    /// Records that the socket has woken the reader.
    pub(super) fn woken(&mut self, now: Instant) {
        self.looked = now;
        self.nap = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls whenever it is time, while packets arrive at these rates, each for a time. Returns the number
    /// of polls, of sleeps at the socket, and the maximum number of packets in the ring.
    fn play(latency: Duration, phases: &[(f64, f64)]) -> (u32, u32, u32) {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut pace = PollPacer::new(4000, latency, start);
        let (mut looks, mut sleeps, mut most) = (0, 0, 0);
        let (mut now, mut begin, mut unseen) = (0.0, 0.0, 0.0f64);
        for &(pps, seconds) in phases {
            let end = begin + seconds;
            while now < end {
                let nap = pace.nap(at(now));
                let step = match nap {
                    Some(nap) => nap.as_secs_f64().max(1e-6),
                    // Polls repeatedly, or sleeps until the next packet.
                    None if pace.is_busy() => 1e-5,
                    None if pps == 0.0 => end - now,
                    None => 1.0 / pps,
                };
                let came = unseen + step * pps;
                now += step;
                if nap.is_none() && !pace.is_busy() {
                    sleeps += 1;
                    pace.woken(at(now));
                }
                pace.found(came as u32, at(now));
                unseen = came.fract();
                (looks, most) = (looks + 1, most.max(came as u32));
            }
            begin = end;
        }
        (looks, sleeps, most)
    }

    #[test]
    fn looks_are_few_and_the_ring_bears_what_comes_between_them() {
        let latency = Duration::from_millis(20);
        for (sentence, phases, most_looks, most_packets) in [
            ("nothing comes", vec![(0.0, 1.0)], 10, 0),
            ("10 kpps", vec![(1e4, 1.0)], 600, 40),
            ("300 kpps", vec![(3e5, 1.0)], 1000, 600),
            ("a million", vec![(1e6, 1.0)], 2500, 600),
            ("five million after nothing", vec![(0.0, 0.1), (5e6, 0.1)], 11_000, 2000),
            ("two million after 10 kpps", vec![(1e4, 0.1), (2e6, 0.1)], 2000, 4000),
            ("a packet now and then", vec![(100.0, 1.0)], 1000, 1),
        ] {
            let (looks, _, most) = play(latency, &phases);
            assert!(looks <= most_looks && most <= most_packets, "{sentence}: {looks}, {most}");
        }
    }

    #[test]
    fn no_packet_waits_longer_than_is_allowed() {
        let latency = Duration::from_micros(300);
        let start = Instant::now();
        let mut pace = PollPacer::new(4000, latency, start);
        let mut now = start;
        for _ in 0..100 {
            pace.found(3, now);
            let nap = pace.nap(now).unwrap();
            assert!(nap <= latency, "{nap:?}");
            now += nap;
        }
    }
}
