//! A lab of four hosts around a switch.

use serde_json::Value;
use sluicegate::link::{Lab, Shape};

use crate::support::*;

/// The hosts, in the order of their addresses and of the switch's ports.
pub const HOSTS: [&str; 4] = ["left", "right", "upper", "lower"];

/// Four hosts and a switch, unless there is no privilege to make them.
pub fn star() -> Option<Lab> {
    lab_of(Shape::Star, 1)
}

/// The switch's ports, all of one kind: `left=xdp:middle0` and so on. Their rings hold the packets that
/// come while a busy machine delays the switch.
pub fn ports(kind: &str) -> Vec<String> {
    let room = if kind == "xdp" { "?ring_size=8192" } else { "" };
    HOSTS.iter().enumerate().map(|(i, host)| format!("{host}={kind}:middle{i}{room}")).collect()
}

/// Starts a switch in the middle of a lab.
pub fn switch(lab: &Lab, ports: &[String], more: &[&str]) -> Running {
    let netns = lab.netns("middle");
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let place = ["--name", lab.name()];
    let running = Running::unawaited(&mut sluice(
        &[&["switch", "--netns", &netns, "--json"], &place[..], &ports[..], more].concat(),
    ));
    eventually("the switch begins", || running.has_threads("switch") || running.has_ended());
    running
}

/// Asks the switch in the middle of a lab. The request must succeed.
pub fn ask(lab: &Lab, what: &[&str]) -> Ended {
    let ended = run(&[&["switch"], what, &["--name", lab.name()]].concat());
    assert_eq!(ended.status, Some(0), "{what:?}: {}", ended.err);
    ended
}

/// The JSON of `sluice switch show`.
pub fn shown(lab: &Lab) -> Value {
    ask(lab, &["show", "--json"]).report()
}

/// One port's part of a switch's report.
pub fn port<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut ports = report["ports"].as_array().unwrap().iter();
    ports.find(|port| port["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// A count in the part of a port.
pub fn count(report: &Value, name: &str, key: &str) -> u64 {
    port(report, name)[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"))
}

/// Packets of a port that were lost under a name.
pub fn lost(report: &Value, name: &str, loss: &str) -> u64 {
    crate::support::loss(port(report, name), loss)
}

/// Sends `packets` from a host, slowly enough for any machine; `what` says which.
pub fn generate(lab: &Lab, host: &str, packets: u32, what: &[&str]) {
    let (netns, count) = (lab.netns(host), packets.to_string());
    let port = format!("packet:{host}0");
    // An address that no host has, so that none answers.
    let flags = ["--netns", &netns, "--count", &count, "--rate", "10kpps", "--json"];
    let flags = [&flags[..], &["--dst", "203.0.113.1"]].concat();
    run(&[&["generate", &port], &flags[..], what].concat()).good();
}

/// The Ethernet address of a host.
pub fn mac(host: &str) -> String {
    let number = HOSTS.iter().position(|known| *known == host).unwrap() + 1;
    format!("02:00:c6:12:00:{number:02x}")
}
