//! Slowdowns that are planted are named by the advice in the step that has them: a reader that sleeps and
//! one that copies, in no other; packets that all come to one CPU. Needs root and two CPUs; the
//! readers (`reader.c`) a C compiler.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sluicegate::link::Shape;

use super::{cpus, report};
use crate::support::*;

/// How often a run is made in all whose figures are in doubt: another program had the CPUs, too.
const TRIES: usize = 5;

/// Makes a run until what it advises is `right` in each step, by the step's name, these among them; and it
/// is at once unless the step says that it is in doubt.
fn advises(run: impl Fn() -> Value, needed: &[&str], right: impl Fn(&str, &str) -> bool) {
    let _cpus = cpus();
    for attempt in 1..=TRIES {
        let report = run();
        let steps = report["ladders"][0]["steps"].as_array().unwrap();
        let (failed, measured): (Vec<&Value>, Vec<&Value>) =
            steps.iter().partition(|step| step.get("failed").is_some());
        let missing = |step: &&&Value| step["failed"].as_str().unwrap().contains("not installed");
        assert!(failed.iter().all(|step| missing(&step)), "{failed:#?}");
        let name = |step: &Value| step["step"].as_str().unwrap().to_owned();
        let has = |needed: &&str| measured.iter().any(|step| name(step) == *needed);
        assert!(needed.iter().all(has), "{needed:?} of {measured:#?}");
        let is_wrong =
            |step: &&&Value| !right(&name(step), step["advice"].as_str().unwrap_or_default());
        let wrong = measured.iter().find(is_wrong);
        let Some(wrong) = wrong else { return };
        assert!(wrong["doubt"].is_string() && attempt < TRIES, "{wrong:#}");
    }
}

/// Builds the reader, as a command of this name.
fn build(folder: &Path, name: &str, sleep_us: u32, copies: u32) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/bench/reader.c");
    let built = Command::new("cc")
        .args(["-O2", &format!("-DSLEEP_US={sleep_us}"), &format!("-DCOPIES={copies}"), source])
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
fn a_reader_that_sleeps_and_one_that_copies_are_named_in_their_steps() {
    if lab().is_none() || !have(&["cc"]) || !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), "tcpdump", 20_000, 0);
    build(folder.path(), "dumpcap", 0, 4);
    let run = || {
        let bench = ["bench", "rx", "--peers", "--rounds", "1", "--seconds", "500ms", "--json"];
        // Other peers are not found.
        report(sluice(&bench).env("PATH", folder.path()))
    };
    const SLEEPS: &str = "tcpdump -w /dev/null";
    const COPIES: &str = "dumpcap -w /dev/null";
    advises(run, &[SLEEPS, COPIES], |step, said| match step {
        SLEEPS => said.starts_with("tcpdump sleeps ") && said.contains("let it wait for packets"),
        COPIES => {
            let remedy = "have dumpcap look at packets where they are";
            said.starts_with("copying takes ") && said.ends_with(remedy)
        }
        _ => !["tcpdump", "dumpcap", " sleeps "].iter().any(|word| said.contains(word)),
    });
}

#[test]
fn packets_that_all_come_to_one_cpu_are_named_where_that_is_the_limit() {
    if !has_two_cpus() {
        return;
    }
    let Some(lab) = lab_of(Shape::Pair, 2) else { return };
    let [left, right] = ["left", "right"].map(|host| lab.netns(host));
    let between = format!("{left}/left0,{right}/right0");
    let bench = ["bench", "drop", "--rules", "1", "--rounds", "1", "--seconds", "500ms", "--json"];
    let run = || report(&mut sluice(&[&bench[..], &["--between", &between]].concat()));
    let is_named = |said: &str| said.starts_with("CPU 0 alone receives");
    // A veth's packets come to the CPU that sends them: as if a card had all flows on one queue. Where a
    // program on the other CPU reads them, it depends on that one's speed which of them is the limit.
    advises(run, &["no listener"], |step, said| step != "no listener" || is_named(said));
}
