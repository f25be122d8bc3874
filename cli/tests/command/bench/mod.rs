//! `sluice bench` as its users run it: short turns, in labs of its own. Rates are not looked at, only
//! that there are some, and that nothing stays behind. Without root it says so and passes.

mod cost;
mod floods;
mod ndr;
mod planted;
mod scrub_cost;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::child;
use crate::support::*;

/// Longer than all turns of a run take, on a busy machine too.
const LONG: Duration = Duration::from_secs(400);

/// Serializes tests that measure CPUs or occupy one.
fn cpus() -> MutexGuard<'static, ()> {
    static CPUS: Mutex<()> = Mutex::new(());
    CPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command of many turns, which must succeed. Returns its output.
fn report(command: &mut Command) -> Value {
    let child = command.spawn().unwrap();
    let pid = child.id();
    let ended: Ended = child::limited_to(LONG, pid, || child.wait_with_output()).unwrap().into();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    leaves_nothing(pid);
    serde_json::from_str(&ended.out).unwrap()
}

/// Starts a run; `None` if labs cannot be made.
fn start(arguments: &[&str]) -> Option<Running> {
    lab().map(|_| Running::unawaited(&mut sluice(&[&["bench"], arguments].concat())))
}

/// The report of a run of one round: of short turns, or of long ones where a process did not get the CPU
/// in a short one.
fn bench(arguments: &[&str]) -> Option<Value> {
    lab()?;
    let _cpus = cpus();
    let run = |seconds: &str| {
        let once = ["--rounds", "1", "--seconds", seconds, "--json", "--no-causes"];
        report(&mut sluice(&[&["bench"][..], arguments, &once].concat()))
    };
    let short = run("200ms");
    let mut steps = short["suites"][0]["steps"].as_array().unwrap().iter();
    let all_had_time = steps.all(|step| step["mpps"]["median"] != 0.0);
    Some(if all_had_time { short } else { run("1s") })
}

/// No lab of this process is left.
fn leaves_nothing(pid: u32) {
    let labs = sluicegate::link::Lab::list();
    assert!(labs.iter().all(|lab| lab.owner() != Some(pid)), "{labs:?}");
}

