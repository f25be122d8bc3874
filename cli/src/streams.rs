//! The streams of a specification in the report of `generate`: packets made, and their arrival at a receiver.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use sluicegate_traffic::analyse::{Analysis, Delays, StreamAnalysis};
use sluicegate_traffic::plan::{Plan, StreamTotals};

use crate::analysis::{latency_json, print_latencies};
use crate::ledger::Section;
use crate::report::Report;
use crate::send::WorkerResult;
use crate::units::{show_count, show_percent};

/// Maximum number of streams that are printed for people; JSON has all.
const MAX_PRINTED: usize = 50;

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
    /// Their arrival, if a receiver counts them.
    #[serde(flatten)]
    pub arrival: Option<Arrival>,
}

/// The arrival of a stream's packets.
#[derive(Clone, Debug, Serialize)]
pub struct Arrival {
    /// Packets that arrived intact.
    received: u64,
    /// Packets made that did not arrive intact.
    lost: u64,
    duplicates: u64,
    reordered: u64,
    late: u64,
    corrupt: u64,
    /// Times that the numbers started over.
    restarts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Value>,
    other_clock: u64,
    #[serde(skip)]
    delays: Delays,
}

/// Packets made that did not arrive at the receiver.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Missing {
    pub packets: u64,
    /// Packets that the sender lost.
    not_sent: u64,
    /// Packets of all kinds that the receiver lost.
    receiver_lost: u64,
    /// Packets lost in between, at least and at most.
    network_min: u64,
    network_max: u64,
}

type ArrivalCount = fn(&Arrival) -> u64;

/// The columns of arrivals.
const COLUMNS: [(&str, ArrivalCount); 6] = [
    ("received", |it| it.received),
    ("lost", |it| it.lost),
    ("duplicates", |it| it.duplicates),
    ("reordered", |it| it.reordered),
    ("late", |it| it.late),
    ("corrupt", |it| it.corrupt),
];

impl Arrival {
    /// Compares the packets that a stream made with those that arrived.
    fn of(packets: u64, stream: Option<&StreamAnalysis>) -> Self {
        let Some(stream) = stream else { return Self::none(packets) };
        let sum = |of| stream.sum(of);
        let (received, late) = (sum(|it| it.counts.received), sum(|it| it.counts.late));
        let duplicates = sum(|it| it.counts.duplicates);
        Self {
            received,
            lost: packets.saturating_sub(received - duplicates - late),
            duplicates,
            reordered: sum(|it| it.counts.reordered),
            late,
            corrupt: sum(|it| it.counts.corrupt),
            restarts: sum(|it| it.restarts),
            latency: latency_json(&stream.delays),
            other_clock: stream.delays.other_clock,
            delays: stream.delays.clone(),
        }
    }

    /// Returns the arrival of a stream of which no packet came.
    fn none(packets: u64) -> Self {
        Self::of(packets, Some(&StreamAnalysis::default()))
    }
}

