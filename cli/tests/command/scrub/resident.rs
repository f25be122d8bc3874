//! Scrubbers that stay without their command, and commands that are killed.

use std::rc::Rc;

use serde_json::Value;
use sluicegate::link::Lab;

use super::{SETS, STATE, Scrubber, text};
use crate::support::*;

fn claims(lab: &Lab) -> Value {
    let (netns, mut claims) = (lab.netns("right"), Value::Null);
    eventually("claims are listed", || {
        let ended = run(&["claims", "right0", "--netns", &netns, "--json"]);
        claims = serde_json::from_str(&ended.out).unwrap_or_default();
        ended.status == Some(0)
    });
    claims
}

/// Sends UDP packets from an address.
fn send(lab: &Lab, packets: u64, from: &str) {
    let (netns, count) = (lab.netns("left"), packets.to_string());
    let addresses = ["--src", from, "--dst", "198.18.0.2", "--dmac", NOBODY];
    let arguments = ["generate", "packet:left0", "--netns", &netns, "--count", &count];
    assert_eq!(run(&[&arguments[..], &addresses].concat()).status, Some(0));
}

/// Waits until the scrub stage has dropped this number of packets in all.
fn has_dropped(lab: &Lab, packets: u64) {
    eventually("they are dropped", || claims(lab)["claims"][0]["dropped"] == packets);
}

/// Drops all.
pub const ALL: &str = "[set.bad]\naction = 'drop'\nnetworks = ['0.0.0.0/0']\n";
/// Drops nothing.
const NONE: &str = "[set.bad]\naction = 'drop'\nnetworks = []\n";

/// UDP packets without a listener that the right host has received.
pub fn received(lab: &Lab) -> u64 {
    let snmp = on(lab, "right", &["cat", "/proc/net/snmp"]).out;
    let values = snmp.lines().filter(|it| it.starts_with("Udp:")).nth(1).unwrap().to_owned();
    values.split(' ').nth(2).unwrap().parse().unwrap()
}

/// Sends 10 UDP packets to the right host.
pub fn send_to_host(lab: &Lab) {
    let mac = on(lab, "right", &["cat", "/sys/class/net/right0/address"]).out;
    let left = lab.netns("left");
    let arguments = ["generate", "packet:left0", "--netns", &left, "--count", "10", "--dport", "9"];
    let addresses = ["--src", "198.18.0.1", "--dst", "198.18.0.2", "--dmac", mac.trim()];
    assert_eq!(run(&[&arguments[..], &addresses].concat()).status, Some(0));
}

/// Sends packets that the right host receives.
fn reach_host(lab: &Lab) {
    let before = received(lab);
    send_to_host(lab);
    eventually("the host gets them", || received(lab) == before + 10);
}

/// Sends packets that arrive at the interface, but do not reach the right host.
fn miss_host(lab: &Lab) {
    let total = || claims(lab)["program"]["packets"].as_u64().unwrap();
    let (before, so_far) = (received(lab), total());
    send_to_host(lab);
    eventually("they arrive at the interface", || total() >= so_far + 10);
    assert_eq!(received(lab), before, "none reaches the host");
}

#[test]
fn a_resident_scrubber_survives_its_command_and_the_next_one_takes_it_over() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(attached) = Attached::to(&netns, &[]) else { return };
    // The names of the counters exist for the next run.
    let folder = Rc::new(tempfile::tempdir().unwrap());
    let start = |more: &[&str]| Scrubber::start_in(Rc::clone(&folder), &lab, SETS, more);
    let scrubber = start(&["--resident"]);
    scrubber.send(10, "203.0.113.9", "set", "bad");
    scrubber.kill();
    send(&lab, 10, "203.0.113.9");
    has_dropped(&lab, 20);
    let listed = run(&["claims", "right0", "--netns", &netns]).out;
    assert!(listed.contains("resident, no process"), "{listed}");
    let scrubber = start(&["--resident"]);
    assert_eq!(scrubber.count("set", "bad"), 20, "counters go on");
    scrubber.send(10, "203.0.113.9", "set", "bad");
    // A signal ends the command alone.
    assert_eq!(scrubber.stop().status, Some(0));
    send(&lab, 10, "203.0.113.9");
    has_dropped(&lab, 40);
    let scrubber = start(&["--resident"]);
    scrubber.ask(&["stop"]);
    eventually("it stops", || claims(&lab)["claims"].as_array().is_some_and(Vec::is_empty));
    drop(scrubber);
    // Nothing is left of it: the next one begins at 0.
    let scrubber = start(&[]);
    assert_eq!(scrubber.count("set", "bad"), 0);
    scrubber.kill();
    assert_eq!(claims(&lab)["claims"].as_array().map(Vec::len), Some(0));
    drop(attached);
}