/// The processes that any thread of a process has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    let listed: Vec<String> = tasks.flat_map(children).collect();
    listed.iter().flat_map(|it| it.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// Checks the steps of the only suite; those that a kernel or a machine without their tools cannot
/// have are named. Returns the names of the steps that were measured.
fn measured(report: &Value) -> Vec<String> {
    assert_eq!(report["complete"], true);
    let steps = report["suites"][0]["steps"].as_array().unwrap();
    let (mut names, mut with_losses) = (Vec::new(), 0);
    for step in steps {
        let name = step["step"].as_str().unwrap();
        if let Some(reason) = step["failed"].as_str() {
            // Peers that are not installed, and what `tc` and `nft` do not find in this kernel.
            let excused = ["not installed", "run tc ", "run nft ", "run iptables"];
            assert!(excused.iter().any(|excuse| reason.contains(excuse)), "{name}: {reason}");
            continue;
        }
        let turn = &step["turns"][0];
        assert!(turn["mpps"].as_f64().unwrap() > 0.0, "{step}");
        // Senders whose packets a peer makes have no count of what they sent.
        if !turn["lost"].is_null() {
            assert!((0.0..=1.0).contains(&turn["lost"].as_f64().unwrap()), "{step}");
            with_losses += 1;
        }
        assert_eq!(step["mpps"]["median"], turn["mpps"], "{step}");
        names.push(name.to_owned());
    }
    assert!(with_losses > 0 || report["suites"][0]["suite"] == "pipe", "{report}");
    names
}

#[test]
fn receiving_is_measured_from_recv_to_xdp() {
    let Some(report) = bench(&["rx"]) else { return };
    let names = measured(&report);
    assert_eq!(names.first().map(String::as_str), Some("recv"));
    let steps = report["suites"][0]["steps"].as_array().unwrap();
    let counted = steps.iter().find(|step| step["step"] == "counted in XDP").unwrap();
    assert_eq!(counted["lost"]["median"], 0.0, "XDP has no ring that could be full: {counted}");
}

#[test]
fn sending_is_counted_at_the_other_end() {
    let Some(report) = bench(&["tx", "--cores", "1"]) else { return };
    let names = measured(&report);
    for step in ["sendto", "sendmmsg", "TX ring", "AF_XDP", "live frames"] {
        assert!(names.iter().any(|name| name == step), "{step} is not in {names:?}");
    }
}

#[test]
fn dropping_is_counted_where_it_happens() {
    let Some(report) = bench(&["drop", "--rules", "1,3"]) else { return };
    let names = measured(&report);
    assert_eq!(names.first().map(String::as_str), Some("listener in user space"));
    assert_eq!(names.iter().filter(|name| *name == "XDP").count(), 2, "with 1 and with 3 rules");
}

#[test]
fn forwarded_packets_are_counted_at_the_receiver() {
    let Some(report) = bench(&["forward"]) else { return };
    let names = measured(&report);
    assert_eq!(names.first().map(String::as_str), Some("packet sockets"));
    assert_eq!(names.last().map(String::as_str), Some("XDP redirect"));
    for step in ["kernel routing", "kernel bridge", "AF_XDP swap, spin"] {
        assert!(names.iter().any(|name| name == step), "{step} is not in {names:?}");
    }
}

#[test]
fn a_program_that_ends_in_mid_turn_has_no_rate() {
    if lab().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let peer = folder.path().join("dpdk-testpmd");
    std::fs::write(&peer, "#!/bin/sh\necho NIC statistics\nsleep 0.2\n").unwrap();
    std::fs::set_permissions(&peer, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let short = ["--rounds", "1", "--seconds", "50ms", "--json", "--no-causes"];
    let arguments = [&["bench", "forward", "--peers"], &short[..]].concat();
    let ended = ended(sluice(&arguments).env("PATH", path));
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    let steps = report["suites"][0]["steps"].as_array().unwrap();
    let of_peer = |step: &&Value| step["by"] == "dpdk-testpmd";
    let failed: Vec<&Value> = steps.iter().filter(of_peer).map(|step| &step["failed"]).collect();
    assert_eq!(failed, ["dpdk-testpmd ended: NIC statistics"; 2]);
}

#[test]
fn pipes_are_measured_at_the_receiver() {
    let Some(report) = bench(&["pipe"]) else { return };
    let names = measured(&report);
    assert_eq!(names.first().map(String::as_str), Some("unix datagrams, a call a packet"));
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn a_flood_is_dropped_by_policies_and_by_the_kernels_means() {
    let Some(report) = bench(&["scrub"]) else { return };
    let names = measured(&report);
    assert_eq!(names.first().map(String::as_str), Some("resident program, count and drop"));
    for step in [
        "scrub, empty policy",
        "scrub, 1,000,000 networks",
        "LPM trie, 1,000,000 networks",
        "scrub, 10,000 rules",
        "scrub, limit by source",
        "LRU hash, limit by source",
        "scrub, all of these",
        "kernel SYN cookies",
        "scrub, TCP challenge",
    ] {
        assert!(names.iter().any(|name| name == step), "{step} is not in {names:?}");
    }
}

/// Waits until a run is at the turn of this number. Returns its line.
fn comes_to(running: &mut Running, turn: u32) -> String {
    loop {
        let line = running.says();
        let number = line.trim_start().split(['/', ' ']).next();
        if number == Some(&turn.to_string()) {
            return line;
        }
    }
}

/// Stops a run at this turn. Returns the report of the turns before it.
fn stopped_at(turn: u32, mut running: Running) -> Value {
    let pid = running.pid();
    comes_to(&mut running, turn);
    let ended = running.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    leaves_nothing(pid);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["complete"], false);
    report
}

#[test]
fn a_signal_ends_it_and_keeps_its_measurements() {
    let rounds = ["rx", "--rounds", "99", "--seconds", "50ms", "--json"];
    let Some(running) = start(&rounds) else { return };
    let report = stopped_at(2, running);
    let steps = report["suites"][0]["steps"].as_array().unwrap();
    assert_eq!(steps[0]["turns"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn its_processes_end_when_it_is_killed() {
    let Some(running) = start(&["rx", "--seconds", "60s", "--json"]) else { return };
    let pid = running.pid();
    let mut started = Vec::new();
    // Its children: a receiver and a sender.
    eventually("a turn begins", || {
        started = children(pid);
        started.len() > 1
    });
    running.signal(Signal::SIGKILL);
    running.end();
    eventually("all have ended", || started.iter().all(|&pid| child::has_ended(pid)));
    // The next process that makes a lab removes its lab, and may be faster.
    let labs = sluicegate::link::Lab::list();
    for lab in labs.iter().filter(|lab| lab.owner() == Some(pid)) {
        let _ = sluicegate::link::Lab::down(lab.name());
    }
    eventually("its lab is removed", || {
        sluicegate::link::Lab::list().iter().all(|lab| lab.owner() != Some(pid))
    });
}

/// The JSON of a receiving suite: steps with their rates.
fn result(steps: &[(&str, f64)]) -> String {
    let step = |&(step, mpps): &(&str, f64)| {
        json!({
            "step": step, "by": "sluice", "command": "c", "size": 60, "queues": 1, "cores": 1,
            "mpps": { "median": mpps, "min": mpps, "max": mpps },
            "turns": [{ "round": 1, "mpps": mpps }],
        })
    };
    let steps: Vec<Value> = steps.iter().map(step).collect();
    let suite = json!({ "suite": "rx", "title": "Receiving", "reference": "ring", "steps": steps });
    let machine = json!({ "cpus": 2, "model": "", "virtual_machine": true, "kernel": "" });
    json!({
        "command": "bench", "version": "0", "date": "", "rounds": 1, "seconds": 1,
        "complete": true, "machine": machine, "suites": [suite],
    })
    .to_string()
}

#[test]
fn a_ratio_below_its_threshold_is_reported_with_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json").display().to_string();
    for (mpps, status, verdict) in [(2.0, 0, "pass"), (1.0, 1, "fail")] {
        let steps = [("TPACKET_V3 ring", mpps), ("tcpdump -w /dev/null", 1.5)];
        std::fs::write(&file, result(&steps)).unwrap();
        let ended = run(&["bench", "check", &file]);
        assert_eq!(ended.status, Some(status), "{}", ended.err);
        assert!(ended.out.starts_with(verdict), "{}", ended.out);
        // A ratio without a measurement neither passes nor fails.
        assert!(ended.out.contains("unknown"), "{}", ended.out);
        let ended = run(&["bench", "check", &file, "--json"]);
        let checked: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(checked[0]["verdict"], verdict);
    }
    let stopped = result(&[]).replace("\"complete\":true", "\"complete\":false");
    std::fs::write(&file, stopped).unwrap();
    let ended = run(&["bench", "check", &file]);
    assert_eq!(ended.status, Some(1), "what was stopped keeps nothing: {}", ended.err);
    assert!(ended.err.contains("stopped before"), "{}", ended.err);
}

/// The JSON of a suite with a step of this ratio to the reference, and a loop of this many instructions.
fn result_with(ratio: f64, instructions: f64) -> String {
    let steps = [("ring", 1.0), ("recvmmsg", 1.0)];
    let mut value: Value = serde_json::from_str(&result(&steps)).unwrap();
    let spread = json!({ "median": ratio, "min": ratio, "max": ratio });
    value["suites"][0]["steps"][1]["ratio"] = spread;
    value["loops"] = json!([
        { "loop": "forward", "command": "c", "of": "packet", "instructions": instructions },
    ]);
    value.to_string()
}

#[test]
fn slower_steps_and_longer_loops_are_named_with_status_1() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).display().to_string();
    let (before, now) = (path("before.json"), path("now.json"));
    std::fs::write(&before, result_with(0.5, 20.0)).unwrap();
    for (ratio, instructions, status, said) in [
        (0.5, 20.2, 0, "no change exceeds"),
        (0.6, 15.0, 0, "rx: recvmmsg, 60 B: ratio 0.500 -> 0.600 (+20 %)"),
        (0.4, 20.0, 1, "rx: recvmmsg, 60 B: ratio 0.500 -> 0.400 (-20 %)"),
        (0.5, 25.0, 1, "  forward: instructions 20.00 -> 25.00 (+25 %)"),
    ] {
        std::fs::write(&now, result_with(ratio, instructions)).unwrap();
        let ended = run(&["bench", "check", &now, "--compare", &before]);
        assert_eq!(ended.status, Some(status), "{said}: {}", ended.err);
        assert!(ended.out.contains(said), "{said}: {}", ended.out);
        let ended = run(&["bench", "check", &now, "--compare", &before, "--json"]);
        assert_eq!(ended.status, Some(status), "{said}: {}", ended.err);
        assert!(ended.err.contains(said), "{said}: {}", ended.err);
        serde_json::from_str::<Value>(&ended.out).expect("standard output holds the JSON alone");
    }
    let mut broken: Value = serde_json::from_str(&result_with(0.5, 20.0)).unwrap();
    let step = broken["suites"][0]["steps"][1].as_object_mut().unwrap();
    step.retain(|key, _| !["mpps", "ratio"].contains(&key.as_str()));
    step.extend([
        ("failed".to_owned(), "sluice ended: no room".into()),
        ("turns".into(), json!([])),
    ]);
    std::fs::write(&now, broken.to_string()).unwrap();
    let ended = run(&["bench", "check", &now, "--compare", &before]);
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    let said = "  rx: recvmmsg, 60 B: Mpps 1.00 -> none: sluice ended: no room\n";
    assert!(ended.out.contains(said), "{}", ended.out);
}

/// Runs `sluice bench instructions` with this PATH, and returns its loops.
fn loops(path: &str) -> Option<Vec<Value>> {
    lab()?;
    let report = report(sluice(&["bench", "instructions", "--json"]).env("PATH", path));
    assert_eq!(report["complete"], true);
    Some(report["loops"].as_array().unwrap().clone())
}

#[test]
fn instructions_of_hot_loops_are_counted() {
    if !have(&["valgrind"]) {
        return;
    }
    let Some(loops) = loops(&std::env::var("PATH").unwrap()) else { return };
    for it in &loops {
        assert!(it["failed"].is_null(), "{it}");
        assert!(it["instructions"].as_f64().unwrap() > 5.0, "{it}");
        assert_eq!(it["of"] == "program", it["ns"].is_number(), "{it}");
    }
    let kinds = ["receive: ", "forward: ", "claim program: ", "generator program: "];
    for kind in kinds {
        let is = |it: &Value| it["loop"].as_str().unwrap().starts_with(kind);
        assert!(loops.iter().any(is), "{kind} is not in {loops:?}");
    }
}

#[test]
fn missing_valgrind_is_reported_and_programs_are_still_counted() {
    let Some(loops) = loops("/nonexistent") else { return };
    for it in &loops {
        match it["of"].as_str().unwrap() {
            "packet" => assert_eq!(
                it["failed"], "valgrind is not installed: apt-get install valgrind",
                "{it}"
            ),
            _ => assert!(it["instructions"].as_f64().unwrap() > 5.0, "{it}"),
        }
    }
}

#[test]
fn a_stopped_count_keeps_the_counted_loops() {
    if lab().is_none() {
        return;
    }
    // Without valgrind, loops that need it are reported at once.
    let mut command = sluice(&["bench", "instructions", "--json"]);
    let running = Running::unawaited(command.env("PATH", "/nonexistent"));
    let report = stopped_at(4, running);
    assert_eq!(report["loops"].as_array().unwrap().len(), 3, "{report}");
}

#[test]
fn a_result_is_shown_again_as_a_table_and_as_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).display().to_string();
    let (json, html) = (path("result.json"), path("page.html"));
    std::fs::write(&json, result(&[("XDP", 2.0)])).unwrap();
    let ended = run(&["bench", "show", &json, "--html", &html, "--compare", &json]);
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert!(ended.out.contains("XDP, 60 B  sluice"), "{}", ended.out);
    assert!(ended.out.contains("no change exceeds"), "{}", ended.out);
    assert!(std::fs::read_to_string(&html).unwrap().contains("<svg"));
    refused(&["bench", "show", &html], "is not a result of");
    std::fs::write(&html, "x".repeat(1 << 20)).unwrap();
    refused(&["bench", "rx", "--between", "lo,lo", "--html", &html], "lo twice");
    assert_eq!(
        std::fs::read(&html).unwrap().len(),
        1 << 20,
        "it is left where nothing was measured"
    );
    let new = path("new.html");
    refused(&["bench", "rx", "--between", "lo,lo", "--html", &new], "lo twice");
    assert!(!std::path::Path::new(&new).exists(), "an empty file is left");
    run(&["bench", "show", &json, "--html", &html]);
    assert!(std::fs::read_to_string(&html).unwrap().ends_with("</html>\n"), "none of it is left");
}

