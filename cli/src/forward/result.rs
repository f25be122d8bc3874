//! The result of forwarding: counts, methods and targets for each direction.

use std::time::Duration;

use sluicegate::forward::Moved;
use sluicegate::port::QueueStats;

use crate::interface_counters::Transmission;
use crate::ledger::{Ledger, Section};
use crate::report::{DirectionReport, Report, Traffic};
use crate::run::{Outcomes, ReceiveCounts};

/// The two ports, while packets are forwarded between them.
pub struct Sides {
    reports: [Report; 2],
    /// The sides to receive from.
    sources: &'static [usize],
}

impl Sides {
    /// Creates the sides from the reports of ports that were just opened.
    pub fn new(reports: [Report; 2], sources: &'static [usize]) -> Self {
        // A side's losses may be its target's.
        let reports = reports.map(|report| Report { ledger: Ledger::default(), ..report });
        Self { reports, sources }
    }

    /// Reads the interfaces' counters, after reception has stopped.
    pub fn read_interfaces(&mut self) {
        self.reports.iter_mut().for_each(Report::read_interface);
    }

    /// The sides for the ledger so far: without their interfaces' counters, which are read at the end.
    pub fn so_far(&self) -> Self {
        Self { reports: self.reports.each_ref().map(Report::so_far), ..*self }
    }

    /// The report on the whole, of the packets that passed on either side.
    pub fn report<T>(
        mut self,
        passed: &[SideCounts; 2],
        outcomes: &Outcomes<T>,
        elapsed: Duration,
    ) -> Report {
        let names = self.reports.each_ref().map(|report| report.port.clone());
        let transmissions = [0, 1].map(|side| {
            let counters = self.reports[1 - side].interface.as_mut();
            Transmission::of(counters, &passed[1 - side].stats)
        });
        let mut directions = Vec::new();
        for &side in self.sources {
            let SideCounts { swapped, copied, bytes, .. } = passed[side];
            let traffic = Traffic::over(passed[side].packets(), bytes, elapsed);
            let (from, to) = (names[side].clone(), names[1 - side].clone());
            directions.push(DirectionReport { from, to, traffic, swapped, copied });
            self.reports[side].traffic = traffic;
            self.account(side, passed, transmissions[side].as_ref());
        }
        for report in &mut self.reports {
            report.elapsed_s = elapsed.as_secs_f64();
        }
        let mut whole = Report::together(self.reports.into());
        let [port, to] = names;
        (whole.port, whole.to) = (port, Some(to));
        whole.directions = directions;
        let notices = outcomes.iter().flatten().map(|outcome| outcome.notices.clone());
        whole.notices = notices.flatten().collect();
        whole.note_silent(outcomes);
        whole
    }

    /// Accounts in a port's ledger for the packets that came in there.
    fn account(
        &mut self,
        side: usize,
        passed: &[SideCounts; 2],
        transmission: Option<&Transmission>,
    ) {
        let (source, target) = (&passed[side], &passed[1 - side]);
        let to = self.reports[1 - side].backend.clone();
        let report = &mut self.reports[side];
        let ledger = &mut report.ledger;
        match transmission {
            Some(transmission) => transmission.account(ledger),
            None if source.redirected > 0 => {
                ledger.add(Section::Uncertain, "redirected", source.redirected);
            }
            None => ledger.add(Section::Out, "sent", target.stats.sent),
        }
        ledger.add_received(&source.stats, source.after_end.min(source.stats.received));
        ledger.add_unsent(&target.stats);
        ledger.add(Section::Loss, "too_long", source.too_long);
        ledger.add(Section::Loss, "unsent", source.unsent);
        ledger.advise_unsent(&to);
        ledger.add(Section::Note, "interface_down_events", source.downs.into());
        report.account_interface();
    }
}

/// The fate of the packets of one side.
#[derive(Clone, Copy, Debug, Default)]
pub struct SideCounts {
    pub swapped: u64,
    pub copied: u64,
    /// Packets that the kernel moved.
    pub redirected: u64,
    pub bytes: u64,
    /// Packets that need more slots than the target has.
    pub too_long: u64,
    /// Packets received after the end and dropped.
    pub after_end: u64,
    /// Packets received before the end that had no target any more.
    pub unsent: u64,
    /// Counters of the side's queues, receive and transmit.
    pub stats: QueueStats,
    /// How often its interface went down.
    pub downs: u32,
}

impl SideCounts {
    pub fn moved(&mut self, moved: &Moved) {
        self.swapped += u64::from(moved.swapped_packets);
        self.copied += u64::from(moved.copied_packets);
        self.bytes += moved.bytes;
        self.too_long += u64::from(moved.too_long_packets);
    }

    pub fn packets(&self) -> u64 {
        self.swapped + self.copied + self.redirected
    }

    /// Adds another thread's packets.
    fn plus(&self, other: &Self) -> Self {
        Self {
            swapped: self.swapped + other.swapped,
            copied: self.copied + other.copied,
            redirected: self.redirected + other.redirected,
            bytes: self.bytes + other.bytes,
            too_long: self.too_long + other.too_long,
            after_end: self.after_end + other.after_end,
            unsent: self.unsent + other.unsent,
            stats: self.stats.plus(other.stats),
            // All queues of a port report the same events.
            downs: self.downs.max(other.downs),
        }
    }
}

/// Adds up the packets that threads have passed on either side.
pub fn all_passed<'a>(threads: impl Iterator<Item = &'a [SideCounts; 2]>) -> [SideCounts; 2] {
    threads.fold(<[SideCounts; 2]>::default(), |sum, sides| {
        [0, 1].map(|side| sum[side].plus(&sides[side]))
    })
}

/// Returns the packets that the kernel redirected from port to port. The queue of each source counts both the
/// received packets and their fate at the other side.
pub fn redirected(outcomes: &Outcomes<ReceiveCounts>) -> [SideCounts; 2] {
    let mut passed = <[SideCounts; 2]>::default();
    for (side, outcome) in outcomes.iter().enumerate() {
        let Some(ReceiveCounts { packets, bytes, stats, .. }) =
            outcome.as_ref().map(|it| it.counts)
        else {
            continue;
        };
        (passed[side].redirected, passed[side].bytes) = (packets, bytes);
        passed[side].stats.received = stats.received;
        passed[1 - side].stats = passed[1 - side].stats.plus(QueueStats { received: 0, ..stats });
    }
    passed
}
