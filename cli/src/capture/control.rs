//! The control thread's part in a capture: status, statistics, the ledger so far.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Role;

use super::file::{File, Numbers};
use super::options::Options;
use super::recorder::note_statistics;
use crate::report::Report;
use crate::run::{Control, Outcome, WorkerCounters};
use crate::status::Status;

/// Attends a capture.
pub struct CaptureControl<'a> {
    pub options: &'a Options,
    pub status: &'a mut Status,
    pub reports: &'a mut [Report],
    /// For each port: its queues' places among the workers, and its numbers in the file.
    pub ports: &'a [(Range<usize>, Arc<Numbers>)],
    pub file: Option<&'a File>,
    pub started_ns: u64,
}

impl Control<Outcome> for CaptureControl<'_> {
    fn watch(&mut self, counters: &[WorkerCounters], at: Duration) {
        // The live line would cut the packets' lines to pieces.
        if !self.options.print {
            self.status.show(counters, at);
        }
        if let Some(file) = self.file {
            note_statistics(file, self.ports, counters, self.started_ns);
        }
    }

    fn ledger(&mut self, outcomes: &[Option<Arc<Outcome>>], at: Duration) {
        let of_port = |(report, (range, _)): (&mut Report, &(Range<usize>, _))| {
            report.counted_so_far(&outcomes[range.clone()], at)
        };
        let mut whole =
            Report::together(self.reports.iter_mut().zip(self.ports).map(of_port).collect());
        for port in &mut whole.ports {
            port.ledger.add(Role::Out, "delivered", port.traffic.packets);
        }
        match self.file.map(File::counts) {
            Some(counts) => {
                whole.ledger.add(Role::Out, "written", counts.written());
                whole.ledger.add(Role::Loss, "not_written", counts.lost());
            }
            None => whole.ledger.add(Role::Out, "printed", whole.traffic.packets),
        }
        self.status.ledger(&whole, self.options.common.json);
    }

    fn at_end(&mut self) {
        self.reports.iter_mut().for_each(Report::look_at_card);
    }
}
