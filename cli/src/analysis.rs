//! Reports the results of `count --analyze`, as JSON and as text.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use sluicegate_traffic::analyse::{Analysis, Delays, StreamAnalysis, WorkerAnalysis};

use crate::units::{packets_word, show_count, show_duration};

/// The analysis in the JSON.
#[derive(Debug, Serialize)]
pub struct JsonAnalysis {
    streams: Vec<StreamJson>,
    unstamped: u64,
    corrupt: u64,
    untracked: u64,
    unchecked: u64,
}

#[derive(Debug, Serialize)]
struct StreamJson {
    stream: u8,
    #[serde(flatten)]
    counts: CountsJson,
    /// None where no packet had a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
    other_clock: u64,
    workers: Vec<WorkerJson>,
}

#[derive(Debug, Serialize)]
struct CountsJson {
    received: u64,
    lost: u64,
    duplicates: u64,
    reordered: u64,
    late: u64,
    corrupt: u64,
    restarts: u64,
}

#[derive(Debug, Serialize)]
struct WorkerJson {
    worker: u8,
    #[serde(flatten)]
    counts: CountsJson,
    first: u32,
    last: u32,
    /// Queues or CPUs that have seen some of it.
    ways: u64,
}

#[derive(Debug, Serialize)]
struct Latency {
    samples: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    max_ns: u64,
}

impl CountsJson {
    fn of(sum: impl Fn(fn(&WorkerAnalysis) -> u64) -> u64) -> Self {
        Self {
            received: sum(|worker| worker.counts.received),
            lost: sum(|worker| worker.lost),
            duplicates: sum(|worker| worker.counts.duplicates),
            reordered: sum(|worker| worker.counts.reordered),
            late: sum(|worker| worker.counts.late),
            corrupt: sum(|worker| worker.counts.corrupt),
            restarts: sum(|worker| worker.restarts),
        }
    }
}

impl Latency {
    fn of(delays: &Delays) -> Option<Self> {
        Some(Self {
            samples: delays.times.count(),
            p50_ns: delays.percentile(0.5)?,
            p90_ns: delays.percentile(0.9)?,
            p99_ns: delays.percentile(0.99)?,
            p99_9_ns: delays.percentile(0.999)?,
            max_ns: delays.longest_ns,
        })
    }
}

impl From<&StreamAnalysis> for StreamJson {
    fn from(stream: &StreamAnalysis) -> Self {
        let workers = stream.workers.iter().map(|worker| WorkerJson {
            worker: worker.worker,
            counts: CountsJson::of(|of| of(worker)),
            first: worker.first,
            last: worker.last,
            ways: worker.ways,
        });
        Self {
            stream: stream.stream,
            counts: CountsJson::of(|of| stream.sum(of)),
            latency: Latency::of(&stream.delays),
            other_clock: stream.delays.other_clock,
            workers: workers.collect(),
        }
    }
}

impl From<&Analysis> for JsonAnalysis {
    fn from(analysis: &Analysis) -> Self {
        let others = analysis.others;
        Self {
            streams: analysis.streams.iter().map(StreamJson::from).collect(),
            unstamped: others.unstamped,
            corrupt: others.corrupt,
            untracked: others.untracked,
            unchecked: others.unchecked,
        }
    }
}

const COLUMNS: [&str; 6] = ["received", "lost", "duplicates", "reordered", "late", "corrupt"];
const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

impl JsonAnalysis {
    /// Prints it for people.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "analysis\n  stream")?;
        for column in COLUMNS {
            write!(out, "{column:>14}")?;
        }
        writeln!(out)?;
        for StreamJson { stream, counts, .. } in &self.streams {
            let CountsJson { received, lost, duplicates, reordered, late, corrupt, .. } = *counts;
            write!(out, "  {stream:>6}")?;
            for count in [received, lost, duplicates, reordered, late, corrupt] {
                write!(out, "{:>14}", show_count(count).to_string())?;
            }
            writeln!(out)?;
        }
        self.print_latencies(out)?;
        self.print_notes(out)
    }

    fn print_latencies(&self, out: &mut impl Write) -> io::Result<()> {
        if self.streams.iter().all(|stream| stream.latency.is_none()) {
            return Ok(());
        }
        write!(out, "  stream")?;
        for column in PERCENTILES {
            write!(out, "{column:>14}")?;
        }
        writeln!(out, "  latency")?;
        for StreamJson { stream, latency, .. } in &self.streams {
            let Some(Latency { samples, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns }) = latency
            else {
                continue;
            };
            write!(out, "  {stream:>6}")?;
            for ns in [p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns] {
                write!(out, "{:>14}", show_duration(Duration::from_nanos(*ns)).to_string())?;
            }
            writeln!(out, "  of {} {}", show_count(*samples), packets_word(*samples))?;
        }
        Ok(())
    }

    fn print_notes(&self, out: &mut impl Write) -> io::Result<()> {
        let of_streams = |of: fn(&StreamJson) -> u64| self.streams.iter().map(of).sum();
        let notes = [
            (self.unstamped, "without a stamp"),
            (self.corrupt, "corrupt, of no stream that is known"),
            (self.untracked, "stamped, of more streams and workers than there is room for"),
            (self.unchecked, "stamped, and cut or a fragment: not all checksums could be checked"),
            (of_streams(|it| it.other_clock), "stamped by another clock: no latency"),
            (of_streams(|it| it.counts.restarts), "times a sender started over"),
        ];
        for (count, text) in notes {
            if count > 0 {
                writeln!(out, "  note {:>15}  {text}", show_count(count).to_string())?;
            }
        }
        Ok(())
    }
}
