//! Receiving: from a system call a packet to counting where the packet comes in.

use super::{Place, count};
use crate::bed::list;
use crate::step::{Intake, Job, Setting, Step, To, Way};

/// The steps, from the slowest to the fastest.
pub fn steps(place: &Place<'_>) -> Vec<Step> {
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
        step(place, "mirror: copies by XDP", plain, &format!("mirror:{}", place.right()), &[]),
        step(place, "AF_XDP, adaptive", plain, &af_xdp, &["--wait", "adaptive"]),
        step(place, "AF_XDP, spin", plain, &af_xdp, &["--wait", "spin"]),
        step(place, "xdp: taken by XDP", plain, &xdp, &[]),
        step(place, "counted in XDP", plain, &format!("{xdp}?action=drop"), &[]),
    ]
}

fn step(place: &Place<'_>, name: &str, setting: Setting, port: &str, flags: &[&str]) -> Step {
    of(name, setting, count(place, port, flags.iter().copied()))
}

/// A ring for each of several threads, which share the packets.
fn shared(place: &Place<'_>, fanout: &str) -> Step {
    let cores = place.setting.cores.max(2);
    let port = format!("packet:{}?method=ring&fanout={fanout}", place.right());
    let cpus = list(&place.cpus.receivers(cores));
    let flags = ["--threads", &cores.to_string(), "--cpus", &cpus];
    let job = Job { cpu: None, ..count(place, &port, flags) };
    of(&format!("ring, fanout {fanout}"), Setting { cores, ..place.plain() }, job)
}

fn of(name: &str, setting: Setting, job: Job) -> Step {
    let intake = Intake::of(job, To::Nobody);
    Step::new("sluice", name, setting, Way::Receive(intake))
}
