//! Forwarding by the host between the sender and the receiver: the steps, and the host as a device.

use sluicegate::error::Error;
use sluicegate::xdp::live;

use super::{BEGUN, StepContext};
use crate::observer::{BenchObserver, Failure};
use crate::process::{LabHost, Program, Running, quoted};
use crate::step::{Destination, Setting, Step};
use crate::testbed::{ADDRESS, Side, Testbed, list};

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
    let [make, remove] = bridge(middle);
    let bridging = context.forwards("linux", "kernel bridge", Destination::Host, None);
    steps.push(bridging.with(make, remove));
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
    let [make, remove] = router(middle, &mac);
    let step = context.forwards("linux", "kernel routing", Destination::Router, None);
    Some(step.with(make, remove))
}

/// Starts `sluice forward` in the middle of a testbed. The device runs until the value is dropped.
///
/// # Errors
/// It does not start.
pub fn start_forwarder(testbed: &Testbed, watch: &dyn BenchObserver) -> Result<Running, Failure> {
    let ports = middle(testbed)?.each_ref().map(|side| format!("xdp:{}", side.interface));
    let cpus = list(testbed.cpus.receivers(1, 1));
    let program = Program::sluice(["forward", &ports[0], &ports[1]])
        .and(["--cpus", &cpus, "--json", "--interval", "1s"])
        .at(LabHost::Middle)
        .ready(BEGUN);
    testbed.start_ready(&program, watch)
}

/// Makes the host in the middle of a testbed a bridge.
///
/// # Errors
/// `ip` is not installed.
pub fn make_bridge(testbed: &Testbed) -> Result<(), Failure> {
    let [make, _] = bridge(middle(testbed)?);
    testbed.run(&make).map(drop)
}

fn middle(testbed: &Testbed) -> Result<&[Side; 2], Error> {
    let none = || Error::Usage("no host stands between two existing interfaces".into());
    testbed.middle.as_ref().ok_or_else(none)
}

/// The command that makes the host in the middle a bridge, and the one that removes the bridge.
pub fn bridge(middle: &[Side; 2]) -> [Program; 2] {
    let [from, to] = middle.each_ref().map(|side| quoted(&side.interface));
    let make = format!(
        "ip link add bridge type bridge && ip link set {from} master bridge && \
         ip link set {to} master bridge && ip link set bridge up"
    );
    [ip(make), ip("ip link del bridge".into())]
}

/// The command that makes the host in the middle route packets to [`ADDRESS`], whose neighbour entry gets
/// `mac`, and the one that undoes it.
fn router([_, out]: &[Side; 2], mac: &str) -> [Program; 2] {
    const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
    let out = quoted(&out.interface);
    let make = format!(
        "ip route add {ADDRESS}/32 dev {out} && \
         ip neigh replace {ADDRESS} lladdr {mac} dev {out} nud permanent && echo 1 > {FORWARDING}"
    );
    let remove = format!(
        "echo 0 > {FORWARDING}; ip neigh del {ADDRESS} dev {out}; ip route del {ADDRESS}/32 dev {out}"
    );
    [ip(make), ip(remove)]
}

/// A script of `ip` commands for the host in the middle.
fn ip(script: String) -> Program {
    Program::script("ip", script).at(LabHost::Middle)
}
