//! Ratios of steps that this project guarantees, each with a threshold.
//!
//! A ratio within one run does not depend on the machine or its load. Peers do the same work: the usual
//! threshold is not to be slower.

use serde::Serialize;

use crate::measurement::Spread;
use crate::report::{Report, StepReport, rates};
use crate::suite::{SuiteKind, Sweep, netmap, scrub};

/// A minimum ratio of two steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// The suite that both steps belong to.
    pub suite: SuiteKind,
    /// The step.
    pub step: &'static str,
    /// The step to compare with.
    pub to: &'static str,
    /// The minimum ratio of their rates.
    pub at_least: f64,
}

const fn threshold(
    suite: SuiteKind,
    step: &'static str,
    to: &'static str,
    at_least: f64,
) -> Threshold {
    Threshold { suite, step, to, at_least }
}

const TESTPMD_XDP: &str = "dpdk-testpmd net_af_xdp";
/// Memif from a client to a server, and back.
const UP: &str = "dpdk-testpmd (client) to itself (server)";
const DOWN: &str = "dpdk-testpmd (server) to itself (client)";

/// All thresholds.
pub const THRESHOLDS: &[Threshold] = &[
    threshold(SuiteKind::Rx, "TPACKET_V3 ring", "tcpdump -w /dev/null", 1.1),
    threshold(SuiteKind::Rx, "mirror: copies by XDP", "TPACKET_V3 ring", 1.2),
    threshold(SuiteKind::Rx, "AF_XDP, spin", TESTPMD_XDP, 1.0),
    threshold(SuiteKind::Rx, "xdp: taken by XDP", TESTPMD_XDP, 1.45),
    threshold(SuiteKind::Rx, "xdp: taken by XDP", "tcpdump -w /dev/null", 3.0),
    threshold(SuiteKind::Rx, netmap::RX, "xdp: taken by XDP", 0.9),
    threshold(SuiteKind::Rx, netmap::RX, TESTPMD_XDP, 1.1),
    threshold(SuiteKind::Rx, netmap::RX_SHARED, netmap::RX, 0.8),
    threshold(SuiteKind::Tx, "AF_XDP", TESTPMD_XDP, 1.0),
    threshold(SuiteKind::Tx, "sendmmsg, qdisc bypass", "dpdk-testpmd net_af_packet", 1.0),
    threshold(SuiteKind::Tx, "live: ring", "AF_XDP", 2.5),
    threshold(SuiteKind::Tx, "live frames", "trafgen", 9.0),
    threshold(SuiteKind::Tx, "replay of a file", "tcpreplay --topspeed", 6.0),
    threshold(SuiteKind::Tx, netmap::TX, "live: ring", 0.85),
    threshold(SuiteKind::Tx, netmap::TX, TESTPMD_XDP, 4.0),
    threshold(SuiteKind::Drop, "XDP", "xdp-filter", 1.0),
    threshold(SuiteKind::Drop, "XDP", "nftables, netdev ingress", 1.5),
    threshold(SuiteKind::Drop, "XDP, all packets", "XDP_DROP and nothing else", 0.95),
    threshold(SuiteKind::Forward, "AF_XDP swap, adaptive", "dpdk-testpmd io, net_af_xdp", 1.0),
    threshold(SuiteKind::Forward, "xdp: to live:, one way", "AF_XDP swap, adaptive", 1.0),
    threshold(SuiteKind::Forward, "XDP redirect", "kernel bridge", 1.5),
    threshold(SuiteKind::Forward, "XDP redirect", "bpf_redirect and nothing else", 0.95),
    threshold(SuiteKind::Forward, netmap::BRIDGE, "AF_XDP swap, adaptive", 0.9),
    threshold(SuiteKind::Forward, netmap::VALE, "kernel bridge", 4.0),
    threshold(SuiteKind::Pipe, "memif, to a server", UP, 1.2),
    threshold(SuiteKind::Pipe, "memif, to a client", DOWN, 1.2),
    threshold(SuiteKind::Pipe, "sluice (client) to dpdk-testpmd (server)", UP, 0.9),
    threshold(SuiteKind::Pipe, "sluice (server) to dpdk-testpmd (client)", DOWN, 0.9),
    threshold(SuiteKind::Pipe, "dpdk-testpmd (client) to sluice (server)", UP, 0.9),
    threshold(SuiteKind::Pipe, "dpdk-testpmd (server) to sluice (client)", DOWN, 0.9),
    threshold(SuiteKind::Pipe, "null: to null:, in one program", "dpdk-testpmd io, net_null", 1.0),
    threshold(SuiteKind::Pipe, netmap::PIPE, UP, 0.3),
    threshold(SuiteKind::Pipe, netmap::VALE, UP, 0.2),
    threshold(SuiteKind::Scrub, scrub::LIST, scrub::LPM, 6.0),
    threshold(SuiteKind::Scrub, scrub::LIMIT, scrub::LRU, 3.0),
    threshold(SuiteKind::Scrub, scrub::SHORT_LIST, scrub::NFT, 8.0),
    threshold(SuiteKind::Scrub, scrub::CHALLENGE, scrub::COOKIES, 5.0),
];

/// Returns the parameters with which thresholds are measured.
pub fn sweep() -> Sweep {
    Sweep { sizes: vec![60], batches: vec![], queues: vec![1], cores: vec![1], rules: vec![1] }
}

/// Returns true for steps of thresholds and for references.
pub fn is_needed(kind: SuiteKind, step: &str) -> bool {
    step == kind.reference()
        || THRESHOLDS.iter().any(|threshold| {
            threshold.suite == kind && (threshold.step == step || threshold.to == step)
        })
}

