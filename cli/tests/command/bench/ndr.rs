//! `sluice bench ndr` against a device whose faults are planted: in a lab of its own, by nft. Needs
//! root and nft; where they are not there each test says so.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sluicegate::link::{Lab, Shape};

use crate::child;

fn ndr(arguments: &[&str]) -> Output {
    let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
    sluice.args(["bench", "ndr"]).args(arguments).stdin(Stdio::null());
    let child = sluice.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child::end(child)
}

/// What is found out about a bridge that does this to what comes in; none where it cannot be had.
fn bridge_with(rule: &str, arguments: &[&str]) -> Option<Value> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root; get it by sudo");
        return None;
    }
    let lab = Lab::scratch_with(Shape::Line, 1).unwrap();
    let ruleset = format!(
        "table netdev plant {{ chain in {{ \
           type filter hook ingress device \"middle0\" priority 0; {rule} }} ; }}"
    );
    for command in [
        "ip link add bridge type bridge",
        "ip link set middle0 master bridge",
        "ip link set middle1 master bridge",
        "ip link set bridge up",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        assert!(lab.exec("middle", &words).unwrap().success(), "{command}");
    }
    if !lab.exec("middle", &["nft", &ruleset]).is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs nft, and its netdev tables in the kernel");
        return None;
    }
    let between = format!("{}/left0,{}/right0", lab.netns("left"), lab.netns("right"));
    let short = ["--seconds", "100ms", "--drain", "200ms", "--resolution", "10%", "--json"];
    let ended = ndr(&[&["--between", &between], &short[..], arguments].concat());
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    Some(serde_json::from_slice(&ended.stdout).unwrap())
}

/// Every thousandth packet, whoever sends them how fast.
const A_THOUSANDTH: &str = "numgen inc mod 1000 0 drop;";

#[test]
fn a_device_that_loses_a_thousandth_has_no_throughput_and_its_loss_is_told() {
    let Some(report) = bridge_with(A_THOUSANDTH, &[]) else { return };
    assert_eq!(report["complete"], true);
    let of_size = &report["sizes"][0];
    assert!(of_size.get("throughput").is_none(), "{of_size}");
    let points = of_size["loss"].as_array().unwrap();
    assert_eq!(points.len(), 10, "it never ends: {of_size}");
    // Of a few thousand packets, one more or less is lost; a busy machine loses others besides.
    let near = |point: &&Value| (0.0005..0.0015).contains(&point["lost"].as_f64().unwrap());
    assert!(points.iter().filter(near).count() >= 5, "{of_size}");
}

#[test]
fn where_that_may_be_lost_there_is_a_throughput() {
    let Some(report) = bridge_with(A_THOUSANDTH, &["--loss", "1%"]) else { return };
    let of_size = &report["sizes"][0];
    assert!(of_size["throughput"]["pps"].as_f64().unwrap() > 0.0, "{of_size}");
    assert_eq!(of_size["latency"].as_array().unwrap().len(), 4, "{of_size}");
}

#[test]
fn a_device_is_not_faster_than_its_limit() {
    let limit = "limit rate over 20000/second burst 20 packets drop;";
    let Some(report) = bridge_with(limit, &[]) else { return };
    let of_size = &report["sizes"][0];
    let found = of_size["throughput"]["pps"].as_f64();
    // How near it is found depends on how evenly the sender could send; that it is not more does not.
    assert!(found.is_none_or(|pps| pps < 20_000.0 * 1.02), "{of_size}");
    assert!(of_size["trials"][0]["lost"].as_f64().unwrap() > 0.0, "{of_size}");
}

#[test]
fn wrong_use_is_refused() {
    for arguments in [
        &["--loss", "0.1"][..],
        &["--resolution", "0%"],
        &["--between", "eth1"],
        &["--device", "hub"],
        &["--device", "bridge", "--between", "a,b"],
    ] {
        assert_eq!(ndr(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
