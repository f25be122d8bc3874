//! `sluice bench ndr` against the forwarder of a lab, and against one whose faults are planted
//! (`planted.bpf.c`), so that the right answers are known. Needs root and, for the latter, clang.

use std::process::{Command, Stdio};
use std::sync::MutexGuard;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluicegate::link::{self, Lab, Shape};

use super::{children, comes_to, cpus, report, start};
use crate::support::*;

/// The planted faults of a forwarder.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Packets it passes each second, in addition to [`DEPTH`] early ones; 0: all.
    pps: u64,
    /// It loses one packet in this many; 0: none.
    each: u64,
}

/// Packets that the limit's bucket holds. A sender that is 1 ms late makes up for it: 500 packets at half
/// a million a second.
const DEPTH: u64 = 1000;

/// A forwarder with faults on the middle host of a lab; `None` if it cannot be built.
struct Planted {
    lab: Lab,
    _cpus: MutexGuard<'static, ()>,
}

/// Runs a command at real-time priority, so that other processes do not delay the sender. After a second
/// the kernel lets others run, too.
const FIRST: [&str; 3] = ["chrt", "-f", "1"];

impl Planted {
    fn new(faults: Faults) -> Option<Self> {
        let cpus = cpus();
        let lab = lab_of(Shape::Line, 1)?;
        if !have(&["clang"]) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let object = folder.path().join("planted.o");
        let out = link::interface(Some(&lab.netns("middle")), "middle1").unwrap().index;
        let period_ns = 1_000_000_000_u64.checked_div(faults.pps).unwrap_or(0);
        let built = Command::new("clang")
            .args(["-O2", "-target", "bpf", &format!("-DOUT={out}"), &format!("-DDEPTH={DEPTH}")])
            .args([format!("-DPERIOD_NS={period_ns}"), format!("-DEACH={}", faults.each)])
            .args(["-c", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/bench/planted.bpf.c")])
            .arg("-o")
            .arg(&object)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let object = object.to_str().unwrap();
        let attach = ["ip", "link", "set", "middle0", "xdpdrv", "obj", object, "sec", "xdp"];
        let attached = on(&lab, "middle", &attach);
        assert_eq!(attached.status, Some(0), "{}", attached.err);
        Some(Self { lab, _cpus: cpus })
    }

    /// The search's result at a resolution of 0.5 %, with trials that are longer while it is not enough: the
    /// machine may be busy.
    fn found(&self, arguments: &[&str], is_enough: impl Fn(&Value) -> bool) -> Value {
        let [left, right] = ["left", "right"].map(|host| self.lab.netns(host));
        let between = format!("{left}/left0,{right}/right0");
        let may_be_first = ended(Command::new(FIRST[0]).args(&FIRST[1..]).arg("true"));
        let first = if may_be_first.status == Some(0) { &FIRST[..] } else { &[] };
        let ndr = [env!("CARGO_BIN_EXE_sluice"), "bench", "ndr", "--between", &between, "--json"];
        let mut of_size = Value::Null;
        for seconds in ["100ms", "500ms", "1s"] {
            let short = ["--seconds", seconds, "--confirm", CONFIRM, "--drain", "100ms"];
            let all = [first, &ndr, &short, arguments].concat();
            let mut command = Command::new(all[0]);
            command.args(&all[1..]).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut report = report(&mut command);
            assert_eq!(report["complete"], true);
            of_size = report["sizes"][0].take();
            if is_enough(&of_size) {
                break;
            }
        }
        of_size
    }
}

#[test]
fn a_result_is_shown_again_as_it_was_printed() {
    let folder = tempfile::tempdir().unwrap();
    let [json, html] = ["ndr.json", "ndr.html"].map(|name| folder.path().join(name));
    let result = r#"{"command": "bench ndr", "version": "0.1.0", "date": "2026-11-20T00:00:00Z",
        "machine": {"cpus": 2, "model": "", "virtual_machine": true, "kernel": "6.1.0"},
        "loss": 0.0, "resolution": 0.005, "seconds": 1.0, "confirm_seconds": 3.0, "complete": true,
        "sizes": [{"size": 60, "most_pps": 2e6, "trials": [{"offered_pps": 2e6, "lost": 0.5}],
            "throughput": {"pps": 1e6, "lost": 0.0, "sender_limits": false},
            "latency": [{"of_throughput": 0.5, "offered_pps": 5e5, "p50_ns": 1000, "p99_ns": 2000,
                "p99_9_ns": 3000, "max_ns": 4000}],
            "loss": [{"of_most": 1.0, "offered_pps": 2e6, "lost": 0.5}],
            "back_to_back": {"packets": 1234, "longest_tried": false}},
            {"most_pps": 1e6, "trials": []}]}"#;
    std::fs::write(&json, result).unwrap();
    let [json, html] = [&json, &html].map(|path| path.to_str().unwrap());
    let shown = run(&["bench", "show", json, "--html", html]);
    assert_eq!(shown.status, Some(0), "{}", shown.err);
    let expected = "\
frames of 60 bytes
  throughput    1,000,000 packets a second, 672 Mbit/s (layer 1), 0 % lost
  offered       2 Mpps at most, 1 trials
  latency       at  50 %: p50 1 µs, p99 2 µs, p99.9 3 µs, max 4 µs
  frame loss    at 100 %: 2 Mpps, 50.000 % lost
  back-to-back  1,234 packets

frames of IMIX
  throughput    not known yet
  offered       1 Mpps at most, 0 trials

";
    assert_eq!(shown.out, expected);
    assert!(std::fs::read_to_string(html).unwrap().contains("2026-11-20T00:00:00Z"));
    let full = run(&["bench", "show", json, "--html", "/dev/full"]);
    assert_eq!((full.status, full.out.as_str()), (Some(1), expected), "{}", full.err);
    let again: Value = serde_json::from_str(&run(&["bench", "show", json, "--json"]).out).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(result).unwrap());
    refused(&["bench", "show", json, "--svg", html], "takes --html and --json only");
    refused(&["bench", "check", json], "is a result of `sluice bench ndr`");
}

