//! Programs of dpdk-testpmd, DPDK's own benchmark, with the drivers that leave the card to the kernel.
//!
//! It polls, so it always takes a whole CPU. It runs without huge pages.

use super::StepContext;
use super::pipe::{self, alone, memif};
use crate::process::{Count, Program, Ready};
use crate::step::Step;

/// Its name in reports.
pub const NAME: &str = "dpdk-testpmd";

/// All steps of the suite of pipes: from testpmd to itself, to Sluice and from Sluice, in both roles.
pub fn pipes(context: &StepContext<'_>) -> Vec<Step> {
    let end = |role: &str, cpu, mode: &str| {
        let socket = pipe::socket_file(context);
        let device = format!("net_memif0,role={role},socket={socket},socket-abstract=no");
        testpmd(context, cpu, &[device], mode).counting(Count::After("Rx-pps:"))
    };
    let mut steps = Vec::new();
    for (from, to) in [(NAME, "itself"), (NAME, "sluice"), ("sluice", NAME)] {
        for (sender, receiver) in [("client", "server"), ("server", "client")] {
            let name = format!("{from} ({sender}) to {to} ({receiver})");
            let from = match from {
                NAME => end(sender, context.sender(), "txonly"),
                _ => pipe::sends(context, sender),
            };
            let to = match to {
                "sluice" => pipe::receives(context, receiver),
                _ => end(receiver, context.receiver(), "rxonly"),
            };
            steps.push(memif(context, NAME, &name, sender, [from, to]));
        }
    }
    // No pipe: one device that creates packets on demand and takes them back.
    let null = testpmd(context, context.receiver(), &["net_null0".into()], "io")
        .and(["--port-topology=loop"])
        .ready(Ready::Says("Rx-pps:"))
        .counting(Count::After("Rx-pps:"));
    steps.push(alone(context, NAME, "dpdk-testpmd io, net_null", null));
    steps
}

/// Forwards between the interfaces of the host in the middle.
pub fn io(context: &StepContext<'_>, driver: &str) -> Option<Program> {
    let [from, to] = context.testbed.middle.as_ref()?;
    let device = |n, interface| format!("{driver}{n},iface={interface}");
    let devices = [device(0, &from.interface), device(1, &to.interface)];
    Some(testpmd(context, context.receiver(), &devices, "io"))
}

/// Receives.
pub fn rxonly(context: &StepContext<'_>, driver: &str) -> Program {
    let device = format!("{driver}0,iface={}", context.right());
    let program = testpmd(context, context.receiver(), &[device], "rxonly");
    program.counting(Count::After("RX-packets:"))
}

/// Sends, with these options of the driver.
pub fn txonly(context: &StepContext<'_>, driver: &str, options: &str) -> Program {
    let device = format!("{driver}0,iface={}{options}", context.left());
    testpmd(context, context.sender(), &[device], "txonly").ready(Ready::AtOnce)
}

/// Puts both of its threads on one CPU; the one that forwards takes all of it.
fn testpmd(
    context: &StepContext<'_>,
    cpu: Option<usize>,
    devices: &[String],
    mode: &str,
) -> Program {
    let cpu = cpu.unwrap_or(0);
    let lcores = format!("0@{cpu},1@{cpu}");
    let size = format!("--txpkts={}", context.setting.size);
    let size = (mode == "txonly").then_some(size);
    Program::tool(NAME, ["--lcores", &lcores, "--no-huge", "-m", "512", "--no-shconf", "--no-pci"])
        .and(devices.iter().flat_map(|device| ["--vdev", device]))
        .and(["--", "--stats-period", "1", "--no-mlockall", "--total-num-mbufs", "32768"])
        .and([format!("--forward-mode={mode}")])
        .and(size)
        .ready(Ready::Says("NIC statistics"))
}
