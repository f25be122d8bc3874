//! Receiving: from a system call a packet to counting where the packet comes in.

use super::{StepContext, count};
use crate::process::{COUNTING, Program};
use crate::process_output::Count;
use crate::step::{Intake, Job, Setting, Step, To, Way};
use crate::testbed::list;

/// The steps, from the slowest to the fastest.
pub fn steps(place: &StepContext<'_>) -> Vec<Step> {
    let port = |options: &str| format!("packet:{}?{options}", place.right());
    let xdp = format!("xdp:{}", place.right());
    let af_xdp = format!("{xdp}?method=af_xdp");
    let plain = place.plain();
    let batched = Setting { batch: place.setting.batch, ..plain };
    let batch = batched.batch.map_or_else(String::new, |batch| format!("&batch={batch}"));
    vec![
        step(place, "recv", plain, &port("method=recv"), &[]),
        step(place, "recvmmsg", batched, &port(&format!("method=recvmmsg{batch}")), &[]),
        step(place, "TPACKET_V3 ring", plain, &port("method=ring"), &[]),
        shared(place, "cpu"),
        shared(place, "hash"),
        queued(place, "mirror: copies by XDP", &format!("mirror:{}", place.right()), &[]),
        queued(place, "AF_XDP, adaptive", &af_xdp, &["--wait", "adaptive"]),
        queued(place, "AF_XDP, spin", &af_xdp, &["--wait", "spin"]),
        queued(place, "xdp: taken by XDP", &xdp, &[]),
        step(place, "counted in XDP", plain, &format!("{xdp}?action=drop"), &[]),
        step(place, "analyzed in XDP", plain, &format!("{xdp}?action=drop"), &["--analyze"]),
        capture(place, "pcapng"),
        capture(place, "pcap"),
    ]
}

/// Writes to a file of this format.
fn capture(place: &StepContext<'_>, format: &str) -> Step {
    let file = place.received_file();
    let program = Program::sluice(["capture", &format!("packet:{}", place.right()), "-w", &file])
        .and(["--format", format, "--json", "--interval", "200ms"]);
    let job = Job { program, cpu: place.receiver(), ready: COUNTING, count: Some(Count::COUNTED) };
    place.removing(&file, of(&format!("capture to {format}"), place.plain(), job))
}

fn step(place: &StepContext<'_>, name: &str, setting: Setting, port: &str, flags: &[&str]) -> Step {
    of(name, setting, count(place, port, flags.iter().copied()))
}

/// A thread for each queue of the interface, on as many CPUs as are wanted for that.
fn queued(place: &StepContext<'_>, name: &str, port: &str, flags: &[&str]) -> Step {
    let cpus = place.receivers(place.setting.cores.min(place.setting.queues));
    if cpus.len() < 2 {
        return step(place, name, place.plain(), port, flags);
    }
    let job = count(place, port, flags.iter().copied().chain(["--cpus", &list(&cpus)]));
    on(cpus.len(), place, name, job)
}

/// A ring for each of several threads, which share the packets; two of them where there is but one CPU.
fn shared(place: &StepContext<'_>, fanout: &str) -> Step {
    let cpus = place.receivers(place.setting.cores.max(2));
    let port = format!("packet:{}?method=ring&fanout={fanout}", place.right());
    let threads = cpus.len().max(2).to_string();
    let job = count(place, &port, ["--threads", &threads, "--cpus", &list(&cpus)]);
    on(cpus.len(), place, &format!("ring, fanout {fanout}"), job)
}

/// A step whose program sees itself to the CPUs that its threads have.
fn on(cores: usize, place: &StepContext<'_>, name: &str, job: Job) -> Step {
    let setting = Setting { cores: cores as u32, ..place.plain() };
    of(name, setting, Job { cpu: None, ..job })
}

fn of(name: &str, setting: Setting, job: Job) -> Step {
    let intake = Intake::of(job, To::Nobody);
    Step::new("sluice", name, setting, Way::Receive(intake))
}