#[test]
fn the_forwarder_in_a_lab_is_measured_from_end_to_end() {
    let short = ["ndr", "--seconds", "100ms", "--drain", "100ms", "--resolution", "10%", "--json"];
    if lab().is_none() {
        return;
    }
    let _cpus = cpus();
    let report = report(&mut sluice(&[&["bench"], &short[..]].concat()));
    assert_eq!((&report["complete"], &report["loss"]), (&true.into(), &0.0.into()));
    let of_size = &report["sizes"][0];
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
    let list = |key: &str| of_size[key].as_array().unwrap().clone();
    let most = number(of_size, "most_pps");
    let trials = list("trials");
    assert_eq!(trials[0].get("target_pps"), None, "the first is at full speed: {of_size}");
    assert_eq!(trials[0]["offered_pps"], most, "{of_size}");
    let latency = of_size.get("latency").map_or_else(Vec::new, |_| list("latency"));
    match of_size.get("throughput") {
        Some(throughput) => {
            assert_eq!(throughput["lost"], 0.0, "{of_size}");
            let pps = number(throughput, "pps");
            assert!(pps > 0.0, "{of_size}");
            let tried =
                |trial: &&Value| trial["lost"] == 0.0 && number(trial, "offered_pps") == pps;
            assert!(trials.iter().rev().any(|trial| tried(&trial)), "{of_size}");
            let shares: Vec<f64> = latency.iter().map(|at| number(at, "of_throughput")).collect();
            assert_eq!(shares, [0.1, 0.5, 0.9, 1.0], "{of_size}");
        }
        None => {
            assert!(latency.is_empty(), "of no throughput there is no share: {of_size}");
            assert!(number(trials.last().unwrap(), "lost") > 0.0, "{of_size}");
        }
    }
    for at in &latency {
        let times = ["p50_ns", "p99_ns", "p99_9_ns", "max_ns"].map(|key| number(at, key));
        assert!(times[0] > 0.0 && times.is_sorted(), "{of_size}");
    }
    // From full speed down in tenths, until two in a row have no loss.
    let points = list("loss");
    let of_most = points.iter().map(|point| (number(point, "of_most") * 10.0).round() as usize);
    assert!(of_most.eq((0..points.len()).map(|step| 10 - step)), "{of_size}");
    let lost: Vec<f64> = points.iter().map(|point| number(point, "lost")).collect();
    assert!(lost.iter().all(|share| (0.0..=1.0).contains(share)), "{of_size}");
    // Some packets arrive, even on a machine too busy for a throughput.
    assert!(lost.iter().any(|&share| share < 1.0), "{of_size}");
    let quiet = lost.windows(2).position(|two| two == [0.0, 0.0]);
    assert_eq!(quiet.map_or(10, |at| at + 2), points.len(), "{of_size}");
    let offered: Vec<f64> = points.iter().map(|point| number(point, "offered_pps")).collect();
    assert!(
        offered[1..].iter().zip(&points[1..]).all(|(&pps, point)| {
            pps > 0.0 && pps <= most * number(point, "of_most") * 1.000_001
        }),
        "{of_size}"
    );
    let burst = &of_size["back_to_back"];
    assert!(burst["packets"].as_u64().is_some() && burst["longest_tried"].is_boolean(), "{burst}");
}