#[test]
fn a_result_is_shown_as_a_chart_and_in_its_place_in_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).display().to_string();
    let (json, svg, document) = (path("result.json"), path("chart.svg"), path("document.md"));
    let steps = [("recv <i>", 0.5), ("TPACKET_V3 ring", 2.0), ("tcpdump -w /dev/null", 1.0)];
    std::fs::write(&json, result(&steps)).unwrap();
    let show = ["bench", "show", &json, "--svg", &svg, "--markdown", &document];
    std::fs::write(&document, "nothing\n").unwrap();
    refused(&show, "has no marks for a table");
    std::fs::write(&document, "a\n<!-- bench -->\nold\n<!-- /bench -->\nb\n").unwrap();
    for _ in 0..2 {
        let ended = run(&show);
        assert_eq!(ended.status, Some(0), "{}", ended.err);
        let text = std::fs::read_to_string(&document).unwrap();
        assert!(text.starts_with("a\n<!-- bench -->\n"), "{text}");
        assert!(text.ends_with("\n<!-- /bench -->\nb\n") && !text.contains("old"), "{text}");
        let row = "| TPACKET_V3 ring | 2.00 (2.00–2.00) | tcpdump -w /dev/null | 1.00 (1.00–1.00) | \
                   2.00 (2.00–2.00) |\n";
        assert_eq!(text.matches(row).count(), 1, "{text}");
    }
    let chart = std::fs::read_to_string(&svg).unwrap();
    assert!(chart.starts_with("<svg ") && chart.contains(">recv &lt;i&gt;</text>"), "{chart}");
}

