//! Replays the packets of a capture file.
//!
//! ```text
//!   file --> packets: read, or kept for loops --> clock: is it due? --> transmit ring
//!                 ^
//!         flow_assignment: the worker of a packet <-- sides: its target, of two
//! ```

mod clock;
mod flow_assignment;
mod packets;
mod sides;

use std::io::ErrorKind;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::port::PortName;
use sluicegate::ring::{Meta, Packet, RingMut, TimestampSource};
use sluicegate_base::headers::{ETHERNET_BYTES, VLAN_TAG_BYTES};

use super::{Filled, MAX_SLEEP, PacketSource, SkippedPackets};
use crate::rate::{Dial, Gaps, Unit};
use crate::rewrite::{self, Rewrite};
use clock::{Position, ReplayClock, ReplayStart};
use flow_assignment::Share;
use packets::ReplayPackets;
use sides::{Side, Sides};

/// The times at which packets are sent.
#[derive(Clone, Debug)]
pub enum Tempo {
    /// At the recorded times, divided by this speed, which is above 0.
    Recorded(f64),
    /// At a set pace, regardless of the recorded times.
    Paced {
        /// The pace of all workers together.
        dial: Dial,
        /// The unit that the pace counts.
        of: Unit,
    },
    /// As fast as possible.
    Top,
}

/// The options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The times at which packets are sent.
    pub tempo: Tempo,
    /// The longest gap between two packets at recorded times; a longer one becomes this long.
    pub max_gap: Option<Duration>,
    /// The number of rounds; 0 is endless.
    pub rounds: u64,
    /// Each round after the first has its own pairs of IP addresses: those of the round before plus 1.
    pub unique: bool,
    /// Maximum of packets over all rounds and workers.
    pub packets: Option<u64>,
    /// Maximum length of a packet, without an 802.1Q tag. Longer packets, and those shorter than an Ethernet
    /// header, are omitted. `None` omits no packet.
    pub max_bytes: Option<usize>,
    /// Packets get the times at which they are due, counted from the first packet's time: for a file, where
    /// times count and not when it is written.
    pub due_times: bool,
    /// Longer packets are cut to `max_bytes` instead, and their lengths and checksums changed accordingly.
    pub cut: bool,
    /// The link type to send; packets of other link types are omitted.
    pub link_type: u16,
    /// Changes of packets.
    pub rewrite: Arc<Rewrite>,
    /// Memory limit for the packets of a file with several rounds; a larger file is read again in each round.
    pub keep_bytes: usize,
}

impl ReplayOptions {
    /// Returns the longest gap in the file's own time, of which the speed makes the longest one sent.
    fn max_gap_ns(&self) -> u64 {
        match (self.max_gap, &self.tempo) {
            (Some(gap), Tempo::Recorded(speed)) => (gap.as_nanos() as f64 * speed) as u64,
            _ => u64::MAX,
        }
    }
}

/// One worker's part of a file. After a read error all workers still send the packets before it; then
/// [`failure`](PacketSource::failure) returns the error.
#[derive(Debug)]
pub struct Replay {
    packets: ReplayPackets,
    clock: ReplayClock,
    /// The lengths of packets to send.
    lengths: RangeInclusive<usize>,
    /// The bytes of a packet that is cut, if such packets are sent.
    cut: Option<Vec<u8>>,
    due_times: Option<DueTimes>,
    skipped: SkippedPackets,
}

impl Replay {
    /// Checks that `workers` workers can replay a file, before a port is opened and without reading
    /// from a pipe. Checks `link_type` if it is known.
    ///
    /// # Errors
    /// The file is unreadable, has no packet of this link type, or is a pipe that rounds or workers
    /// would read several times.
    pub fn check(file: &PortName, rounds: u64, workers: u32, link_type: Option<u16>) -> Result<()> {
        if is_on_disk(file)? {
            return packets::check(file, link_type);
        }
        let what = match (rounds, workers) {
            (_, 2..) => "each thread reads it",
            (1, _) => return Ok(()),
            _ => "each round reads it anew",
        };
        let remedy = "a pipe can be read but once: write it to a file first";
        Err(file.error(format!("{what}, and {remedy}")))
    }

