//! Reports the results of `count --analyze`, as JSON and as text.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_traffic::analyse::{Analysis, Delays, StreamAnalysis, WorkerAnalysis};

use crate::units::{packets_word, show_count, show_duration};

type WorkerCount = fn(&WorkerAnalysis) -> u64;

/// The fates of packets, by name.
const COUNTS: [(&str, WorkerCount); 6] = [
    ("received", |worker| worker.counts.received),
    ("lost", |worker| worker.lost),
    ("duplicates", |worker| worker.counts.duplicates),
    ("reordered", |worker| worker.counts.reordered),
    ("late", |worker| worker.counts.late),
    ("corrupt", |worker| worker.counts.corrupt),
];
const RESTARTS: (&str, WorkerCount) = ("restarts", |worker| worker.restarts);

/// Percentiles in the text and in the JSON.
const PERCENTILES: [(&str, &str, f64); 5] = [
    ("min", "min_ns", 0.0),
    ("p50", "p50_ns", 0.5),
    ("p90", "p90_ns", 0.9),
    ("p99", "p99_ns", 0.99),
    ("p99.9", "p99_9_ns", 0.999),
];

/// The analysis in the JSON.
pub fn to_json(analysis: &Analysis) -> Value {
    let others = analysis.others;
    json!({
        "streams": analysis.streams.iter().map(stream_json).collect::<Value>(),
        "unstamped": others.unstamped,
        "corrupt": others.corrupt,
        "untracked": others.untracked,
        "unchecked": others.unchecked,
    })
}

fn stream_json(stream: &StreamAnalysis) -> Value {
    let mut object = json!({"stream": stream.stream});
    for (name, count) in COUNTS.into_iter().chain([RESTARTS]) {
        object[name] = stream.sum(count).into();
    }
    if let Some(latency) = latency_json(&stream.delays) {
        object["latency"] = latency;
    }
    object["other_clock"] = stream.delays.other_clock.into();
    object["workers"] = stream.workers.iter().map(worker_json).collect();
    object
}

/// The latencies of packets in the JSON; `None` if no packet had a time.
pub fn latency_json(delays: &Delays) -> Option<Value> {
    let samples = delays.times.count();
    if samples == 0 {
        return None;
    }
    let mut latency = json!({"samples": samples});
    for (_, name, share) in PERCENTILES {
        latency[name] = delays.percentile(share).into();
    }
    latency["max_ns"] = delays.longest_ns.into();
    Some(latency)
}

fn worker_json(worker: &WorkerAnalysis) -> Value {
    let mut object = json!({"worker": worker.worker});
    for (name, count) in COUNTS.into_iter().chain([RESTARTS]) {
        object[name] = count(worker).into();
    }
    object["first"] = worker.first.into();
    object["last"] = worker.last.into();
    // Queues or CPUs that received packets of the stream.
    object["ways"] = worker.ways.into();
    object
}

/// Prints the analysis for people.
pub fn print(analysis: &Analysis, out: &mut impl Write) -> io::Result<()> {
    write!(out, "analysis\n  stream")?;
    for (column, _) in COUNTS {
        write!(out, "{column:>14}")?;
    }
    writeln!(out)?;
    for stream in &analysis.streams {
        write!(out, "  {:>6}", stream.stream)?;
        for (_, count) in COUNTS {
            write!(out, "{:>14}", show_count(stream.sum(count)))?;
        }
        writeln!(out)?;
    }
    let delays = analysis.streams.iter().map(|it| (it.stream.to_string(), &it.delays));
    print_latencies(&delays.collect::<Vec<_>>(), 6, out)?;
    let of_streams = |of: fn(&StreamAnalysis) -> u64| analysis.streams.iter().map(of).sum();
    let notes = [
        (analysis.others.unstamped, "without a stamp"),
        (analysis.others.corrupt, "corrupt, of no stream that is known"),
        (analysis.others.untracked, "stamped, of more streams and workers than there is room for"),
        (
            analysis.others.unchecked,
            "stamped, and cut or a fragment: not all checksums could be checked",
        ),
        (of_streams(|it| it.delays.other_clock), "stamped by another clock: no latency"),
        (of_streams(|it| it.sum(RESTARTS.1)), "times a sender started over"),
    ];
    for (count, text) in notes.into_iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "  note {:>15}  {text}", show_count(count))?;
    }
    Ok(())
}

/// Prints the latencies of streams by name, in a column of this width; nothing without any.
pub fn print_latencies(
    streams: &[(String, &Delays)],
    width: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut timed = streams.iter().filter(|(_, delays)| delays.times.count() > 0).peekable();
    if timed.peek().is_none() {
        return Ok(());
    }
    write!(out, "  {:>width$}", "stream")?;
    for column in PERCENTILES.map(|(column, ..)| column).into_iter().chain(["max"]) {
        write!(out, "{column:>14}")?;
    }
    writeln!(out, "  latency")?;
    for (name, delays) in timed {
        write!(out, "  {name:>width$}")?;
        let percentiles = PERCENTILES.map(|(.., share)| delays.percentile(share).unwrap_or(0));
        for ns in percentiles.into_iter().chain([delays.longest_ns]) {
            write!(out, "{:>14}", show_duration(Duration::from_nanos(ns)))?;
        }
        let samples = delays.times.count();
        writeln!(out, "  of {} {}", show_count(samples), packets_word(samples))?;
    }
    Ok(())
}
