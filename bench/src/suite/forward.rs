//! Forwarding: from one veth to another, on a host between the sender and the receiver.

use sluicegate::xdp::live;

use super::{BEGUN, StepContext};
use crate::device::{bridge, no_bridge, no_router, router};
use crate::process::Program;
use crate::step::{Intake, Job, Step, To, Way};
use crate::testbed::ADDRESS;
use crate::testbed::Line;

/// The steps, from the slowest to the fastest.
pub fn steps(place: &StepContext<'_>) -> Vec<Step> {
    let Some(line) = &place.testbed.line else { return Vec::new() };
    let (from, to) = (&line.from, &line.to);
    let step = |name: &str, ports: [String; 2], flags: &[&str]| {
        let program = Program::sluice(["forward", &ports[0], &ports[1]]);
        let program = program.and(["--json", "--interval", "200ms"]).and(flags.iter().copied());
        let job = Job { program, cpu: place.receiver(), ready: BEGUN, count: None };
        passing(place, "sluice", name, Some(job), To::Host)
    };
    let batch = place.setting.batch.map(|batch| batch.to_string());
    let batched = |name: &str, ports: [String; 2], flags: &[&str]| {
        let batch = batch.iter().flat_map(|batch| ["--batch", batch]);
        let mut step = step(name, ports, &flags.iter().copied().chain(batch).collect::<Vec<_>>());
        step.setting.batch = place.setting.batch;
        step
    };
    let packet = || [format!("packet:{from}"), format!("packet:{to}")];
    let xdp = || [format!("xdp:{from}"), format!("xdp:{to}")];
    let cpu = place.receiver().unwrap_or(0);
    let live = [format!("xdp:{from}"), format!("live:{to}?cpu={cpu}")];
    let mut steps = vec![batched("packet sockets", packet(), &[])];
    steps.extend(routing(place, line));
    steps.push(bridging(place, line));
    steps.push(batched("AF_XDP swap, adaptive", xdp(), &[]));
    steps.push(batched("AF_XDP swap, spin", xdp(), &["--wait", "spin"]));
    if place.setting.size <= live::MAX_BYTES {
        steps.push(batched("xdp: to live:, one way", live, &["--one-way"]));
    }
    steps.push(step("XDP redirect", xdp(), &["--in-kernel"]));
    steps
}

/// A step in which something in the middle passes packets on.
pub fn passing(
    place: &StepContext<'_>,
    by: &'static str,
    name: &str,
    job: Option<Job>,
    to: To,
) -> Step {
    Step::new(by, name, place.plain(), Way::Receive(Intake::relayed(job, to)))
}

/// By the kernel's routing; none where nobody knows the next hop's address.
fn routing(place: &StepContext<'_>, line: &Line) -> Option<Step> {
    let mac = place.testbed.right.mac().ok()?.to_string();
    let mut step = passing(place, "linux", "kernel routing", None, To::Router);
    step.prepare = router(line, ADDRESS, &mac);
    step.tidy = no_router(line, ADDRESS).into();
    Some(step)
}

fn bridging(place: &StepContext<'_>, line: &Line) -> Step {
    let mut step = passing(place, "linux", "kernel bridge", None, To::Host);
    step.prepare = bridge(line);
    step.tidy = vec![no_bridge()];
    step
}
