//! Nothing stays of a scrubber that has ended.

use std::path::PathBuf;

use serde_json::Value;
use sluicegate::link::{self, Lab, netns};

use super::{SETS, Scrubber};
use crate::support::*;

/// The resident program of right0; null without one.
fn program(lab: &Lab) -> Value {
    let ended = run(&["claims", "right0", "--netns", &lab.netns("right"), "--json"]);
    serde_json::from_str::<Value>(&ended.out).unwrap()["program"].clone()
}

/// The folder of the pins of right0.
fn pins(lab: &Lab) -> PathBuf {
    let right = lab.netns("right");
    let index = link::interface(Some(&right), "right0").unwrap().index;
    let number =
        netns::run_in(Some(&right), || Ok(std::fs::read_link("/proc/thread-self/ns/net").unwrap()));
    let number = number.unwrap().to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
    format!("/sys/fs/bpf/sluice/{number}-{index}").into()
}

/// The names in a scrubber's folder.
fn files(scrubber: &Scrubber<'_>) -> Vec<String> {
    let entries = scrubber.folder.path().read_dir().unwrap();
    entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns true if programs can be pinned here.
fn can_pin(lab: &Lab) -> bool {
    Attached::to(&lab.netns("right"), &[]).is_some()
}

#[test]
fn a_resident_scrubber_that_is_stopped_leaves_no_pins() {
    let Some(lab) = lab() else { return };
    if !can_pin(&lab) {
        return;
    }
    let scrubber = Scrubber::start(&lab, SETS, &["--resident"]);
    assert_eq!(program(&lab)["pinned"], true);
    assert!(pins(&lab).exists(), "they belong to the namespace of the interface");
    scrubber.ask(&["stop"]);
    eventually("the program is removed", || program(&lab) == Value::Null);
    assert!(!pins(&lab).exists());
    eventually("its files are removed", || files(&scrubber) == ["policy.toml"]);
}

#[test]
fn pins_of_attach_stay_after_a_resident_scrubber() {
    let Some(lab) = lab() else { return };
    if !can_pin(&lab) {
        return;
    }
    let netns = lab.netns("right");
    for attached_first in [true, false] {
        let before = attached_first.then(|| Attached::to(&netns, &[]).unwrap());
        let scrubber = Scrubber::start(&lab, SETS, &["--resident"]);
        let attached = before.unwrap_or_else(|| Attached::to(&netns, &[]).unwrap());
        scrubber.ask(&["stop"]);
        eventually("it ends", || files(&scrubber) == ["policy.toml"]);
        assert_eq!(program(&lab)["pinned"], true, "attached first: {attached_first}");
        assert_eq!(attached.detach().status, Some(0));
        assert_eq!(program(&lab), Value::Null);
    }
}

#[test]
fn nothing_stays_when_the_interface_is_removed() {
    let Some(lab) = lab_with(&["ip"]) else { return };
    if !can_pin(&lab) {
        return;
    }
    let scrubber = Scrubber::start(&lab, SETS, &["--resident"]);
    let pins = pins(&lab);
    assert_eq!(on(&lab, "right", &["ip", "link", "del", "right0"]).status, Some(0));
    eventually("it ends", || scrubber.running.has_ended());
    assert_eq!(files(&scrubber), ["policy.toml"]);
    assert!(!pins.exists());
    let ended = scrubber.stop();
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.err.contains("right0 no longer exists"), "{}", ended.err);
}

#[test]
fn a_second_scrubber_is_refused_and_the_first_one_stays() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    let policy = scrubber.folder.path().join("policy.toml");
    let (netns, other) = (lab.netns("right"), scrubber.folder.path().join("other"));
    let arguments = ["scrub", "run", "right0", "--policy", policy.to_str().unwrap()];
    let place = ["--netns", &netns, "--control", other.to_str().unwrap()];
    let ended = run(&[&arguments[..], &place].concat());
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    let owner = format!("sluice (process {}) already does the same", scrubber.running.pid());
    assert!(ended.err.contains(&owner), "{}", ended.err);
    assert!(!other.exists());
    scrubber.send(10, "203.0.113.9", "set", "bad");
    assert_eq!(scrubber.stop().status, Some(0));
    assert_eq!(program(&lab), Value::Null);
}
