//! Sending: from a system call a packet to frames made in the kernel.

use std::time::Duration;

use sluicegate::xdp::live;

use super::{StepContext, generate};
use crate::process::{Program, Ready};
use crate::process_output::Count;
use crate::step::{Job, Order, Setting, Step, Way};
use crate::testbed::{End, list};

/// The steps, from the slowest to the fastest.
pub fn steps(place: &StepContext<'_>) -> Vec<Step> {
    let left = place.left();
    let plain = place.plain();
    let batched = Setting { batch: place.setting.batch, ..plain };
    let batch = batched.batch.map_or_else(String::new, |batch| {
        format!("&batch={batch}&slots={}", (2 * batch * slots_each(place)).max(512))
    });
    let one = |name: &str, setting: Setting, port: &str| {
        let job = generate(place, port, ["--cpus", &list(&place.cpus.senders(1))]);
        Step::new("sluice", name, setting, Way::Send(job))
    };
    let ring = format!("packet:{left}?send=ring");
    let mut steps = vec![
        one("sendto", plain, &format!("packet:{left}?send=sendto")),
        one("sendmmsg", batched, &format!("packet:{left}?send=sendmmsg{batch}")),
        one("TX ring", plain, &ring),
        through("pfifo_fast", place, one("TX ring through pfifo_fast", plain, &ring)),
        through("fq_codel", place, one("TX ring through fq_codel", plain, &ring)),
        one("TX ring, qdisc bypass", plain, &format!("{ring}&qdisc=bypass")),
        one(
            "sendmmsg, qdisc bypass",
            batched,
            &format!("packet:{left}?send=sendmmsg&qdisc=bypass{batch}"),
        ),
        af_xdp(place),
    ];
    if place.cpus.count() > 1 && place.setting.size <= live::MAX_BYTES {
        steps.push(live_ring(place));
    }
    steps.push(place.with_capture_file(replay(place)));
    steps.push(live(place, "live frames", &[]));
    let random = [("--src", "198.18.0.0/16"), ("--sport", "1024-65535")];
    steps.push(live(place, "live frames, random source", &random));
    if place.setting.size == 60 {
        let imix = [random[0], random[1], ("--size", "imix")];
        steps.push(live(place, "live frames, random source, IMIX", &imix));
    }
    steps
}

/// Slots that a packet has in a ring whose buffers have 2048 bytes.
fn slots_each(place: &StepContext<'_>) -> u32 {
    place.setting.size.div_ceil(2048)
}

/// Adds a queueing discipline to a step; a veth has none (noqueue) by default.
fn through(discipline: &str, place: &StepContext<'_>, step: Step) -> Step {
    let tc = |arguments: &[&str]| Order {
        end: End::Left,
        program: Program::tool("tc", arguments.iter().copied()),
    };
    let device = ["dev", place.left(), "root"];
    let set = [&["qdisc", "replace"], &device[..], &[discipline]].concat();
    let unset = [&["qdisc", "del"], &device[..]].concat();
    step.with(tc(&set), tc(&unset))
}

/// A queue of the interface for each CPU.
fn af_xdp(place: &StepContext<'_>) -> Step {
    let queues = place.setting.cores.min(place.setting.queues).max(1);
    let batch = place.setting.batch;
    let slots = batch.map_or_else(String::new, |batch| {
        // Of a small ring all slots but one are filled at once, of a large one half.
        let slots = slots_each(place) * if batch <= 256 { batch } else { 2 * batch } + 1;
        format!("?slots={slots}&ring_size={}", (2 * slots).max(4096))
    });
    let port = format!("xdp:{}/0-{}{slots}", place.left(), queues - 1);
    let job = generate(place, &port, ["--cpus", &list(&place.cpus.senders(queues))]);
    let setting = Setting { cores: queues, batch, ..place.plain() };
    Step::new("sluice", "AF_XDP", setting, Way::Send(job))
}

/// Packets written by one CPU, and sent as live frames by another.
fn live_ring(place: &StepContext<'_>) -> Step {
    let cpus = place.cpus.senders(2);
    let port = format!("live:{}?cpu={}", place.left(), cpus[0]);
    let job = generate(place, &port, ["--cpus", &list(&cpus[1..])]);
    let setting = Setting { cores: 2, ..place.plain() };
    Step::new("sluice", "live: ring", setting, Way::Send(job))
}

/// The packets of a file, again and again; the reader and what sends have a CPU each.
fn replay(place: &StepContext<'_>) -> Step {
    let cpus = place.cpus.senders(2);
    let file = place.capture_file();
    let port = match place.setting.size {
        ..=live::MAX_BYTES => place.left().to_owned(),
        _ => format!("packet:{}", place.left()),
    };
    let program = Program::sluice(["replay", &file, &port, "--top-speed", "--loop", "0"]).and([
        "--json",
        "--cpus",
        &list(&cpus[cpus.len() - 1..]),
    ]);
    let (ready, count) = (Ready::After(Duration::ZERO), Some(Count::SENT));
    let job = Job { program, cpu: None, ready, count };
    let setting = Setting { cores: cpus.len() as u32, ..place.plain() };
    Step::new("sluice", "replay of a file", setting, Way::Send(job))
}

/// Frames made in the kernel, on each CPU.
fn live(place: &StepContext<'_>, name: &str, packets: &[(&str, &str)]) -> Step {
    let cpus = place.cpus.senders(place.setting.cores);
    let threads = cpus.len().to_string();
    let flags = ["--method", "live", "--cpus", &list(&cpus), "--threads", &threads];
    let mut job = generate(place, place.left(), flags);
    for (flag, value) in packets {
        job.program = job.program.set(flag, value);
    }
    let setting = Setting { cores: cpus.len() as u32, ..place.plain() };
    Step::new("sluice", name, setting, Way::Send(job))
}
