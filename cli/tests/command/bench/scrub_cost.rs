//! `sluice bench scrub-cost` prints every row. Needs root.

use super::{cpus, report};
use crate::support::*;

#[test]
fn every_stage_has_its_cost() {
    if lab().is_none() {
        return;
    }
    let _cpus = cpus();
    let short = ["bench", "scrub-cost", "--rounds", "1", "--packets", "10k", "--networks", "10k"];
    let report = report(sluice(&short).arg("--json"));
    assert_eq!((&report["complete"], &report["packets"]), (&true.into(), &10_000.into()));
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["row"].as_str().unwrap()).collect();
    for name in [
        "sets, 10,000 + 2,000 networks, IPv6",
        "rules, 100",
        "rules, 1000",
        "rules, 10000",
        "limit by source",
        "SYN cookies",
    ] {
        assert!(names.iter().any(|it| it.starts_with(name)), "{name} is not in {names:?}");
    }
    for row in rows {
        assert!(row["beyond_base_ns"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["beyond_empty_ns"]["median"].is_number(), "{row}");
    }
}
