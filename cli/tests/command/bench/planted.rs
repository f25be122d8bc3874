//! Slowdowns that are planted are named by the advice in the step that has them, and in no other: a
//! reader that sleeps, one that copies, packets that all come to one CPU. Needs root and two CPUs; the
//! readers (`reader.c`) a C compiler.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{cpus, report};
use crate::support::*;

/// Maximum number of runs while figures are in doubt because another program used the CPUs.
const TRIES: usize = 5;
/// The advice if all packets come to the CPU that sends them.
const ALONE: &str = "CPU 0 alone receives packets, ";

/// Makes a run until what it advises is `right` in each step, by the step's name ("recv, 2 queues"), these
/// among them; and it is at once unless the step says that it is in doubt.
fn advises(run: impl Fn() -> Value, needed: &[&str], right: impl Fn(&str, &str) -> bool) {
    let _cpus = cpus();
    for attempt in 1..=TRIES {
        let report = run();
        let steps = report["suites"][0]["steps"].as_array().unwrap();
        let (failed, measured): (Vec<&Value>, Vec<&Value>) =
            steps.iter().partition(|step| step.get("failed").is_some());
        let missing = |step: &&&Value| step["failed"].as_str().unwrap().contains("not installed");
        assert!(failed.iter().all(|step| missing(&step)), "{failed:#?}");
        let name = |step: &Value| match (step["step"].as_str().unwrap(), &step["queues"]) {
            (name, queues) if *queues == 1 => name.to_owned(),
            (name, queues) => format!("{name}, {queues} queues"),
        };
        let has = |needed: &&str| measured.iter().any(|step| name(step) == *needed);
        assert!(needed.iter().all(has), "{needed:?} of {measured:#?}");
        let is_wrong =
            |step: &&&Value| !right(&name(step), step["advice"].as_str().unwrap_or_default());
        let wrong = measured.iter().find(is_wrong);
        let Some(wrong) = wrong else { return };
        assert!(wrong["doubt"].is_string() && attempt < TRIES, "{wrong:#}");
    }
}

/// Makes a folder for PATH in which a bench finds perf, and no peers but those that a test adds.
fn folder_with_perf() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let perf = std::env::split_paths(&path).map(|at| at.join("perf")).find(|perf| perf.is_file());
    std::os::unix::fs::symlink(perf.unwrap(), folder.path().join("perf")).unwrap();
    folder
}

/// Builds the reader, as a command of this name.
fn build(folder: &Path, name: &str, planted: &[&str]) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/bench/reader.c");
    let built = Command::new("cc")
        .args(["-O2", source])
        .args(planted.iter().map(|it| format!("-D{it}")))
        .arg("-o")
        .arg(folder.join(name))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

fn has_two_cpus() -> bool {
    let has = std::thread::available_parallelism().unwrap().get() > 1;
    if !has {
        eprintln!("skipped: needs two CPUs; get it by a machine that has them");
    }
    has
}

#[test]
fn sleeping_and_copying_readers_are_named_in_their_steps() {
    if lab().is_none() || !have(&["cc", "perf"]) || !has_two_cpus() {
        return;
    }
    let folder = folder_with_perf();
    build(folder.path(), "tcpdump", &["SLEEP_US=20000"]);
    build(folder.path(), "dumpcap", &["COPIES=4"]);
    let run = || {
        let bench = ["bench", "rx", "--peers", "--rounds", "1", "--seconds", "500ms", "--json"];
        // With this PATH, the bench finds no other peers.
        report(sluice(&bench).env("PATH", folder.path()))
    };
    const SLEEPS: &str = "tcpdump -w /dev/null";
    const COPIES: &str = "dumpcap -w /dev/null";
    advises(run, &[SLEEPS, COPIES], |step, said| match step {
        // The reader replaces tcpdump in the step that writes files, too.
        _ if step.starts_with("tcpdump") => {
            said.starts_with("tcpdump sleeps ") && said.contains("let it wait for packets")
        }
        COPIES => {
            let remedy = "let dumpcap read packets in place";
            said.starts_with("copying takes ") && said.ends_with(remedy)
        }
        _ => !["tcpdump", "dumpcap", " sleeps "].iter().any(|word| said.contains(word)),
    });
}

#[test]
fn packets_on_a_single_cpu_are_named_in_their_step() {
    if !have(&["cc", "perf"]) || !has_two_cpus() {
        return;
    }
    let Some(lab) = lab() else { return };
    let folder = folder_with_perf();
    build(folder.path(), "tcpdump", &["COUNTS=1", "CPUS=1"]);
    build(folder.path(), "dumpcap", &["COUNTS=1"]);
    // A veth's packets come to the CPU that sends them, which spreads them over both by flow.
    let spread = "echo 3 > /sys/class/net/right0/queues/rx-0/rps_cpus";
    assert_eq!(on(&lab, "right", &["sh", "-c", spread]).status, Some(0));
    let [left, right] = ["left", "right"].map(|host| lab.netns(host));
    let between = format!("{left}/left0,{right}/right0");
    let run = || {
        let bench = ["bench", "rx", "--peers", "--rounds", "1", "--seconds", "1s", "--json"];
        let bench = [&bench[..], &["--between", &between]].concat();
        report(sluice(&bench).env("PATH", folder.path()))
    };
    const PLANTED: &str = "tcpdump -w /dev/null";
    const SPREAD: &str = "dumpcap -w /dev/null";
    // XDP takes packets before they are spread.
    const BEFORE: [&str; 5] = [
        "AF_XDP, adaptive",
        "AF_XDP, spin",
        "xdp: taken by XDP",
        "counted in XDP",
        "analyzed in XDP",
    ];
    advises(run, &[PLANTED, SPREAD], |step, said| match step {
        _ if step.starts_with("tcpdump") => said.starts_with(ALONE),
        _ => BEFORE.contains(&step) || !said.contains("alone receives packets"),
    });
}

#[test]
fn one_queue_uses_one_cpu_and_two_queues_use_both() {
    if lab().is_none() || !has_two_cpus() {
        return;
    }
    let run = || {
        let bench = ["bench", "rx", "--queues", "1,2", "--rounds", "1", "--seconds", "1s"];
        report(&mut sluice(&[&bench[..], &["--json"]].concat()))
    };
    const ONE: &str = "counted in XDP";
    const TWO: &str = "counted in XDP, 2 queues";
    advises(run, &[ONE, TWO], |step, said| match step {
        ONE => said.starts_with(ALONE),
        _ => !step.ends_with("2 queues") || !said.contains("alone receives packets"),
    });
}
