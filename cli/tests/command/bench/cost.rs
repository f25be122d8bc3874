//! `sluice bench cost` prints every row, with plausible numbers. Needs root.

use serde_json::Value;

use super::{cpus, report, stopped_at};
use crate::support::*;

#[test]
fn every_way_of_receiving_and_forwarding_has_its_cost() {
    if lab().is_none() {
        return;
    }
    let _cpus = cpus();
    let short = ["--rates", "0,10k", "--seconds", "50ms"];
    let short = [&short[..], &["--rounds", "2", "--pings", "20", "--json"]].concat();
    let report = report(&mut sluice(&[&["bench", "cost"][..], &short].concat()));
    assert_eq!(report["complete"], true);
    let mut receivers = Vec::new();
    for row in report["receiving"].as_array().unwrap() {
        if row["failed"].as_str().is_some_and(|reason| reason.contains("not installed")) {
            continue;
        }
        let rates = row["rates"].as_array().unwrap();
        assert_eq!(rates.iter().map(|it| &it["pps"]).collect::<Vec<_>>(), [0, 10_000], "{row}");
        for at in rates {
            assert!((0.0..=1.5).contains(&at["cpu"].as_f64().unwrap()), "{row}");
            let [sent, received] = ["sent", "received"].map(|key| at[key].as_u64().unwrap());
            assert_eq!(sent > 0, at["pps"] != 0, "{row}");
            // Packets of the neighbour protocols come, too.
            assert!(received > 0 || sent == 0, "{row}");
        }
        receivers.push(row["step"].as_str().unwrap());
    }
    assert!(receivers.starts_with(&[
        "TPACKET_V3 ring",
        "mirror",
        "XDP copies",
        "AF_XDP, copy mode"
    ]));
    let forwarding = report["forwarding"].as_array().unwrap();
    assert_eq!(forwarding.len(), 5);
    for row in forwarding {
        let of = |key: &str, of: &str| row[key][of].as_f64();
        assert!(of("median_ms", "min") > Some(0.0), "{row}");
        assert!(of("median_ms", "median") <= of("max_ms", "median"), "{row}");
        assert!(of("max_ms", "median") <= of("max_ms", "max"), "{row}");
        assert_eq!((&row["pings"], &row["failed"]), (&Value::from(40), &Value::Null), "{row}");
    }
}

#[test]
fn a_stopped_run_has_only_what_it_measured() {
    if lab().is_none() {
        return;
    }
    let _cpus = cpus();
    let short = ["cost", "--rates", "0", "--seconds", "50ms", "--pings", "20", "--json"];
    for (turn, receiving, forwarding) in [(3, 2, 0), (8, 6, 1)] {
        let running = Running::unawaited(&mut sluice(&[&["bench"], &short[..]].concat()));
        let report = stopped_at(turn, running);
        let of = |key: &str| report[key].as_array().unwrap();
        assert_eq!(
            (of("receiving").len(), of("forwarding").len()),
            (receiving, forwarding),
            "{report}"
        );
        assert!(of("forwarding").iter().all(|row| row["median_ms"].is_object()), "{report}");
    }
}
