//! The streams of a specification in the report of `generate`.

use std::io::{self, Write};

use serde::Serialize;
use sluicegate_traffic::plan::{Plan, StreamTotals};

use crate::send::WorkerResult;
use crate::units::show_count;

/// A stream's packets.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// Its number in the specification.
    pub stream: usize,
    pub name: String,
    /// Packets made, including those that were not sent.
    pub packets: u64,
    /// Their bytes without the frame check sequence.
    pub bytes: u64,
}

/// Reports the packets of each stream that workers made.
pub fn of(plan: &Plan, workers: &[WorkerResult]) -> Vec<StreamReport> {
    let rows = plan.streams.iter().enumerate().map(|(stream, planned)| {
        let made = workers.iter().filter_map(|worker| worker.streams.get(stream).copied());
        let StreamTotals { packets, bytes } =
            made.fold(StreamTotals::default(), StreamTotals::plus);
        StreamReport { stream, name: planned.name.clone(), packets, bytes }
    });
    rows.collect()
}

/// Adds up the streams of several ports.
pub fn together<'a>(ports: impl IntoIterator<Item = &'a Vec<StreamReport>>) -> Vec<StreamReport> {
    let mut ports = ports.into_iter();
    let mut sum = ports.next().cloned().unwrap_or_default();
    for port in ports {
        for (sum, stream) in sum.iter_mut().zip(port) {
            sum.packets += stream.packets;
            sum.bytes += stream.bytes;
        }
    }
    sum
}

/// Prints the streams for people.
pub fn print(streams: &[StreamReport], out: &mut impl Write) -> io::Result<()> {
    for StreamReport { name, packets, bytes, .. } in streams {
        let (packets, bytes) = (show_count(*packets), show_count(*bytes));
        writeln!(out, "  {packets:>15} of stream {name}, {bytes} bytes")?;
    }
    Ok(())
}
