//! Ledgers of senders, against an independent count at the receiver: nftables counts frames by their
//! UDP port, which tells one sender's from another's.

mod changes;
mod foreign;
mod nothing;
mod refused;

use std::io::{BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::process::ChildStdout;
use std::time::Instant;

use serde_json::Value;
use sluicegate::link::Lab;

use crate::support::*;

/// Counters of nftables on an interface of a host, one for each UDP port; all packets end there. The
/// counters belong to the host's table, so they remain when the interface is removed.
struct Receiver<'a> {
    lab: &'a Lab,
    host: &'a str,
}

impl<'a> Receiver<'a> {
    /// Counts packets that come to `interface`. `None` if nftables is missing.
    fn on(lab: &'a Lab, host: &'a str, interface: &str, ports: &[u16]) -> Option<Self> {
        if !have(&["nft"]) {
            return None;
        }
        let of_ports = |line: fn(&u16) -> String| ports.iter().map(line).collect::<String>();
        let counters = of_ports(|port| format!("counter port{port} {{ }}\n"));
        let rules = of_ports(|port| format!("udp dport {port} counter name port{port} drop; "));
        let chain =
            format!("type filter hook ingress device {interface} priority 0; {rules} drop;");
        let table = format!("table netdev count {{\n{counters}chain in {{\n{chain}\n}}\n}}\n");
        let ended = crate::support::on(lab, host, &["nft", &table]);
        assert_eq!(ended.status, Some(0), "nft: {}", ended.err);
        Some(Self { lab, host })
    }

    /// Packets to a port that came so far.
    fn came(&self, port: u16) -> u64 {
        let name = format!("port{port}");
        let list = ["nft", "-j", "list", "counter", "netdev", "count", &name];
        let ended = crate::support::on(self.lab, self.host, &list);
        let listed: Value = serde_json::from_str(&ended.out).unwrap();
        let mut counters = listed["nftables"].as_array().unwrap().iter();
        let packets = counters.find_map(|it| it["counter"]["packets"].as_u64());
        packets.unwrap_or_else(|| panic!("{}", ended.out))
    }
}

/// A sender that prints its progress.
struct ProgressRun {
    running: Running,
    lines: BufReader<ChildStdout>,
    /// A time before it began.
    started: Instant,
}

impl ProgressRun {
    /// Starts a command of ours that sends.
    fn start(arguments: &[&str]) -> Self {
        let all = [arguments, &["--json", "--interval", "20ms"]].concat();
        let started = Instant::now();
        let mut running = Running::unawaited(&mut sluice(&all));
        let lines = BufReader::new(running.child().stdout.take().unwrap());
        Self { running, lines, started }
    }

    /// `sluice generate` from an interface of a host to a UDP port, at a rate that leaves the machine room
    /// for other tests.
    fn generate(lab: &Lab, host: &str, interface: &str, port: u16, more: &[&str]) -> Self {
        let (netns, port) = (lab.netns(host), port.to_string());
        let to = ["--dst", "198.18.0.2", "--dmac", NOBODY, "--dport", &port, "--rate", "100kpps"];
        Self::start(&[&["generate", interface, "--netns", &netns], &to[..], more].concat())
    }

    /// Waits until the sender has attempted this many packets, counted from the call.
    fn attempts(&mut self, packets: u64) {
        let now_s = self.started.elapsed().as_secs_f64();
        let mut seen = 0;
        while seen < packets {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "it ended before it attempted {packets} more");
            let line: Value = serde_json::from_str(&line).unwrap();
            let begin_s = line["time_s"].as_f64().unwrap() - line["interval_s"].as_f64().unwrap();
            if begin_s >= now_s {
                seen += line["packets"].as_u64().unwrap();
            }
        }
    }

    /// Sends it a signal to end.
    fn stop(self) -> Ended {
        self.running.signal(nix::sys::signal::Signal::SIGINT);
        self.end()
    }

    /// Waits until it exits by itself.
    fn end(mut self) -> Ended {
        let mut out = String::new();
        self.lines.read_to_string(&mut out).unwrap();
        Ended { out, ..self.running.end() }
    }
}

/// The range of packets that a report counts as out; its ledger must close.
fn out(report: &Value) -> RangeInclusive<u64> {
    closes(report);
    let out = report["ledger"]["out"].as_u64().unwrap();
    out..=out + uncertain(report)
}

/// Runs `ip` on a host.
fn ip(lab: &Lab, host: &str, arguments: &str) {
    let command: Vec<&str> = ["ip"].into_iter().chain(arguments.split(' ')).collect();
    let ended = on(lab, host, &command);
    assert_eq!(ended.status, Some(0), "ip {arguments}: {}", ended.err);
}

/// Switches GRO of an interface of a host on or off: a veth takes redirected frames only while its far
/// end has it.
fn set_gro(lab: &Lab, host: &str, interface: &str, on: bool) {
    let mut ethtool = sluicegate::link::Ethtool::open(Some(&lab.netns(host))).unwrap();
    ethtool.set_gro(interface, on).unwrap();
}
