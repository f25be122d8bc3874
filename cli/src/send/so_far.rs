//! The ledger of a sender that still sends: what its workers know. What the interface made of the packets
//! is known at the end.

use std::sync::Arc;
use std::time::Duration;

use crate::ledger::Role;
use sluicegate_traffic::source::LeftOut;

use super::report::Sent;
use super::run::Done;
use crate::report::{Report, Traffic};

impl Sent {
    /// The report so far.
    pub fn so_far(&self, workers: &[Option<Arc<Done>>], elapsed: Duration) -> Report {
        let mut report = self.report.so_far();
        let done = || workers.iter().flatten();
        let sum = |n: fn(&Done) -> u64| done().map(|done| n(done)).sum::<u64>();
        let packets = sum(|done| done.packets);
        report.elapsed_s = elapsed.as_secs_f64();
        report.traffic = Traffic::over(packets, sum(|done| done.bytes), elapsed);
        report.ledger.add(Role::In, "attempted", packets);
        report.ledger.add(Role::Out, "accepted", sum(|done| done.accepted));
        let left_out = done().fold(LeftOut::default(), |sum, done| sum.plus(done.left_out));
        report.ledger.add(Role::Loss, "refused", sum(|done| done.refused));
        report.ledger.add(Role::Loss, "too_long", left_out.too_long);
        report.ledger.add(Role::Loss, "too_short", left_out.too_short);
        report.ledger.add(Role::Loss, self.other_link_type, left_out.other_link_type);
        report.ledger.add(Role::Loss, "disconnected", sum(|done| done.disconnected));
        report.note_silent(workers);
        report
    }
}
