//! `sluice bench ndr` against a device whose faults are planted: in a lab of its own, by nft. Needs
//! root and nft; where they are not there each test says so.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluicegate::link::Shape;

use super::{children, long_enough, start};
use crate::support::*;

/// What is found out about a bridge that does this to what comes in, with trials as long as that takes on
/// a busy machine; none where it cannot be had.
fn bridge_with(
    rule: &str,
    arguments: &[&str],
    is_enough: impl Fn(&Value) -> bool,
) -> Option<Value> {
    let lab = lab_of(Shape::Line, 1)?;
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
        assert_eq!(on(&lab, "middle", &words).status, Some(0), "{command}");
    }
    if !have(&["nft"]) {
        return None;
    }
    let planted = on(&lab, "middle", &["nft", &ruleset]);
    if planted.status != Some(0) {
        eprintln!("skipped: needs netdev tables in the kernel: {}", planted.err);
        return None;
    }
    let between = format!("{}/left0,{}/right0", lab.netns("left"), lab.netns("right"));
    let run = |seconds: &str| {
        let short = ["--seconds", seconds, "--drain", "200ms", "--resolution", "10%", "--json"];
        let all = [&["bench", "ndr", "--between", &between], &short[..], arguments].concat();
        let ended = run(&all);
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        Some(serde_json::from_str(&ended.out).unwrap())
    };
    long_enough(run, |report: &Value| is_enough(&report["sizes"][0]))
}

#[test]
fn the_forwarder_in_a_lab_is_measured_from_end_to_end() {
    // Where nearly all may be lost, few trials are enough.
    let few = ["--resolution", "20%", "--loss", "99%"];
    let short = ["ndr", "--seconds", "100ms", "--drain", "200ms", "--json"];
    let Some(running) = start(&[&short[..], &few].concat()) else { return };
    let ended = running.end();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["complete"], true);
    let of_size = &report["sizes"][0];
    assert!(of_size["most_pps"].as_f64().unwrap() > 0.0, "{of_size}");
    // Something comes through, even where the machine is so busy that there is no throughput.
    let points = of_size["loss"].as_array().unwrap();
    assert!(points.iter().any(|point| point["lost"].as_f64().unwrap() < 1.0), "{of_size}");
    assert!(of_size["back_to_back"]["packets"].as_u64().is_some(), "{of_size}");
}

#[test]
fn a_signal_before_the_first_trial_is_over_leaves_no_empty_result() {
    let Some(running) = start(&["ndr", "--seconds", "60s", "--json"]) else { return };
    eventually("the device starts", || !children(running.pid()).is_empty());
    let ended = running.stop();
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("stopped before anything was measured"), "{}", ended.err);
}

#[test]
fn a_device_that_ends_is_told_and_is_not_one_that_loses_everything() {
    let Some(mut running) = start(&["ndr", "--seconds", "100ms", "--json"]) else { return };
    // The second trial begins.
    while !running.says().trim_start().starts_with("2/") {}
    let command = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    let forwards = |pid: &u32| command(pid).is_ok_and(|words| words.contains("\0forward\0"));
    let device = children(running.pid()).into_iter().find(forwards).expect("a device");
    kill(Pid::from_raw(device.cast_signed()), Signal::SIGKILL).unwrap();
    let ended = running.end();
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("sluice ended: "), "{}", ended.err);
}

#[test]
fn a_missing_privilege_of_what_is_started_is_told_as_that() {
    let Some(lab) = lab() else { return };
    if !have(&["setpriv"]) {
        return;
    }
    let without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let ndr = [env!("CARGO_BIN_EXE_sluice"), "bench", "ndr", "--between", "left0,lo"];
    let ended = on(&lab, "left", &[&without[..], &ndr].concat());
    assert_eq!(ended.status, Some(3), "{}", ended.err);
    assert!(ended.err.contains("needs CAP_"), "{}", ended.err);
}

/// Every thousandth packet, whoever sends them how fast.
const A_THOUSANDTH: &str = "numgen inc mod 1000 0 drop;";

#[test]
fn a_device_that_loses_a_thousandth_has_no_throughput_and_its_loss_is_told() {
    // Of a few thousand packets, one more or less is lost; a busy machine loses others besides.
    let near = |point: &Value| (0.0005..0.0015).contains(&point["lost"].as_f64().unwrap());
    let points = |of_size: &Value| of_size["loss"].as_array().unwrap().clone();
    let is_told = |of_size: &Value| points(of_size).iter().filter(|&it| near(it)).count() >= 5;
    let enough = |of_size: &Value| points(of_size).len() == 10 && is_told(of_size);
    let Some(report) = bridge_with(A_THOUSANDTH, &[], enough) else { return };
    assert_eq!(report["complete"], true);
    let of_size = &report["sizes"][0];
    assert!(of_size.get("throughput").is_none(), "{of_size}");
    assert_eq!(points(of_size).len(), 10, "it never ends: {of_size}");
    assert!(is_told(of_size), "{of_size}");
}

#[test]
fn where_that_may_be_lost_there_is_a_throughput() {
    let enough = |of_size: &Value| of_size.get("throughput").is_some();
    let Some(report) = bridge_with(A_THOUSANDTH, &["--loss", "1%"], enough) else { return };
    let of_size = &report["sizes"][0];
    assert!(of_size["throughput"]["pps"].as_f64().unwrap() > 0.0, "{of_size}");
    assert_eq!(of_size["latency"].as_array().unwrap().len(), 4, "{of_size}");
}

#[test]
fn a_device_is_not_faster_than_its_limit() {
    let limit = "limit rate over 20000/second burst 20 packets drop;";
    let Some(report) = bridge_with(limit, &[], |_| true) else { return };
    let of_size = &report["sizes"][0];
    let found = of_size["throughput"]["pps"].as_f64();
    // How near it is found depends on how evenly the sender could send; that it is not more does not.
    assert!(found.is_none_or(|pps| pps < 20_000.0 * 1.02), "{of_size}");
    assert!(of_size["trials"][0]["lost"].as_f64().unwrap() > 0.0, "{of_size}");
}

#[test]
fn wrong_use_is_refused() {
    for (arguments, said) in [
        (&["--loss", "0.1"][..], "a share is like 0.1%"),
        (&["--resolution", "0%"], "from 0.01% to 20%"),
        (&["--between", "eth1"], "it takes two interfaces"),
        (&["--device", "hub"], "a device is forward or bridge"),
        (&["--device", "bridge", "--between", "a,b"], "cannot be used with"),
    ] {
        refused(&[&["bench", "ndr"], arguments].concat(), said);
    }
}