    /// Opens a `pcap:` port's file for `workers` workers, each with a part of its flows.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check); an invalid filter.
    pub fn open(file: &PortName, options: &ReplayOptions, workers: u32) -> Result<Vec<Self>> {
        Self::check(file, options.rounds, workers, Some(options.link_type))?;
        let start = ReplayStart::of(workers);
        let open =
            |worker| Self::of_share(file, options, &start, Share::new((worker, workers), None));
        (0..workers).map(open).collect()
    }

    /// Opens a file for two targets, with their numbers of workers: the first sends the packets of clients, the
    /// second those of servers, both by one timetable. Clients are the senders within the prefixes `clients`;
    /// without prefixes, conversations tell. The options differ only in `max_bytes`.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_sides(
        file: &PortName,
        options: [&ReplayOptions; 2],
        clients: &[(IpAddr, u8)],
        workers: [u32; 2],
    ) -> Result<[Vec<Self>; 2]> {
        let all = workers.iter().sum();
        Self::check(file, options[0].rounds, all, Some(options[0].link_type))?;
        let start = ReplayStart::of(all);
        let open = |side, options, workers| {
            let share = |worker| Share::new((worker, workers), Some((side, Sides::new(clients))));
            let open = |worker| Self::of_share(file, options, &start, share(worker));
            (0..workers).map(open).collect::<Result<Vec<_>>>()
        };
        let clients = open(Side::Client, options[0], workers[0])?;
        Ok([clients, open(Side::Server, options[1], workers[1])?])
    }

    fn of_share(
        file: &PortName,
        options: &ReplayOptions,
        start: &Arc<ReplayStart>,
        share: Share,
    ) -> Result<Self> {
        Ok(Self {
            packets: ReplayPackets::open(file, share, options)?,
            clock: ReplayClock::new(&options.tempo, start.clone()),
            lengths: options.max_bytes.map_or(0..=usize::MAX, |max| ETHERNET_BYTES..=max),
            cut: options.cut.then(Vec::new),
            due_times: options.due_times.then(DueTimes::default),
            skipped: SkippedPackets::default(),
        })
    }
}

/// Reports whether the file can be read more than once, unlike a pipe.
fn is_on_disk(file: &PortName) -> Result<bool> {
    let path = Path::new(file.name());
    if file.name() == "-" {
        return Ok(false);
    }
    let wrong = |error| Error::path("open", path, error);
    let metadata = path.metadata().map_err(wrong)?;
    match metadata.is_dir() {
        true => Err(wrong(ErrorKind::IsADirectory.into())),
        false => Ok(metadata.is_file()),
    }
}

impl PacketSource for Replay {
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        let Some(begun_ns) = self.clock.begun(now_ns) else { return Ok(Filled::default()) };
        let mut filler = RingFiller {
            ring,
            most,
            now_ns,
            begun_ns,
            clock: &mut self.clock,
            lengths: self.lengths.clone(),
            cut: &mut self.cut,
            due_times: &mut self.due_times,
            skipped: &mut self.skipped,
            filled: Filled::default(),
        };
        self.packets.fill(&mut filler);
        Ok(filler.filled)
    }

    fn handed_over(&mut self, now_ns: u64) {
        self.clock.handed_over(now_ns);
    }

    fn rest(&mut self, now_ns: u64) -> Result<()> {
        if !self.clock.has_begun() {
            // Other workers may need this CPU to arrive.
            std::thread::yield_now();
        } else if let Some(due_ns) = self.clock.next_ns {
            super::rest_until(due_ns, now_ns);
        } else if !self.packets.wait(MAX_SLEEP)? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.packets.is_finished()
    }

    fn failure(&mut self) -> Option<Error> {
        self.packets.failure.take()
    }

    fn lateness(&self) -> Gaps {
        self.clock.gaps.clone()
    }

    fn skipped(&self) -> SkippedPackets {
        self.skipped
    }

    fn restarts(&self) -> u64 {
        self.clock.restarts
    }
}

/// Moves due packets into a transmit ring.
struct RingFiller<'a, 'r> {
    ring: &'a mut RingMut<'r>,
    /// Maximum of packets.
    most: u32,
    now_ns: u64,
    begun_ns: u64,
    clock: &'a mut ReplayClock,
    /// The lengths of packets to send.
    lengths: RangeInclusive<usize>,
    cut: &'a mut Option<Vec<u8>>,
    /// The times that packets get, if not their own.
    due_times: &'a mut Option<DueTimes>,
    skipped: &'a mut SkippedPackets,
    filled: Filled,
}

