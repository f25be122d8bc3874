//! Receiving: from a system call per packet to counting in XDP.

use super::{StepContext, remove};
use crate::process::{COUNTING, Count, LabHost, Program};
use crate::step::{Destination, Setting, Step};
use crate::testbed::list;

/// The steps, from the slowest to the fastest.
pub fn steps(context: &StepContext<'_>) -> Vec<Step> {
    let right = context.right();
    let packet = |options: &str| format!("packet:{right}?{options}");
    let (xdp, drop) = (format!("xdp:{right}"), format!("xdp:{right}?action=drop"));
    let af_xdp = format!("{xdp}?method=af_xdp");
    let mut batched = step(context, "recvmmsg", &packet("method=recvmmsg"), &[]);
    if let Some(batch) = context.setting.batch {
        batched =
            step(context, "recvmmsg", &packet(&format!("method=recvmmsg&batch={batch}")), &[]);
        batched.setting.batch = Some(batch);
    }
    vec![
        step(context, "recv", &packet("method=recv"), &[]),
        batched,
        step(context, "TPACKET_V3 ring", &packet("method=ring"), &[]),
        fanout(context, "cpu"),
        fanout(context, "hash"),
        queued(context, "mirror: copies by XDP", &format!("mirror:{right}"), &[]),
        queued(context, "AF_XDP, adaptive", &af_xdp, &["--wait", "adaptive"]),
        queued(context, "AF_XDP, spin", &af_xdp, &["--wait", "spin"]),
        queued(context, "xdp: taken by XDP", &xdp, &[]),
        step(context, "counted in XDP", &drop, &[]),
        step(context, "analyzed in XDP", &drop, &["--analyze"]),
        capture(context, "pcapng"),
        capture(context, "pcap"),
    ]
}

/// Writes to a file of this format.
fn capture(context: &StepContext<'_>, format: &str) -> Step {
    let file = context.received_file();
    let program = Program::sluice(["capture", &format!("packet:{}", context.right()), "-w", &file])
        .and(["--format", format, "--json", "--interval", "200ms"])
        .on(context.receiver())
        .ready(COUNTING)
        .counting(Count::COUNTED);
    let name = format!("capture to {format}");
    let step = context.receives("sluice", name, Destination::Nobody, program);
    step.then(remove(&file).at(LabHost::Right))
}

fn step(context: &StepContext<'_>, name: &str, port: &str, flags: &[&str]) -> Step {
    let program = context.count(port, flags.iter().copied());
    context.receives("sluice", name, Destination::Nobody, program)
}

/// A thread for each queue of the interface, on up to as many CPUs as requested.
fn queued(context: &StepContext<'_>, name: &str, port: &str, flags: &[&str]) -> Step {
    let cpus = context.receivers(context.setting.cores.min(context.setting.queues));
    match cpus.len() {
        ..2 => step(context, name, port, flags),
        _ => pinned_step(context, name, port, cpus, flags),
    }
}

/// A ring for each of several threads, which share the packets; at least two threads, even on one CPU.
fn fanout(context: &StepContext<'_>, fanout: &str) -> Step {
    let cpus = context.receivers(context.setting.cores.max(2));
    let port = format!("packet:{}?method=ring&fanout={fanout}", context.right());
    let threads = cpus.len().max(2).to_string();
    pinned_step(context, &format!("ring, fanout {fanout}"), &port, cpus, &["--threads", &threads])
}

/// A step whose program pins its threads to these CPUs.
fn pinned_step(
    context: &StepContext<'_>,
    name: &str,
    port: &str,
    cpus: &[usize],
    flags: &[&str],
) -> Step {
    let program = context.count(port, flags.iter().copied()).and(["--cpus", &list(cpus)]).on(None);
    let step = context.receives("sluice", name, Destination::Nobody, program);
    Step { setting: Setting { cores: cpus.len() as u32, ..context.plain() }, ..step }
}
