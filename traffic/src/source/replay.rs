//! Packets of a capture file, sent again.

use sluicegate::error::Result;
use sluicegate::port::{OpenOptions, Port, PortName, Queue};
use sluicegate::ring::RingMut;

use super::{Filled, Source};
use crate::rate::{Dial, Gaps, Timetable};

/// When packets are sent.
#[derive(Clone, Debug)]
pub enum Tempo {
    /// As they were recorded, so many times as fast; above 0.
    Recorded(f64),
    /// At the pace that is set, whenever they were recorded.
    Paced(Dial),
    /// As fast as can be.
    Top,
}

/// A file's packets, once or several times.
#[derive(Debug)]
pub struct Replay {
    file: PortName,
    reader: Option<Queue>,
    /// Times still to be read after this one; none is for ever.
    rounds: Option<u64>,
    left: Option<u64>,
    clock: Clock,
    /// Packets that are longer than the ring.
    too_long: u64,
}

/// Which packets are due.
#[derive(Debug)]
enum Clock {
    Recorded(Recording),
    Paced(Timetable),
    Top,
}

/// The times of a recording on our own clock.
#[derive(Debug)]
struct Recording {
    speed: f64,
    /// When the first packet of this round was recorded, and when it was sent.
    begun: Option<(u64, u64)>,
    gaps: Gaps,
}

impl Replay {
    /// Of a `pcap:` port, which is read `rounds` times, or for ever if that is 0; `packets` at most.
    ///
    /// # Errors
    /// The file cannot be read, or its filter makes no sense.
    pub fn open(file: &PortName, tempo: Tempo, rounds: u64, packets: Option<u64>) -> Result<Self> {
        let clock = match tempo {
            Tempo::Recorded(speed) => {
                Clock::Recorded(Recording { speed, begun: None, gaps: Gaps::default() })
            }
            Tempo::Paced(dial) => Clock::Paced(Timetable::of(dial, (0, 1))),
            Tempo::Top => Clock::Top,
        };
        Ok(Self {
            reader: Some(reader(file)?),
            file: file.clone(),
            rounds: (rounds > 0).then(|| rounds - 1),
            left: packets,
            clock,
            too_long: 0,
        })
    }

    /// Has packets in the reader's ring, unless there are no more.
    fn read(&mut self) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        if reader.rx().available() > 0 || reader.sync_rx()? > 0 || !reader.is_finished() {
            return Ok(());
        }
        self.reader = None;
        if self.rounds != Some(0) {
            self.rounds = self.rounds.map(|rounds| rounds - 1);
            self.reader = Some(reader_of_next(&self.file, &mut self.clock)?);
        }
        Ok(())
    }
}

fn reader(file: &PortName) -> Result<Queue> {
    Ok(Port::open(file, &OpenOptions::default())?.queues.remove(0))
}

fn reader_of_next(file: &PortName, clock: &mut Clock) -> Result<Queue> {
    if let Clock::Recorded(recording) = clock {
        recording.begun = None;
    }
    reader(file)
}

impl Source for Replay {
    fn fill(&mut self, ring: &mut RingMut<'_>, most: u32, now_ns: u64) -> Result<Filled> {
        self.read()?;
        let mut filled = Filled::default();
        let Some(reader) = &mut self.reader else { return Ok(filled) };
        let most = self.left.map_or(most, |left| left.min(most.into()) as u32);
        let most = self.clock.most(most, now_ns);
        let mut slots = 0;
        for packet in reader.rx().packets() {
            if filled.packets == most || !self.clock.is_due(packet.meta().timestamp_ns, now_ns) {
                break;
            }
            if ring.push(&packet) {
                self.clock.sent(packet.meta().timestamp_ns, now_ns);
                filled.packets += 1;
                filled.bytes += packet.captured_bytes() as u64;
            } else if ring.can_ever_hold(&packet) {
                break;
            } else {
                self.too_long += 1;
            }
            slots += packet.slots();
        }
        reader.rx_mut().release(slots);
        self.left = self.left.map(|left| left - u64::from(filled.packets));
        Ok(filled)
    }

    fn is_finished(&self) -> bool {
        self.reader.is_none() || self.left == Some(0)
    }

    fn lateness(&self) -> Gaps {
        match &self.clock {
            Clock::Recorded(recording) => recording.gaps.clone(),
            Clock::Paced(timetable) => timetable.gaps().clone(),
            Clock::Top => Gaps::default(),
        }
    }

    fn too_long(&self) -> u64 {
        self.too_long
    }

    fn restarts(&self) -> u64 {
        match &self.clock {
            Clock::Paced(timetable) => timetable.restarts(),
            Clock::Recorded(_) | Clock::Top => 0,
        }
    }
}

impl Clock {
    fn most(&mut self, most: u32, now_ns: u64) -> u32 {
        match self {
            Self::Paced(timetable) => timetable.due(now_ns, most),
            Self::Recorded(_) | Self::Top => most,
        }
    }

    fn is_due(&self, recorded_ns: u64, now_ns: u64) -> bool {
        match self {
            Self::Recorded(recording) => recording.due(recorded_ns).is_none_or(|due| due <= now_ns),
            Self::Paced(_) | Self::Top => true,
        }
    }

    fn sent(&mut self, recorded_ns: u64, now_ns: u64) {
        match self {
            Self::Recorded(recording) => recording.sent(recorded_ns, now_ns),
            Self::Paced(timetable) => timetable.sent(1),
            Self::Top => {}
        }
    }
}

impl Recording {
    /// When a packet is due; none for the first of a round, which sets the clock. One that was
    /// recorded before the first is due with it.
    fn due(&self, recorded_ns: u64) -> Option<u64> {
        let (first_ns, begun_ns) = self.begun?;
        let after = recorded_ns.saturating_sub(first_ns) as f64 / self.speed;
        Some(begun_ns.saturating_add(after as u64))
    }

    fn sent(&mut self, recorded_ns: u64, now_ns: u64) {
        match self.due(recorded_ns) {
            Some(due) => self.gaps.add(now_ns - due),
            None => {
                self.begun = Some((recorded_ns, now_ns));
                self.gaps.add(0);
            }
        }
    }
}