#[test]
fn a_scrubber_that_is_taken_over_protects_flows_at_once() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    let folder = Rc::new(tempfile::tempdir().unwrap());
    let start = |policy: &str, learn: &str| {
        let more = ["--resident", "--learn", learn];
        Scrubber::start_in(Rc::clone(&folder), &lab, policy, &more)
    };
    start(STATE, "0s").kill();
    let scrubber = start(STATE, "1h");
    assert!(scrubber.drops_unknown() > 900);
    // Without protection, flows are not known.
    scrubber.kill();
    start(NONE, "0s").kill();
    let scrubber = start(STATE, "1h");
    assert_eq!(scrubber.drops_unknown(), 0);
    scrubber.ask(&["stop"]);
}

#[test]
fn an_unconfirmed_policy_does_not_survive_its_command() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    let has_ended = || claims(&lab)["claims"].as_array().is_some_and(Vec::is_empty);
    let unconfirmed = ["--resident", "--confirm", "60s"];
    // The first one is killed, the second one ends.
    Scrubber::start(&lab, SETS, &unconfirmed).kill();
    eventually("nothing is kept", has_ended);
    assert_eq!(Scrubber::start(&lab, SETS, &unconfirmed).stop().status, Some(0));
    eventually("nothing is kept", has_ended);
    let scrubber = Scrubber::start(&lab, SETS, &unconfirmed);
    scrubber.ask(&["confirm"]);
    let other =
        scrubber.file("other.toml", "[set.worse]\naction = 'drop'\nnetworks = ['192.0.2.0/24']\n");
    scrubber.ask(&["apply", text(&other), "--confirm", "60s"]);
    let ended = scrubber.stop();
    assert!(ended.err.contains("not confirmed: back to "), "{}", ended.err);
    // The confirmed policy is kept, the applied one is not.
    send(&lab, 10, "192.0.2.9");
    send(&lab, 10, "203.0.113.9");
    has_dropped(&lab, 10);
    let scrubber = Scrubber::start(&lab, SETS, &["--resident"]);
    scrubber.ask(&["stop"]);
    eventually("it stops", has_ended);
}

#[test]
fn a_command_that_is_killed_before_a_confirmation_fails_open() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    // The resident program stays, and could run the stage.
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    for kept in [&["--resident"][..], &["--fail", "closed"]] {
        let scrubber = Scrubber::start(&lab, ALL, &[kept, &["--confirm", "60s"]].concat());
        scrubber.send(10, "198.18.0.1", "set", "bad");
        scrubber.kill();
        reach_host(&lab);
        let scrubber = Scrubber::start(&lab, NONE, kept);
        let all = scrubber.file("all.toml", ALL);
        scrubber.ask(&["apply", text(&all), "--confirm", "60s"]);
        scrubber.send(10, "198.18.0.1", "set", "bad");
        scrubber.kill();
        reach_host(&lab);
    }
}

#[test]
fn a_command_that_is_killed_after_a_confirmation_keeps_its_policy() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    for kept in [&["--resident"][..], &["--fail", "closed"]] {
        let scrubber = Scrubber::start(&lab, ALL, &[kept, &["--confirm", "60s"]].concat());
        scrubber.ask(&["confirm"]);
        scrubber.kill();
        miss_host(&lab);
        let scrubber = Scrubber::start(&lab, NONE, kept);
        let all = scrubber.file("all.toml", ALL);
        scrubber.ask(&["apply", text(&all), "--confirm", "60s"]);
        scrubber.ask(&["confirm"]);
        scrubber.kill();
        miss_host(&lab);
        // A policy that returned was confirmed before.
        let scrubber = Scrubber::start(&lab, ALL, kept);
        let none = scrubber.file("none.toml", NONE);
        scrubber.ask(&["apply", text(&none), "--confirm", "1s"]);
        let is_back = || scrubber.json(&["status"])["policy"] == text(&scrubber.policy());
        eventually("it is taken back", is_back);
        scrubber.kill();
        miss_host(&lab);
    }
}

#[test]
fn a_killed_command_fails_open_or_closed() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    for (fail, passes) in [("open", true), ("closed", false)] {
        let scrubber = Scrubber::start(&lab, SETS, &["--fail", fail]);
        scrubber.send(10, "203.0.113.9", "set", "bad");
        scrubber.kill();
        if passes {
            reach_host(&lab);
        } else {
            miss_host(&lab);
            // The next run, which ends, opens it again.
            assert_eq!(Scrubber::start(&lab, SETS, &[]).stop().status, Some(0));
            reach_host(&lab);
        }
    }
}

#[test]
fn the_counters_of_another_program_do_not_go_on() {
    let Some(lab) = lab() else { return };
    let netns = lab.netns("right");
    let Some(_attached) = Attached::to(&netns, &[]) else { return };
    let folder = Rc::new(tempfile::tempdir().unwrap());
    let start = || Scrubber::start_in(Rc::clone(&folder), &lab, SETS, &["--resident"]);
    start().stop();
    // It has another socket, and so another file for the names.
    let other = SETS.replace("set.bad", "set.worse");
    let scrubber = Scrubber::start(&lab, &other, &["--resident"]);
    scrubber.send(10, "203.0.113.9", "set", "worse");
    scrubber.stop();
    let scrubber = start();
    assert_eq!(scrubber.count("set", "bad"), 0);
    scrubber.ask(&["stop"]);
}