impl RingFiller<'_, '_> {
    /// Writes a packet into the ring, or omits it. Returns false if it and all later packets have to wait.
    #[inline]
    fn push(&mut self, packet: &Packet<'_>, position: Position) -> bool {
        if self.filled.packets == self.most {
            return false;
        }
        let Some(due_ns) = self.clock.is_due(position, self.begun_ns, self.now_ns) else {
            return false;
        };
        if packet.meta().interface != 0 || self.due_times.is_some() {
            return self.push_changed(packet, position);
        }
        let bytes = packet.captured_bytes();
        if bytes < *self.lengths.start() {
            self.skipped.too_short += 1;
            return true;
        }
        if bytes > *self.lengths.end() && !self.is_tagged_and_fits(packet, bytes) {
            return self.push_cut(packet, position);
        }
        if !self.ring.push(packet) {
            let ever = self.ring.can_ever_hold(packet);
            self.skipped.too_long += u64::from(!ever);
            return !ever;
        }
        self.begun_ns = self.clock.sent(due_ns, self.begun_ns, self.now_ns);
        self.filled.packets += 1;
        self.filled.bytes += bytes as u64;
        self.skipped.cut_in_file += u64::from(bytes < packet.meta().wire_bytes as usize);
        true
    }

    /// Writes a packet with the target's interface, of which there is one, and the time at which it is due.
    #[cold]
    fn push_changed(&mut self, packet: &Packet<'_>, position: Position) -> bool {
        let mut meta = Meta { interface: 0, ..*packet.meta() };
        let mut due_times = self.due_times.take();
        if let Some(times) = &mut due_times {
            times.set(&mut meta, position, self.clock);
        }
        let goes_on = self.push(&packet.with_meta(&meta), position);
        *self.due_times = due_times;
        goes_on
    }

    /// Writes a packet that is too long into the ring as far as it fits, or omits it.
    #[cold]
    fn push_cut(&mut self, packet: &Packet<'_>, position: Position) -> bool {
        let Some(mut bytes) = self.cut.take() else {
            self.skipped.too_long += 1;
            return true;
        };
        bytes.clear();
        packet.segments().for_each(|segment| bytes.extend_from_slice(segment));
        let tag = if is_tagged(packet) { VLAN_TAG_BYTES } else { 0 };
        let before = bytes.len();
        rewrite::cut(&mut bytes, self.lengths.end() + tag);
        let mut meta = *packet.meta();
        meta.wire_bytes = meta.wire_bytes.saturating_sub((before - bytes.len()) as u32);
        let sent_before = self.filled.packets;
        let goes_on = self.push(&Packet::new(&meta, &bytes), position);
        self.skipped.cut_to_mtu += u64::from(self.filled.packets - sent_before);
        *self.cut = Some(bytes);
        goes_on
    }

    /// Reports whether a packet fits without its outer 802.1Q tag.
    #[cold]
    fn is_tagged_and_fits(&self, packet: &Packet<'_>, bytes: usize) -> bool {
        bytes <= self.lengths.end() + VLAN_TAG_BYTES && is_tagged(packet)
    }
}

/// The times of packets in a written file.
#[derive(Debug, Default)]
struct DueTimes {
    /// The time of the file's first packet, once a packet has one.
    begin_ns: Option<u64>,
}

impl DueTimes {
    /// Sets a packet's time. A packet without a time keeps none.
    fn set(&mut self, meta: &mut Meta, position: Position, clock: &ReplayClock) {
        if meta.timestamp_source != TimestampSource::None {
            let recorded = meta.timestamp_ns.saturating_sub(position.ns);
            let begin_ns = *self.begin_ns.get_or_insert(recorded);
            meta.timestamp_ns = begin_ns.saturating_add(clock.planned_ns(position));
        }
    }
}

/// Reports whether a packet has an outer 802.1Q tag, which the MTU excludes.
fn is_tagged(packet: &Packet<'_>) -> bool {
    packet.head().get(12..14) == Some(&[0x81, 0x00])
}
