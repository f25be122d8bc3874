//! The cost of waiting: the CPU time of each way of receiving at modest rates, and the round trip
//! through each way of forwarding.
//!
//! At full speed nobody waits. Most packets come at 10,000 to 300,000 a second, and there a program's
//! cost is how often it looks and how it is woken; and a forwarder's delay is how soon it wakes.

mod receiving;
mod round_trip;

use std::time::Duration;

use serde::Serialize;

use crate::failure::Failure;
use crate::rounds::{BenchObserver, Progress};
use crate::testbed::{Cpus, Testbed, TestbedConfig};

pub use receiving::{AtRate, OfReceiver};
pub use round_trip::{OfForwarder, RELAYING, RoundTrips};

/// The rates, times and counts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostSettings {
    /// Packets a second that receivers get; at 0 nothing is sent.
    pub rates: Vec<u64>,
    /// How long a receiver is measured at each rate, once packets have come for a second.
    pub time: Duration,
    /// Pings through each forwarder.
    pub pings: u32,
}

/// The results of a run.
#[derive(Debug, Serialize)]
pub struct CostResults {
    /// Each way of receiving.
    pub receiving: Vec<OfReceiver>,
    /// Each way of forwarding.
    pub forwarding: Vec<OfForwarder>,
    /// False where it was stopped before.
    pub complete: bool,
}

/// Measures in labs that it makes.
///
/// # Errors
/// A missing privilege; it was stopped before anything was measured. A program that fails is noted in its
/// row.
pub fn run(
    settings: &CostSettings,
    cpus: &Cpus,
    watch: &dyn BenchObserver,
) -> Result<CostResults, Failure> {
    let mut findings =
        CostResults { receiving: Vec::new(), forwarding: Vec::new(), complete: false };
    match measure(settings, cpus, watch, &mut findings) {
        Ok(()) => findings.complete = true,
        Err(Failure::Stopped) if !findings.receiving.is_empty() => {}
        Err(failure) => return Err(failure),
    }
    Ok(findings)
}

fn measure(
    settings: &CostSettings,
    cpus: &Cpus,
    watch: &dyn BenchObserver,
    findings: &mut CostResults,
) -> Result<(), Failure> {
    let pair = Testbed::make(TestbedConfig { queues: 1, jumbo: false, line: false })?;
    let receivers = receiving::receivers(&pair);
    let line = Testbed::make(TestbedConfig { queues: 1, jumbo: false, line: true })?;
    let forwarders = round_trip::forwarders(&line, cpus);
    let turns = receivers.len() * settings.rates.len() + forwarders.len();
    let receiver_takes = settings.time + 4 * receiving::LEAD;
    let forwarder_takes = settings.pings * round_trip::INTERVAL + 2 * receiving::LEAD;
    let begins = |done: usize, step: &str| {
        let receiver_turns = (turns - forwarders.len()).saturating_sub(done) as u32;
        let forwarder_turns = (turns - done).min(forwarders.len()) as u32;
        let left = receiver_takes * receiver_turns + forwarder_takes * forwarder_turns;
        watch.progress(&Progress { step, done, turns, left });
    };
    let mut done = 0;
    for receiver in &receivers {
        findings.receiving.push(receiver.row());
        for &pps in &settings.rates {
            begins(done, &format!("{}, {pps} packets a second", receiver.name));
            done += 1;
            let turn = receiver.turn(&pair, cpus, pps, settings.time, watch);
            let Some(row) = findings.receiving.last_mut() else { continue };
            if let Some(turn) = note(turn, &mut row.failed)? {
                row.rates.push(turn);
            }
        }
    }
    for forwarder in &forwarders {
        begins(done, &format!("round trip, {}", forwarder.name));
        done += 1;
        let mut row = forwarder.row();
        row.round_trips =
            note(forwarder.turn(&line, cpus, settings.pings, watch), &mut row.failed)?;
        findings.forwarding.push(row);
    }
    Ok(())
}

/// Keeps what one step failed at; that it was stopped ends all.
fn note<T>(turn: Result<T, Failure>, failed: &mut Option<String>) -> Result<Option<T>, Failure> {
    match turn {
        Ok(turn) => Ok(Some(turn)),
        Err(Failure::Stopped) => Err(Failure::Stopped),
        Err(failure) => {
            failed.get_or_insert(failure.to_string());
            Ok(None)
        }
    }
}