/// Reports the packets of each stream that workers made.
pub fn of(plan: &Plan, workers: &[WorkerResult]) -> Vec<StreamReport> {
    let rows = plan.streams.iter().enumerate().map(|(stream, planned)| {
        let made = workers.iter().filter_map(|worker| worker.streams.get(stream).copied());
        let StreamTotals { packets, bytes } =
            made.fold(StreamTotals::default(), StreamTotals::plus);
        StreamReport { stream, name: planned.name.clone(), packets, bytes, arrival: None }
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

/// Adds the arrival of packets at a receiver to the streams of a sender's report.
pub fn arrive(report: &mut Report, analysis: &Analysis) {
    for stream in &mut report.streams {
        let of_stream = |it: &&StreamAnalysis| usize::from(it.stream) == stream.stream;
        let found = analysis.streams.iter().find(of_stream);
        stream.arrival = Some(Arrival::of(stream.packets, found));
    }
}

/// Returns where the missing packets of a run were lost, by the ledgers of both sides.
pub fn missing(report: &Report, receiver: &Report) -> Missing {
    let lost = report.streams.iter().filter_map(|it| it.arrival.as_ref()).map(|it| it.lost);
    let packets = lost.sum::<u64>();
    let not_sent = report.ledger.total(Section::Loss).min(packets);
    let receiver_lost = receiver.ledger.total(Section::Loss);
    let uncertain = report.ledger.total(Section::Uncertain);
    let network_max = packets - not_sent;
    let network_min = network_max.saturating_sub(receiver_lost + uncertain);
    Missing { packets, not_sent, receiver_lost, network_min, network_max }
}

/// Prints the streams for people, if there are several or a receiver counts them.
pub fn print(streams: &[StreamReport], out: &mut impl Write) -> io::Result<()> {
    if streams.iter().any(|it| it.arrival.is_some()) {
        return print_arrivals(streams, out);
    }
    if streams.len() < 2 {
        return Ok(());
    }
    for StreamReport { name, packets, bytes, .. } in streams.iter().take(MAX_PRINTED) {
        let (packets, bytes) = (show_count(*packets), show_count(*bytes));
        writeln!(out, "  {packets:>15} of stream {name}, {bytes} bytes")?;
    }
    print_rest(streams, out)
}

fn print_rest(streams: &[StreamReport], out: &mut impl Write) -> io::Result<()> {
    match streams.len().saturating_sub(MAX_PRINTED) {
        0 => Ok(()),
        more => writeln!(out, "  {:>15} more, which --json has", show_count(more as u64)),
    }
}

fn print_arrivals(streams: &[StreamReport], out: &mut impl Write) -> io::Result<()> {
    let width = streams.iter().map(|it| it.name.chars().count()).max().unwrap_or(0).max(6);
    write!(out, "  {:>width$}{:>14}", "stream", "packets")?;
    for (column, _) in COLUMNS {
        write!(out, "{column:>14}")?;
    }
    writeln!(out)?;
    let arrived = || streams.iter().filter_map(|it| Some((it, it.arrival.as_ref()?)));
    for (stream, arrival) in arrived().take(MAX_PRINTED) {
        write!(out, "  {:>width$}{:>14}", stream.name, show_count(stream.packets))?;
        for (_, count) in COLUMNS {
            write!(out, "{:>14}", show_count(count(arrival)))?;
        }
        writeln!(out)?;
    }
    print_rest(streams, out)?;
    let delays =
        arrived().take(MAX_PRINTED).map(|(stream, arrival)| (stream.name.clone(), &arrival.delays));
    print_latencies(&delays.collect::<Vec<_>>(), width, out)?;
    let sum = |of: ArrivalCount| arrived().map(|(_, arrival)| of(arrival)).sum::<u64>();
    let notes = [
        (sum(|it| it.other_clock), "stamped by another clock: no latency"),
        (sum(|it| it.restarts), "times the numbers started over: another sender uses these stamps"),
    ];
    for (count, text) in notes.into_iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "  note {:>15}  {text}", show_count(count))?;
    }
    Ok(())
}

impl Missing {
    /// Prints where the packets were lost, if any is missing.
    pub fn print(&self, made: u64, out: &mut impl Write) -> io::Result<()> {
        if self.packets == 0 {
            return Ok(());
        }
        let [packets, not_sent, receiver_lost, min, max] =
            [self.packets, self.not_sent, self.receiver_lost, self.network_min, self.network_max]
                .map(show_count);
        let share = show_percent(self.packets, made);
        let network = if min == max { max } else { format!("{min} to {max}") };
        writeln!(out, "  missing: {packets} ({share})")?;
        writeln!(out, "  {not_sent:>15} not sent")?;
        writeln!(out, "  {receiver_lost:>15} lost by the receiver, not the network")?;
        writeln!(out, "  {network:>15} lost between the ports")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_streams_are_printed_and_the_others_counted() {
        let stream = |stream| StreamReport {
            stream,
            name: stream.to_string(),
            packets: 7,
            bytes: 420,
            arrival: None,
        };
        let arrived =
            |number| StreamReport { arrival: Some(Arrival::of(7, None)), ..stream(number) };
        for (number, lines, rest) in [(1, 0, false), (50, 50, false), (51, 51, true)] {
            let print = |streams: Vec<StreamReport>| {
                let mut text = Vec::new();
                super::print(&streams, &mut text).unwrap();
                String::from_utf8(text).unwrap()
            };
            let made = print((0..number).map(stream).collect());
            assert_eq!(made.lines().count(), lines, "{made}");
            let received = print((0..number).map(arrived).collect());
            for text in [made, received] {
                assert_eq!(text.contains(" 1 more, which --json has"), rest, "{text}");
                assert!(!text.contains("stream 50") && !text.contains("\n      50 "), "{text}");
            }
        }
    }
}
