//! What each interface's statistics block in the file says.

use std::ops::Range;
use std::sync::Arc;

use sluicegate::file::write::{InterfaceStats, Output};
use sluicegate::ring::now_ns;

use super::file::{File, Numbers};
use crate::run::{Counters, Outcome, Run, Totals};

/// Notes each interface's statistics so far, so that every file of a rotation ends with some. Writing
/// is not waited for: the control thread has to see signals.
pub fn note_statistics(
    file: &File,
    ports: &[(Range<usize>, Arc<Numbers>)],
    counters: &[Counters],
    started_ns: u64,
) {
    let Some(mut output) = file.idle_output() else { return };
    for (range, numbers) in ports {
        let totals = Totals::sum(&counters[range.clone()]);
        set_statistics(&mut output, numbers, totals, started_ns);
    }
}

/// Notes the final statistics.
pub fn note_final_statistics(
    file: &File,
    ports: &[(Range<usize>, Arc<Numbers>)],
    ended: &Run,
    started_ns: u64,
) {
    for (range, numbers) in ports {
        let outcomes = &ended.outcomes[range.clone()];
        let sum = |n: fn(&Outcome) -> u64| outcomes.iter().map(n).sum();
        let totals = Totals {
            packets: sum(|o| o.packets),
            bytes: 0,
            received: sum(|o| o.stats.received.saturating_sub(o.after_end)),
            lost: sum(|o| o.stats.dropped_ring_full),
        };
        set_statistics(&mut file.output(), numbers, totals, started_ns);
    }
}

/// A port's statistics; they are those of its only interface, so a file's several have none.
fn set_statistics(output: &mut Output, numbers: &Numbers, totals: Totals, started_ns: u64) {
    if numbers.several {
        return;
    }
    let Some(in_file) = numbers.known() else { return };
    let &[number] = in_file.as_slice() else { return };
    let taken_ns = now_ns();
    let stats = InterfaceStats {
        taken_ns,
        start_ns: Some(started_ns),
        end_ns: Some(taken_ns),
        received: Some(totals.received),
        dropped: None,
        filter_accepted: Some(totals.received),
        os_dropped: Some(totals.lost),
        delivered: Some(totals.packets),
        losses: match totals.lost {
            0 => Vec::new(),
            lost => vec![("ring full".into(), lost)],
        },
    };
    // The number came from the same output.
    let _ = output.set_statistics(number, stats);
}