#[test]
fn several_pairs_share_packets_of_mixed_sizes_and_the_result_is_a_page() {
    let _cpus = cpus();
    let Some(lab) = lab() else { return };
    let [left, right] = ["left", "right"].map(|host| lab.netns(host));
    let [there, back] =
        [format!("{left}/left0,{right}/right0"), format!("{right}/right0,{left}/left0")];
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("ndr.html");
    let short = ["--seconds", "100ms", "--drain", "100ms", "--resolution", "20%", "--loss", "50%"];
    let of = ["bench", "ndr", "--between", &there, "--between", &back, "--sizes", "imix"];
    let received =
        || [("left", "left0"), ("right", "right0")].map(|(host, at)| received(&lab, host, at));
    let before = received();
    let result = [&of[..], &short, &["--json", "--html", page.to_str().unwrap()]].concat();
    let report = report(&mut sluice(&result));
    let of_size = &report["sizes"][0];
    assert!(of_size["throughput"]["pps"].as_f64() > Some(0.0), "{report}");
    assert_eq!(of_size.get("size"), None, "{report}");
    let offered: f64 = of_size["trials"][0]["offered_pps"].as_f64().unwrap() * 0.1;
    for (at, (before, after)) in before.into_iter().zip(received()).enumerate() {
        assert!(after - before > (offered / 4.0) as u64, "{at}: {before} to {after}: {report}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<h2>IMIX</h2>") && page.contains("RFC 2544"), "{page}");
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
fn a_device_that_exits_is_an_error_and_not_a_total_loss() {
    let Some(mut running) = start(&["ndr", "--seconds", "100ms", "--json"]) else { return };
    let line = comes_to(&mut running, 2);
    assert!(line.contains("2  60 bytes, ") && !line.contains("left"), "{line}");
    let command = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    let forwards = |pid: &u32| command(pid).is_ok_and(|words| words.contains("\0forward\0"));
    let device = children(running.pid()).into_iter().find(forwards).expect("a device");
    kill(Pid::from_raw(device.cast_signed()), Signal::SIGKILL).unwrap();
    let ended = running.end();
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("sluice ended: "), "{}", ended.err);
}

#[test]
fn a_missing_privilege_has_status_3() {
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

/// Half a million packets a second.
const LIMIT: u64 = 500_000;
/// How long the confirming trial lasts, also in seconds.
const CONFIRM: &str = "600ms";
const CONFIRM_S: f64 = 0.6;
/// The lag that the sender makes up for, in seconds.
const CATCH_UP_S: f64 = 1e-3;

/// The throughput is that of the limit where `loss` may be lost, and is lost besides with `planted`: within
/// the resolution; in no run more, and less only where the sender was the limit.
fn has_the_limit(device: &Planted, arguments: &[&str], loss: f64, planted: f64) -> Value {
    let most = |pps: f64| pps / (1.0 - loss);
    let is_near = |of_size: &Value| {
        let pps = of_size.get("throughput").map_or(0.0, |it| it["pps"].as_f64().unwrap());
        // At most the bucket's packets can pass in addition.
        let held = (DEPTH as f64 + LIMIT as f64 * CATCH_UP_S) / CONFIRM_S;
        assert!(pps <= most(LIMIT as f64 + held), "{of_size}");
        pps >= most(LIMIT as f64) * 0.995
    };
    let of_size = device.found(arguments, is_near);
    assert!(is_near(&of_size) || of_size["throughput"]["sender_limits"] == true, "{of_size}");
    let lost = of_size["throughput"]["lost"].as_f64().unwrap();
    assert!((planted * 0.99..=loss).contains(&lost), "{of_size}");
    of_size
}

#[test]
fn the_limit_of_a_device_is_its_throughput() {
    let Some(device) = Planted::new(Faults { pps: LIMIT, ..Faults::default() }) else { return };
    has_the_limit(&device, &[], 0.0, 0.0);
}

#[test]
fn a_device_that_loses_a_thousandth_has_no_throughput_and_a_loss() {
    let Some(device) = Planted::new(Faults { each: 1000, ..Faults::default() }) else { return };
    let of_size = device.found(&[], |_| true);
    assert!(of_size.get("throughput").is_none(), "{of_size}");
    let points = of_size["loss"].as_array().unwrap();
    assert_eq!(points.len(), 10, "it never ends: {of_size}");
    for point in points {
        let [lost, offered] = ["lost", "offered_pps"].map(|key| point[key].as_f64().unwrap());
        // One packet more or less of those sent in a tenth of a second.
        assert!((lost - 0.001).abs() <= 1.02 / (offered * 0.1), "{point}");
    }
}

#[test]
fn allowed_losses_leave_the_throughput_at_the_limit() {
    let Some(device) = Planted::new(Faults { pps: LIMIT, each: 1000 }) else { return };
    let of_size = has_the_limit(&device, &["--loss", "0.2%"], 0.002, 0.001);
    assert_eq!(of_size["latency"].as_array().unwrap().len(), 4, "{of_size}");
}

#[test]
fn wrong_use_is_refused() {
    for (arguments, said) in [
        (&["--loss", "0.1"][..], "use a share from 0%"),
        (&["--resolution", "0%"], "from 0.01% to 20%"),
        (&["--between", "eth1"], "name two interfaces"),
        (&["--sizes", "64,9000"], "use 60 to 1514 bytes, or imix"),
        (&["--device", "hub"], "possible values: forward, bridge"),
        (&["--device", "bridge", "--between", "a,b"], "cannot be used with"),
    ] {
        refused(&[&["bench", "ndr"], arguments].concat(), said);
    }
}
