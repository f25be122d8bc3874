//! Steps of dpdk-testpmd, DPDK's own benchmark, with the drivers that leave the card to the kernel.
//!
//! It polls, so it always takes a whole CPU. It runs without huge pages.

use super::StepContext;
use super::pipe::{self, Member};
use crate::process::{Program, Ready};
use crate::process_output::Count;
use crate::step::{Job, Step};

/// As reports name it.
pub const NAME: &str = "dpdk-testpmd";
/// The line that shows it is ready.
pub const READY: &str = "NIC statistics";
/// Where it reports its rates, each second.
const RATES: Count = Count::After("Rx-pps:");

/// All steps of the suite of pipes: from testpmd to itself, to Sluice and from Sluice, in both roles.
pub fn pipes(place: &StepContext<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for (from, to) in [(NAME, "itself"), (NAME, "sluice"), ("sluice", NAME)] {
        for (sender, receiver) in [("client", "server"), ("server", "client")] {
            let name = format!("{from} ({sender}) to {to} ({receiver})");
            let from = if from == NAME { sends(place, sender) } else { pipe::sends(place, sender) };
            let to = if to == "sluice" {
                pipe::receives(place, receiver)
            } else {
                gets(place, receiver)
            };
            steps.push(pipe::memif(place, NAME, &name, from, to));
        }
    }
    steps.push(null(place));
    steps
}

pub fn io(place: &StepContext<'_>, driver: &str) -> Option<Program> {
    let line = place.testbed.line.as_ref()?;
    let devices = [(0, &line.from), (1, &line.to)];
    let devices = devices.map(|(n, interface)| format!("{driver}{n},iface={interface}"));
    Some(testpmd(place.receiver(), &devices, &["--forward-mode=io"]))
}

/// No pipe: one device that creates packets on demand and takes them back.
fn null(place: &StepContext<'_>) -> Step {
    let flags = ["--forward-mode=io", "--port-topology=loop"];
    let program = testpmd(place.receiver(), &["net_null0".into()], &flags);
    let receiver = Job { program, cpu: None, ready: Ready::Says("Rx-pps:"), count: Some(RATES) };
    pipe::alone(place, NAME, "dpdk-testpmd io, net_null", receiver)
}

fn sends(place: &StepContext<'_>, role: &'static str) -> Member {
    let size = format!("--txpkts={}", place.setting.size);
    member(place, place.sender(), role, &["--forward-mode=txonly", &size])
}

fn gets(place: &StepContext<'_>, role: &'static str) -> Member {
    member(place, place.receiver(), role, &["--forward-mode=rxonly"])
}

/// An end of a memif pipe.
fn member(
    place: &StepContext<'_>,
    cpu: Option<usize>,
    role: &'static str,
    flags: &[&str],
) -> Member {
    let socket = pipe::socket_file(place);
    let device = format!("net_memif0,role={role},socket={socket},socket-abstract=no");
    let (program, ready) = (testpmd(cpu, &[device], flags), pipe::has_socket(place));
    Member { role, job: Job { program, cpu: None, ready, count: Some(RATES) } }
}

pub fn rxonly(place: &StepContext<'_>, driver: &str) -> Program {
    let device = format!("{driver}0,iface={}", place.right());
    testpmd(place.receiver(), &[device], &["--forward-mode=rxonly"])
}

pub fn txonly(place: &StepContext<'_>, driver: &str, options: &str) -> Program {
    let device = format!("{driver}0,iface={}{options}", place.left());
    let size = format!("--txpkts={}", place.setting.size);
    testpmd(place.sender(), &[device], &["--forward-mode=txonly", &size])
}

/// Puts both of its threads on one CPU; the one that forwards takes all of it.
fn testpmd(cpu: Option<usize>, devices: &[String], flags: &[&str]) -> Program {
    let cpu = cpu.unwrap_or(0);
    let lcores = format!("0@{cpu},1@{cpu}");
    Program::tool(NAME, ["--lcores", &lcores, "--no-huge", "-m", "512", "--no-shconf"])
        .and(["--no-pci"])
        .and(devices.iter().flat_map(|device| ["--vdev", device]))
        .and(["--", "--stats-period", "1", "--no-mlockall"])
        .and(["--total-num-mbufs", "32768"])
        .and(flags.iter().copied())
}
