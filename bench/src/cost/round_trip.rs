//! The round trip of pings through a host that forwards.

use std::time::Duration;

use serde::Serialize;

use crate::device::{bridge, no_bridge};
use crate::failure::Failure;
use crate::process::{BEGUN, Program, Ready};
use crate::rounds::BenchObserver;
use crate::step::Order;
use crate::testbed::ADDRESS;
use crate::testbed::{Cpus, End, Testbed, list};

/// Between two pings: long enough for every forwarder to go to sleep.
pub const INTERVAL: Duration = Duration::from_millis(5);
/// Pings before those that count.
const WARM_UP: u32 = 20;
/// The minimal relay of this project's command (`sluice bench relay`) says so when it has begun.
pub const RELAYING: &str = "relaying";

/// A way of forwarding: a program on the host in the middle, or the kernel.
pub struct Forwarder {
    pub name: &'static str,
    by: &'static str,
    program: Option<(Program, Ready)>,
    prepare: Vec<Order>,
    tidy: Vec<Order>,
}

/// The round trips through a way of forwarding.
#[derive(Debug, Serialize)]
pub struct OfForwarder {
    /// Its name, in the words of the field.
    pub step: &'static str,
    /// The program: "sluice", or "linux" for the kernel alone.
    pub by: &'static str,
    /// The command, as a shell takes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The round trips.
    #[serde(flatten)]
    pub round_trips: Option<RoundTrips>,
    /// Why it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Times of round trips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Pings that were sent.
    pub pings: u32,
    /// Pings without an answer.
    pub lost: u32,
    /// Half of all took that long at most.
    pub median_ms: f64,
    /// 99 % of all.
    pub p99_ms: f64,
    /// The worst.
    pub max_ms: f64,
}

/// The ways of forwarding through the middle of a testbed.
pub fn forwarders(testbed: &Testbed, cpus: &Cpus) -> Vec<Forwarder> {
    let Some(line) = &testbed.line else { return Vec::new() };
    let (from, to) = (&line.from, &line.to);
    let cpus = list(&cpus.receivers(1, 1));
    let sluice = |name, ports: [String; 2]| {
        let flags = ["--cpus", &cpus, "--json", "--interval", "200ms"];
        let program = Program::sluice(["forward", &ports[0], &ports[1]]).and(flags);
        let program = Some((program, BEGUN));
        Forwarder { name, by: "sluice", program, prepare: Vec::new(), tidy: Vec::new() }
    };
    let xdp = || [format!("xdp:{from}"), format!("xdp:{to}")];
    let [left, right] = xdp();
    let relay = Program::sluice(["bench", "relay", &left, &right, "--cpu", &cpus]);
    vec![
        Forwarder {
            name: "kernel bridge",
            by: "linux",
            program: None,
            prepare: bridge(line),
            tidy: vec![no_bridge()],
        },
        Forwarder {
            name: "minimal relay over AF_XDP, in poll(2)",
            by: "sluice",
            program: Some((relay, Ready::Says(RELAYING))),
            prepare: Vec::new(),
            tidy: Vec::new(),
        },
        sluice("AF_XDP swap", xdp()),
        sluice("AF_XDP and live frames", xdp().map(|port| port + "?send=live")),
        sluice("packet sockets", [format!("packet:{from}"), format!("packet:{to}")]),
    ]
}

impl Forwarder {
    /// Its row, without a number yet.
    pub fn row(&self) -> OfForwarder {
        let orders = self.prepare.iter().map(|order| order.program.typed(None));
        let program = self.program.iter().map(|(program, _)| program.typed(None));
        let command = orders.chain(program).collect::<Vec<_>>().join("; ");
        OfForwarder { step: self.name, by: self.by, command, round_trips: None, failed: None }
    }

    /// Sends pings through it.
    pub fn turn(
        &self,
        testbed: &Testbed,
        cpus: &Cpus,
        pings: u32,
        watch: &dyn BenchObserver,
    ) -> Result<RoundTrips, Failure> {
        let prepared = self
            .prepare
            .iter()
            .try_for_each(|Order { end, program }| program.run(testbed, *end).map(|_| ()));
        let measured = prepared.map_err(Failure::from).and_then(|()| {
            let mut running = match &self.program {
                Some((program, ready)) => {
                    let mut running = program.start(testbed, End::Middle, None)?;
                    running.until(ready, watch)?;
                    Some(running)
                }
                None => None,
            };
            ping(testbed, cpus, WARM_UP, watch)?;
            let measured = ping(testbed, cpus, pings, watch);
            if let Some(running) = &mut running {
                running.still_runs()?;
            }
            running.map(|running| running.end()).transpose()?;
            measured
        });
        for Order { end, program } in &self.tidy {
            program.run(testbed, *end)?;
        }
        measured
    }
}

/// Sends pings from the left to the right.
fn ping(
    testbed: &Testbed,
    cpus: &Cpus,
    pings: u32,
    watch: &dyn BenchObserver,
) -> Result<RoundTrips, Failure> {
    let (count, interval) = (pings.to_string(), INTERVAL.as_secs_f64().to_string());
    let program = Program::tool("ping", ["-n", "-W", "1", "-c", &count, "-i", &interval, ADDRESS]);
    let mut running = program.start(testbed, End::Left, cpus.senders(1).first().copied())?;
    running.over(INTERVAL * pings, watch)?;
    RoundTrips::of(pings, &running.said().out)
        .ok_or_else(|| Failure::of(format!("no ping to {ADDRESS} was answered")))
}

impl RoundTrips {
    /// Reads the output of ping(8). Returns none if no ping was answered.
    fn of(pings: u32, said: &str) -> Option<Self> {
        let times = said.lines().filter_map(|line| {
            let (time, unit) = line.split_once("time=")?.1.split_once(' ')?;
            time.parse::<f64>().ok().filter(|_| unit.trim() == "ms")
        });
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        let (last, answered) = (times.len().checked_sub(1)?, times.len() as u32);
        let at = |share: f64| times[(last as f64 * share).round() as usize];
        Some(Self {
            pings,
            lost: pings.saturating_sub(answered),
            median_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: times[last],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_what_ping_says() {
        let line = |n: u32, ms: &str| {
            format!("64 bytes from 198.18.0.2: icmp_seq={n} ttl=64 time={ms} ms\n")
        };
        let mut said = String::from("PING 198.18.0.2 (198.18.0.2) 56(84) bytes of data.\n");
        said += &(1..=99).map(|n| line(n, "0.050")).collect::<String>();
        said += &line(100, "12.5");
        said += "\n--- 198.18.0.2 ping statistics ---\n102 packets transmitted, 100 received, 2% \
                 packet loss, time 500ms\nrtt min/avg/max/mdev = 0.050/0.1/12.5/0.1 ms\n";
        let expected =
            RoundTrips { pings: 102, lost: 2, median_ms: 0.05, p99_ms: 0.05, max_ms: 12.5 };
        assert_eq!(RoundTrips::of(102, &said), Some(expected));
        assert_eq!(RoundTrips::of(5, "PING 198.18.0.2\n"), None, "nothing was answered");
    }
}