#[test]
fn a_file_is_for_one_result_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).display().to_string();
    let (json, new, document) = (path("result.json"), path("new"), path("document.md"));
    std::fs::write(&json, result(&[("XDP", 2.0)])).unwrap();
    let show = ["bench", "show", json.as_str()];
    refused(&[&show[..], &["--html", &new, "--svg", &new]].concat(), "is named twice");
    assert!(!Path::new(&new).exists(), "an empty file is left");
    let pipe = ["--html", "/dev/stdout", "--svg", "/dev/fd/1"];
    refused(&[&show[..], &pipe].concat(), "is named twice");
    let text = "<!-- bench -->\n<!-- /bench -->\n";
    std::fs::write(&document, text).unwrap();
    std::os::unix::fs::symlink("document.md", &new).unwrap();
    refused(&[&show[..], &["--svg", &document, "--markdown", &new]].concat(), "is named twice");
    assert_eq!(std::fs::read_to_string(&document).unwrap(), text);
    let ended = run(&[&show[..], &["--html", "/dev/null", "--svg", "/dev/null"]].concat());
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let full = run(&[&show[..], &["--html", "/dev/full"]].concat());
    assert_eq!((full.status, full.out), (Some(1), ended.out), "{}", full.err);
}

#[test]
fn the_table_in_readme_comes_from_the_committed_result() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let committed = |name: &str| std::fs::read_to_string(tree.join(name)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name).display().to_string();
    let (svg, readme) = (path("bench.svg"), path("README.md"));
    std::fs::write(&readme, committed("README.md")).unwrap();
    let json = tree.join("docs/bench.json").display().to_string();
    let ended = run(&["bench", "show", &json, "--svg", &svg, "--markdown", &readme]);
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    for (made, name) in [(readme, "README.md"), (svg, "docs/bench.svg")] {
        let made = std::fs::read_to_string(made).unwrap();
        assert!(made == committed(name), "{name} is of another result: make readme");
    }
}

#[test]
fn invalid_flags_are_refused() {
    for (arguments, part) in [
        (&["rx", "--sizes", "59"][..], "60..=9000"),
        (&["rx", "--seconds", "1ms"], "the minimum is 50ms"),
        (&["rx", "--between", "left0"], "name two interfaces"),
        (&["rx", "--between", "lo,lo"], "lo twice"),
        (&["forward", "--between", "lo,eth1"], "forward is measured in a lab"),
        (&["scrub", "--between", "lo,eth1"], "scrub is measured in a lab"),
    ] {
        refused(&[&["bench"], arguments].concat(), part);
    }
}
