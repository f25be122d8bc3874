//! Sending: from a system call per packet to frames made in the kernel.

use sluicegate::xdp::live;

use super::StepContext;
use crate::process::{Count, Program};
use crate::step::{Method, Setting, Step};
use crate::testbed::list;

/// The steps, from the slowest to the fastest.
pub fn steps(context: &StepContext<'_>) -> Vec<Step> {
    let (left, batch) = (context.left(), context.setting.batch);
    let slots = |batch: u32| (2 * batch * slots_each(context)).max(512);
    let options = batch.map_or_else(String::new, |n| format!("&batch={n}&slots={}", slots(n)));
    let one = |name: &str, send: &str| {
        let flags = ["--cpus", &list(context.senders(1))];
        let program = context.generate(&format!("packet:{left}?send={send}"), flags);
        step(context, name, 1, program)
    };
    let batched = |name: &str, send: &str| {
        let step = one(name, &format!("{send}{options}"));
        Step { setting: Setting { batch, ..step.setting }, ..step }
    };
    let mut steps = vec![
        one("sendto", "sendto"),
        batched("sendmmsg", "sendmmsg"),
        one("TX ring", "ring"),
        through("pfifo_fast", context, one("TX ring through pfifo_fast", "ring")),
        through("fq_codel", context, one("TX ring through fq_codel", "ring")),
        one("TX ring, qdisc bypass", "ring&qdisc=bypass"),
        batched("sendmmsg, qdisc bypass", "sendmmsg&qdisc=bypass"),
        af_xdp(context),
    ];
    if context.testbed.cpus.count() > 1 && context.setting.size <= live::MAX_BYTES {
        steps.push(live_ring(context));
    }
    steps.push(context.with_capture_file(replay(context)));
    steps.push(live_frames(context, "live frames", &[]));
    let random = [("--src", "198.18.0.0/16"), ("--sport", "1024-65535")];
    steps.push(live_frames(context, "live frames, random source", &random));
    if context.setting.size == 60 {
        let imix = [random[0], random[1], ("--size", "imix")];
        let step = live_frames(context, "live frames, random source, IMIX", &imix);
        steps.push(Step { setting: Setting { size: Setting::MIXED, ..step.setting }, ..step });
    }
    steps
}

fn step(context: &StepContext<'_>, name: &str, cores: usize, program: Program) -> Step {
    let setting = Setting { cores: cores as u32, ..context.plain() };
    Step::new("sluice", name, setting, Method::Send(program))
}

/// Slots of a packet in a ring whose buffers have 2048 bytes.
fn slots_each(context: &StepContext<'_>) -> u32 {
    context.setting.size.div_ceil(2048)
}

/// Adds a queueing discipline to a step; a veth has none (noqueue) by default.
fn through(discipline: &str, context: &StepContext<'_>, step: Step) -> Step {
    let qdisc = |verb| Program::tool("tc", ["qdisc", verb, "dev", context.left(), "root"]);
    step.with(qdisc("replace").and([discipline]), qdisc("del"))
}

/// A queue of the interface for each CPU.
fn af_xdp(context: &StepContext<'_>) -> Step {
    let queues = context.setting.cores.min(context.setting.queues).max(1);
    let batch = context.setting.batch;
    let slots = batch.map_or_else(String::new, |batch| {
        // A small ring fills all slots but one at once, a large one half of them.
        let slots = slots_each(context) * if batch <= 256 { batch } else { 2 * batch } + 1;
        format!("?slots={slots}&ring_size={}", (2 * slots).max(4096))
    });
    let port = format!("xdp:{}/0-{}{slots}", context.left(), queues - 1);
    let program = context.generate(&port, ["--cpus", &list(context.senders(queues))]);
    let step = step(context, "AF_XDP", queues as usize, program);
    Step { setting: Setting { batch, ..step.setting }, ..step }
}

/// Packets written by one CPU, and sent as live frames by another.
fn live_ring(context: &StepContext<'_>) -> Step {
    let cpus = context.senders(2);
    let port = format!("live:{}?cpu={}", context.left(), cpus[0]);
    step(context, "live: ring", 2, context.generate(&port, ["--cpus", &list(&cpus[1..])]))
}

/// The packets of a file, again and again; the reader and the sender have a CPU each.
fn replay(context: &StepContext<'_>) -> Step {
    let cpus = context.senders(2);
    let file = context.capture_file();
    let port = match context.setting.size {
        ..=live::MAX_BYTES => context.left().to_owned(),
        _ => format!("packet:{}", context.left()),
    };
    let program = Program::sluice(["replay", &file, &port, "--top-speed", "--loop", "0"])
        .and(["--json", "--cpus", &list(&cpus[cpus.len() - 1..])])
        .counting(Count::SENT);
    step(context, "replay of a file", cpus.len(), program)
}

/// Frames made in the kernel, on each CPU.
fn live_frames(context: &StepContext<'_>, name: &str, packets: &[(&str, &str)]) -> Step {
    let cpus = context.senders(context.setting.cores);
    let threads = cpus.len().to_string();
    let flags = ["--method", "live", "--cpus", &list(cpus), "--threads", &threads];
    let program = context.generate(context.left(), flags);
    let program = packets.iter().fold(program, |program, (flag, value)| program.set(flag, value));
    step(context, name, cpus.len(), program)
}
