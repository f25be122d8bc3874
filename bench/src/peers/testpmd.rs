//! dpdk-testpmd: DPDK's own measure, with the drivers that leave the card to the kernel.
//!
//! It polls, so it always takes a whole CPU. Without huge pages, as everything here is.

use std::time::Duration;

use super::{Peer, receives, sends};
use crate::ladder::{Kind, Place};
use crate::process::{Program, Ready, Said};
use crate::step::Step;

/// How it is called.
pub const PEER: Peer = Peer {
    name: "dpdk-testpmd",
    command: "dpdk-testpmd",
    package: "dpdk-dev",
    version: &["dpkg-query", "-W", "-f", "DPDK ${Version}", "dpdk-dev"],
    steps,
};

fn steps(kind: Kind, place: &Place<'_>) -> Vec<Step> {
    let device = |driver: &str, more: &str| match kind {
        Kind::Tx => format!("{driver}0,iface={}{more}", place.left()),
        _ => format!("{driver}0,iface={}", place.right()),
    };
    let drivers = [
        ("net_af_packet", device("net_af_packet", ",qdisc_bypass=1")),
        ("net_af_xdp", device("net_af_xdp", "")),
    ];
    drivers
        .into_iter()
        .filter_map(|(driver, device)| match kind {
            Kind::Rx => {
                let program = testpmd(place.receiver(), &device, &["--forward-mode=rxonly"]);
                let ready = Ready::Says("NIC statistics");
                Some(receives(&PEER, driver, place, program, ready, received))
            }
            Kind::Tx => {
                let size = format!("--txpkts={}", place.setting.size);
                let flags = ["--forward-mode=txonly", &size];
                let program = testpmd(place.sender(), &device, &flags);
                Some(sends(&PEER, driver, place, program, Ready::After(Duration::ZERO)))
            }
            Kind::Drop => None,
        })
        .collect()
}

/// Both of its threads on one CPU: the one that forwards takes all of it.
fn testpmd(cpu: Option<usize>, device: &str, flags: &[&str]) -> Program {
    let cpu = cpu.unwrap_or(0);
    let lcores = format!("0@{cpu},1@{cpu}");
    Program::tool("dpdk-testpmd", ["--lcores", &lcores, "--no-huge", "-m", "512", "--no-shconf"])
        .and(["--no-pci", "--vdev", device, "--", "--stats-period", "1", "--no-mlockall"])
        .and(["--total-num-mbufs", "16384"])
        .and(flags.iter().copied())
}

/// "  RX-packets: 123   RX-dropped: 7   RX-total: 130", of the last port in the last summary.
fn received(said: &Said) -> Option<u64> {
    let (_, rest) = said.out.rsplit_once("RX-packets:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_count_is_read() {
        let out = "  RX-packets: 5  RX-missed: 0\n  ---------------------- Forward statistics for \
                   port 0  ----------------------\n  RX-packets: 1234           RX-dropped: 6   \
                   RX-total: 1240\n  TX-packets: 0              TX-dropped: 0   TX-total: 0\n";
        assert_eq!(received(&Said { out: out.into(), err: String::new() }), Some(1234));
    }
}
