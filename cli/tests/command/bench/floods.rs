//! `sluice bench floods` measures what a server delivers, and its floods are valid. Needs root.

use super::{cpus, report};
use crate::support::*;

#[test]
fn a_server_is_measured_under_a_flood_and_behind_filters() {
    if lab().is_none() || !have(&["ip"]) {
        return;
    }
    let _cpus = cpus();
    let short =
        ["bench", "floods", "--floods", "dns", "--seconds", "100ms", "--no-iperf", "--json"];
    let report = report(&mut sluice(&short));
    assert_eq!(report["complete"], true);
    assert!(report["quiet"]["http_rps"].as_f64().unwrap() > 0.0, "{report}");
    let rows = report["rows"].as_array().unwrap();
    let rates: Vec<_> = rows.iter().map(|row| row["rate_pps"].as_u64()).collect();
    assert_eq!(rates, [Some(1_000_000), None]);
    for row in rows {
        assert!(row["flood"] == "dns" && row["failed"].is_null(), "{row}");
        for filter in ["unfiltered", "bare", "scrub"] {
            assert!(row[filter]["offered_mpps"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row[filter]["http_rps"].is_number(), "{row}");
            let ns = row[filter]["filter_ns"].as_f64();
            assert_eq!(ns.is_some_and(|ns| ns > 0.0), filter != "unfiltered", "{row}");
        }
        assert!(row["ratio"].is_object(), "{row}");
    }
}

#[test]
fn each_flood_is_a_specification() {
    let folder = tempfile::tempdir().unwrap();
    for name in sluicegate_bench::floods::names() {
        let shown = run(&["bench", "floods", "--show", name]);
        assert_eq!(shown.status, Some(0), "{name}: {}", shown.err);
        let file = folder.path().join(name);
        std::fs::write(&file, shown.out).unwrap();
        let spec = file.display().to_string();
        let packets = run(&["generate", "--spec", &spec, "--show", "1"]);
        assert_eq!(packets.status, Some(0), "{name}: {}", packets.err);
        assert!(packets.out.contains("> 198.18.0.2"), "{name}: {}", packets.out);
    }
}

#[test]
fn an_unknown_flood_is_rejected_with_the_known_ones() {
    let ended = run(&["bench", "floods", "--floods", "tsunami"]);
    assert_eq!(ended.status, Some(2), "{}", ended.err);
    assert!(ended.err.contains("no flood 'tsunami'; available: syn-random"), "{}", ended.err);
}
