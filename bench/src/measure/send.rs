//! Sending: what comes to the right end is counted there in XDP, whoever sends it and whatever it
//! says.

use std::time::{Duration, Instant};

use super::{Conditions, Load, lost, mpps, seen_in_xdp};
use crate::bed::{Bed, End};
use crate::failure::Failure;
use crate::measurement::Measurement;
use crate::process::{Program, Ready, Running};
use crate::profile::Who;
use crate::step::Job;
use crate::watch::Watch;

/// The longest that the first packets are waited for.
const FIRST: Duration = Duration::from_secs(20);
/// So many: a host sends a few by itself when its interface is new.
const BEGUN: u64 = 1000;
/// From then on, until the sender has found its pace.
const SETTLE: Duration = Duration::from_millis(300);

/// Runs a step once.
pub fn measure(
    bed: &Bed,
    job: &Job,
    conditions: &Conditions,
    watch: &dyn Watch,
) -> Result<Measurement, Failure> {
    let counter = count_in_xdp(bed, watch)?;
    let at_first = seen_in_xdp(bed, End::Right)?;
    let mut sender = job.program.start(bed, End::Left, job.cpu)?;
    sender.until(&job.ready, watch)?;
    first_packets(bed, &mut sender, at_first, watch)?;
    watch.pause(SETTLE)?;

    let (from, before) = (Instant::now(), seen_in_xdp(bed, End::Right)?);
    let (load, cpu_before) = (Load::begin(&bed.right, conditions)?, sender.cpu_ns());
    watch.pause(conditions.time)?;
    let (time, after) = (from.elapsed(), seen_in_xdp(bed, End::Right)?);
    let cpu_ns = sender.cpu_ns().saturating_sub(cpu_before);
    let packets = after.saturating_sub(before);
    let loaded = load.end()?;
    let who = Who { measured: Some(vec![sender.pid()]), ..Who::default() };
    sender.still_runs()?;

    let said = sender.end()?;
    // What is under way arrives.
    watch.pause(SETTLE)?;
    let whole = seen_in_xdp(bed, End::Right)?.saturating_sub(at_first);
    counter.end()?;
    let mut measurement = Measurement {
        mpps: mpps(packets, time),
        lost: (job.count)(&said).map(|attempted| lost(attempted, whole)),
        cpu_ns: Some(cpu_ns as f64 / packets.max(1) as f64),
        ..Measurement::default()
    };
    loaded.explain(&who, packets, &mut measurement);
    Ok(measurement)
}

/// Has everything that comes to the right end counted and dropped in XDP.
fn count_in_xdp(bed: &Bed, watch: &dyn Watch) -> Result<Running, Failure> {
    let port = format!("xdp:{}?action=drop", bed.right.interface);
    let program = Program::sluice(["count", &port, "--json", "--interval", "100ms"]);
    let mut running = program.start(bed, End::Right, None)?;
    running.until(&Ready::Says("\"time_s\""), watch)?;
    Ok(running)
}

/// Waits until the sender's packets come.
fn first_packets(
    bed: &Bed,
    sender: &mut Running,
    before: u64,
    watch: &dyn Watch,
) -> Result<(), Failure> {
    let deadline = Instant::now() + FIRST;
    while seen_in_xdp(bed, End::Right)? < before + BEGUN {
        sender.still_runs()?;
        if Instant::now() > deadline {
            return Err(Failure::of(format!("its packets do not come: {}", sender.complaint())));
        }
        watch.pause(Duration::from_millis(20))?;
    }
    Ok(())
}