/// Returns true for steps of netmap's programs, for those that they are compared with, and for references.
pub fn is_needed_for_netmap(kind: SuiteKind, step: &str) -> bool {
    step == kind.reference()
        || netmap::is_step(step)
        || THRESHOLDS.iter().any(|threshold| {
            threshold.suite == kind && netmap::is_step(threshold.step) && threshold.to == step
        })
}

/// A threshold, and the result of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The threshold.
    #[serde(flatten)]
    pub threshold: Threshold,
    /// The verdict.
    pub verdict: Verdict,
    /// The ratio, over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Spread>,
    /// The reason why it has no ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The verdict on a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The median reaches the threshold.
    Pass,
    /// The median does not reach it, or a step of Sluice could not be run.
    Fail,
    /// A step was not measured, a peer's could not be run, or a kernel feature or program is missing.
    Unknown,
}

/// Checks the thresholds of all suites in a report.
pub fn check(report: &Report) -> Vec<Checked> {
    let is_in = |it: &&Threshold| report.suites.iter().any(|suite| suite.suite == it.suite);
    THRESHOLDS.iter().filter(is_in).map(|threshold| checked(*threshold, report)).collect()
}

fn checked(threshold: Threshold, report: &Report) -> Checked {
    let step = |name: &str| report.step(threshold.suite, name);
    let find = |name: &str| {
        let step = step(name).ok_or_else(|| format!("{name} was not measured"))?;
        match step.figures {
            Some(_) => Ok(rates(&step.turns)),
            None => Err(format!("{name}: {}", step.why_not())),
        }
    };
    let ratio = find(threshold.step).and_then(|step| {
        let ratio = Spread::of_ratios(&step, &find(threshold.to)?);
        ratio.ok_or_else(|| "no round has both".into())
    });
    let fails = |name: &str| step(name).is_some_and(StepReport::is_broken);
    let verdict = match &ratio {
        Ok(ratio) if ratio.median >= threshold.at_least => Verdict::Pass,
        Ok(_) => Verdict::Fail,
        Err(_) if fails(threshold.step) || fails(threshold.to) => Verdict::Fail,
        Err(_) => Verdict::Unknown,
    };
    let reason = ratio.as_ref().err().cloned();
    Checked { threshold, verdict, ratio: ratio.ok(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::SLUICE;
    use crate::report::tests::report;

    #[test]
    fn a_ratio_is_compared_with_its_threshold() {
        let ring = |mpps| ("TPACKET_V3 ring", mpps);
        let tcpdump = ("tcpdump -w /dev/null", 2.0);
        let least = 2.0 * THRESHOLDS[0].at_least;
        for (sentence, steps, verdict) in [
            ("as fast as it has to be", vec![ring(least), tcpdump], Verdict::Pass),
            ("slower", vec![ring(0.95 * least), tcpdump], Verdict::Fail),
            ("alone", vec![ring(least)], Verdict::Unknown),
        ] {
            let checked = check(&report(SuiteKind::Rx, &steps));
            assert_eq!(
                checked.len(),
                THRESHOLDS.iter().filter(|threshold| threshold.suite == SuiteKind::Rx).count()
            );
            assert_eq!(checked[0].verdict, verdict, "{sentence}");
            assert_eq!(checked[0].reason.is_some(), verdict == Verdict::Unknown, "{sentence}");
        }
    }

    #[test]
    fn a_failure_of_sluice_fails_and_one_of_a_peer_is_unknown() {
        for (by, failed, lacks, verdict) in [
            (SLUICE, Some("ended: no room"), false, Verdict::Fail),
            (SLUICE, Some("ended: live frames (Linux 5.18)"), true, Verdict::Unknown),
            (SLUICE, None, false, Verdict::Unknown),
            ("tcpdump", Some("tcpdump is not installed"), false, Verdict::Unknown),
        ] {
            let steps = [("TPACKET_V3 ring", 2.0), ("tcpdump -w /dev/null", 2.0)];
            let mut report = report(SuiteKind::Rx, &steps);
            let step = &mut report.suites[0].steps[usize::from(by != SLUICE)];
            (step.by, step.figures, step.lacks) = (by.into(), None, lacks);
            step.failed = failed.map(str::to_owned);
            let checked = check(&report);
            assert_eq!(checked[0].verdict, verdict, "{by}, {failed:?}");
            assert!(checked[0].reason.is_some(), "{by}, {failed:?}");
        }
    }

    #[test]
    fn every_step_of_a_threshold_exists() {
        use crate::testbed::{Testbed, TestbedConfig};
        use sluicegate::error::ErrorKind::Privilege;
        let config = |kind: SuiteKind| TestbedConfig {
            queues: 1,
            jumbo: false,
            middle: kind.needs_middle(),
        };
        for kind in SuiteKind::ALL {
            let testbed = match Testbed::make(config(kind)) {
                Err(error) if error.kind() == Some(Privilege) => {
                    println!("skipped: needs root; get it by sudo: {error}");
                    return;
                }
                testbed => testbed.unwrap(),
            };
            let steps =
                crate::suite::steps(kind, &sweep(), &testbed.cpus, true, |_| Ok::<_, ()>(&testbed));
            let names: Vec<String> = steps.unwrap().into_iter().map(|step| step.name).collect();
            for threshold in THRESHOLDS.iter().filter(|threshold| threshold.suite == kind) {
                for name in [threshold.step, threshold.to] {
                    assert!(
                        names.iter().any(|it| it == name),
                        "{kind}: {name} is not in {names:?}"
                    );
                }
            }
        }
    }
}
