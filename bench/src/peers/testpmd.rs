//! dpdk-testpmd: DPDK's own measure, with the drivers that leave the card to the kernel.
//!
//! It polls, so it always takes a whole CPU. Without huge pages, as everything here is.

use super::{Make, Peer, Version, Work};
use crate::process::{Program, Ready};
use crate::process_output::Count;
use crate::step::{Job, Step};
use crate::suite::pipe::{self, Member};
use crate::suite::{Kind, StepContext};

/// Where it tells its rates, each second.
const RATES: Count = Count::After("Rx-pps:");

pub const PEER: Peer = Peer {
    package: "dpdk-dev",
    version: Version::Package,
    ..Peer::new(
        "dpdk-testpmd",
        &[
            receives("net_af_packet", |place| Some(rxonly(place, "net_af_packet"))),
            receives("net_af_xdp", |place| Some(rxonly(place, "net_af_xdp"))),
            Work::Sends {
                how: "net_af_packet",
                program: |place| Some(txonly(place, "net_af_packet", ",qdisc_bypass=1")),
            },
            Work::Sends {
                how: "net_af_xdp",
                program: |place| Some(txonly(place, "net_af_xdp", "")),
            },
            forwards("io, net_af_packet", |place| io(place, "net_af_packet")),
            forwards("io, net_af_xdp", |place| io(place, "net_af_xdp")),
            Work::Other(Kind::Pipe, |place| Some(itself(place, "client", "server"))),
            Work::Other(Kind::Pipe, |place| Some(itself(place, "server", "client"))),
            Work::Other(Kind::Pipe, |place| Some(sends_to_sluice(place, "client", "server"))),
            Work::Other(Kind::Pipe, |place| Some(sends_to_sluice(place, "server", "client"))),
            Work::Other(Kind::Pipe, |place| Some(gets_of_sluice(place, "client", "server"))),
            Work::Other(Kind::Pipe, |place| Some(gets_of_sluice(place, "server", "client"))),
            Work::Other(Kind::Pipe, |place| Some(null(place))),
        ],
    )
};

const fn receives(how: &'static str, program: Make) -> Work {
    Work::Receives { how, program, ready: "NIC statistics", count: Count::After("RX-packets:") }
}

const fn forwards(how: &'static str, program: Make) -> Work {
    Work::Forwards { how, program, ready: "NIC statistics" }
}

fn io(place: &StepContext<'_>, driver: &str) -> Option<Program> {
    let line = place.testbed.line.as_ref()?;
    let devices = [(0, &line.from), (1, &line.to)];
    let devices = devices.map(|(n, interface)| format!("{driver}{n},iface={interface}"));
    Some(testpmd(place.receiver(), &devices, &["--forward-mode=io"]))
}

/// From testpmd to testpmd, in these roles.
fn itself(place: &StepContext<'_>, sender: &'static str, receiver: &'static str) -> Step {
    let name = format!("dpdk-testpmd ({sender}) to itself ({receiver})");
    pipe::memif(place, PEER.name, &name, sends(place, sender), gets(place, receiver))
}

fn sends_to_sluice(place: &StepContext<'_>, sender: &'static str, receiver: &'static str) -> Step {
    let name = format!("dpdk-testpmd ({sender}) to sluice ({receiver})");
    pipe::memif(place, PEER.name, &name, sends(place, sender), pipe::receives(place, receiver))
}

fn gets_of_sluice(place: &StepContext<'_>, sender: &'static str, receiver: &'static str) -> Step {
    let name = format!("sluice ({sender}) to dpdk-testpmd ({receiver})");
    pipe::memif(place, PEER.name, &name, pipe::sends(place, sender), gets(place, receiver))
}

/// No pipe at all: one device that makes what it is asked for, and takes it back.
fn null(place: &StepContext<'_>) -> Step {
    let flags = ["--forward-mode=io", "--port-topology=loop"];
    let program = testpmd(place.receiver(), &["net_null0".into()], &flags);
    let receiver = Job { program, cpu: None, ready: Ready::Says("Rx-pps:"), count: Some(RATES) };
    pipe::alone(place, PEER.name, "dpdk-testpmd io, net_null", receiver)
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

fn rxonly(place: &StepContext<'_>, driver: &str) -> Program {
    let device = format!("{driver}0,iface={}", place.right());
    testpmd(place.receiver(), &[device], &["--forward-mode=rxonly"])
}

fn txonly(place: &StepContext<'_>, driver: &str, options: &str) -> Program {
    let device = format!("{driver}0,iface={}{options}", place.left());
    let size = format!("--txpkts={}", place.setting.size);
    testpmd(place.sender(), &[device], &["--forward-mode=txonly", &size])
}

/// Both of its threads on one CPU: the one that forwards takes all of it.
fn testpmd(cpu: Option<usize>, devices: &[String], flags: &[&str]) -> Program {
    let cpu = cpu.unwrap_or(0);
    let lcores = format!("0@{cpu},1@{cpu}");
    Program::tool("dpdk-testpmd", ["--lcores", &lcores, "--no-huge", "-m", "512", "--no-shconf"])
        .and(["--no-pci"])
        .and(devices.iter().flat_map(|device| ["--vdev", device]))
        .and(["--", "--stats-period", "1", "--no-mlockall"])
        .and(["--total-num-mbufs", "32768"])
        .and(flags.iter().copied())
}
