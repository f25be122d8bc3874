//! Forwarding: from one veth to another, on a host between the sender and the receiver.

use sluicegate::xdp::live;

use super::{BEGUN, StepContext};
use crate::device::{bridge, no_bridge, no_router, router};
use crate::process::Program;
use crate::step::{Destination, Setting, Step};
use crate::testbed::Side;

/// The steps, from the slowest to the fastest.
pub fn steps(context: &StepContext<'_>) -> Vec<Step> {
    let Some(middle) = &context.testbed.middle else { return Vec::new() };
    let [from, to] = middle.each_ref().map(|side| &side.interface);
    let step = |name: &str, ports: [String; 2], flags: &[&str]| {
        let program = Program::sluice(["forward", &ports[0], &ports[1]])
            .and(["--json", "--interval", "200ms"])
            .and(flags.iter().copied())
            .on(context.receiver())
            .ready(BEGUN);
        context.forwards("sluice", name, Destination::Host, Some(program))
    };
    let batch = context.setting.batch;
    let batch_text = batch.map(|batch| batch.to_string());
    let batched = |name: &str, ports: [String; 2], flags: &[&str]| {
        let batch_flags = batch_text.iter().flat_map(|batch| ["--batch", batch]);
        let step = step(name, ports, &flags.iter().copied().chain(batch_flags).collect::<Vec<_>>());
        Step { setting: Setting { batch, ..step.setting }, ..step }
    };
    let ports = |driver: &str| [format!("{driver}:{from}"), format!("{driver}:{to}")];
    let mut steps = vec![batched("packet sockets", ports("packet"), &[])];
    steps.extend(routing(context, middle));
    let bridging = context.forwards("linux", "kernel bridge", Destination::Host, None);
    steps.push(Step { prepare: bridge(middle), tidy: vec![no_bridge()], ..bridging });
    steps.push(batched("AF_XDP swap, adaptive", ports("xdp"), &[]));
    steps.push(batched("AF_XDP swap, spin", ports("xdp"), &["--wait", "spin"]));
    if context.setting.size <= live::MAX_BYTES {
        let cpu = context.receiver().unwrap_or(0);
        let live = [format!("xdp:{from}"), format!("live:{to}?cpu={cpu}")];
        steps.push(batched("xdp: to live:, one way", live, &["--one-way"]));
    }
    steps.push(step("XDP redirect", ports("xdp"), &["--in-kernel"]));
    steps
}

/// The kernel's routing; none if the next hop's address is unknown.
fn routing(context: &StepContext<'_>, middle: &[Side; 2]) -> Option<Step> {
    let mac = context.testbed.right.mac().ok()?.to_string();
    let step = context.forwards("linux", "kernel routing", Destination::Router, None);
    Some(Step { prepare: router(middle, &mac), tidy: no_router(middle).into(), ..step })
}
