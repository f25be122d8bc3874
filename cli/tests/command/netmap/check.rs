//! `sluice netmap check`.

use std::process::Command;

use serde_json::Value;
use sluicegate::link::Lab;

use crate::support::*;

const UNPRIVILEGED: [&str; 5] = ["preload library", "VALE switch", "pipe", "monitor", "server"];
const OF_CARDS: [&str; 5] = ["AF_XDP", "live frames", "packet sockets", "host rings", "filter"];

/// The checks of a report with this verdict.
fn with_verdict<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|it| it["verdict"] == verdict).map(|it| it["name"].as_str().unwrap()).collect()
}

/// Removes privileges from a command.
fn without(capabilities: &str, arguments: &[&str]) -> Ended {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args([format!("--bounding-set=-{capabilities}"), format!("--inh-caps=-{capabilities}")]);
    ended(setpriv.args([env!("CARGO_BIN_EXE_sluice"), "netmap", "check"]).args(arguments))
}

/// The lab of a process was removed.
fn leaves_no_lab(process: u32) {
    assert!(Lab::list().iter().all(|lab| lab.owner() != Some(process)));
}

#[test]
fn everything_works_with_privileges() {
    if lab().is_none() {
        return;
    }
    let running = Running::unawaited(&mut sluice(&["netmap", "check"]));
    let process = running.pid();
    let ended = running.end();
    leaves_no_lab(process);
    assert_eq!((ended.status, &*ended.err), (Some(0), ""), "{}", ended.out);
    let mut lines = ended.out.lines();
    let title = lines.next().unwrap();
    assert!(title.starts_with("netmap programs on Linux ") && title.contains(" with sluice "));
    let names: Vec<_> = lines.map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(names, [UNPRIVILEGED, OF_CARDS].concat(), "{}", ended.out);
    for found in [
        "libsluice_netmap.so\n",
        "VALE switch      ok       1,000 packets\n",
        " mode, copies: 1,000 sent, 1,000 received\n",
        "live frames      ok       1,000 sent\n",
        "host rings       ok       100 datagrams",
    ] {
        assert!(ended.out.contains(found), "{found}: {}", ended.out);
    }
}

#[test]
fn without_privileges_the_checks_of_cards_name_the_capability() {
    if !have(&["setpriv"]) {
        return;
    }
    let ended = without("all", &["--json"]);
    assert_eq!((ended.status, &*ended.err), (Some(3), ""), "{}", ended.out);
    let report = ended.report();
    assert_eq!((&report["command"], &report["complete"]), (&"netmap check".into(), &true.into()));
    assert_eq!(with_verdict(&report, "ok"), UNPRIVILEGED);
    assert_eq!(with_verdict(&report, "missing"), OF_CARDS);
    for check in &report["checks"].as_array().unwrap()[UNPRIVILEGED.len()..] {
        let detail = check["detail"].as_str().unwrap();
        assert!(detail.starts_with("needs CAP_") && detail.contains("sudo"), "{check}");
    }
}

#[test]
fn a_privilege_of_the_engines_ports_is_named() {
    if lab().is_none() || !have(&["setpriv"]) {
        return;
    }
    let ended = without("net_raw", &["--json"]);
    assert_eq!(ended.status, Some(3), "{}", ended.out);
    let report = ended.report();
    assert_eq!(with_verdict(&report, "missing"), OF_CARDS, "{report}");
    let of_socket = report["checks"][7]["detail"].as_str().unwrap();
    assert!(of_socket.contains("packet:right0 needs CAP_NET_RAW"), "{of_socket}");
}

#[test]
fn a_library_that_does_not_load_fails_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.so");
    std::fs::write(&broken, "no library").unwrap();
    for (library, reason) in [(broken.to_str().unwrap(), "LD_PRELOAD"), ("/no/such.so", "exists")] {
        let mut command = sluice(&["netmap", "check", "--json"]);
        let ended = ended(command.env("SLUICE_NETMAP_LIBRARY", library));
        assert_eq!(ended.status, Some(1), "{}", ended.out);
        let report = ended.report();
        assert_eq!(with_verdict(&report, "fail"), ["preload library"], "{report}");
        let detail = report["checks"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(library) && detail.contains(reason), "{detail}");
    }
}

#[test]
fn a_signal_ends_it_and_removes_the_lab() {
    if lab().is_none() {
        return;
    }
    let mut attempts = 0;
    let ended = loop {
        attempts += 1;
        assert!(attempts < 20, "no signal ends it");
        let running = Running::unawaited(&mut sluice(&["netmap", "check", "--json"]));
        let process = running.pid();
        let has_lab = || Lab::list().iter().any(|lab| lab.owner() == Some(process));
        eventually("it makes a lab", || has_lab() || running.has_ended());
        let ended = running.stop();
        leaves_no_lab(process);
        // It may have been faster than the signal.
        if ended.status != Some(0) {
            break ended;
        }
    };
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.err.contains("stopped"), "{}", ended.err);
    let report = ended.report();
    assert_eq!(report["complete"], false, "{report}");
    assert_eq!(with_verdict(&report, "fail"), [""; 0], "{report}");
}
