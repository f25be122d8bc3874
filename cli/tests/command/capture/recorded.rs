//! The times and rates of packets that are read from files.

use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use serde_json::Value;

use crate::real_captures::real_captures;
use crate::support::*;

/// The number of packets, duration, first time and last time, in s, and packets and bits per second.
fn capinfos(path: &Path) -> Option<Vec<f64>> {
    let mut command = Command::new("capinfos");
    let about = ended(command.args(["-TrmSuaexic"]).arg(path));
    let line = about.out.trim().strip_prefix(path.to_str().unwrap())?.to_owned();
    line.split(',').skip(1).map(|field| field.parse().ok()).collect()
}

/// The numbers in a report, in the order of [`capinfos`].
fn reported(report: &Value) -> Vec<f64> {
    let recorded = &report["recorded"];
    let time = |name: &str| {
        let time: Timestamp = recorded[name].as_str().unwrap().parse().unwrap();
        time.as_nanosecond() as f64 / 1e9
    };
    let [packets, pps, bps] =
        ["packets", "pps", "bps_l2"].map(|name| report[name].as_f64().unwrap());
    let duration = recorded["duration_s"].as_f64().unwrap();
    vec![packets, duration, time("first"), time("last"), bps, pps]
}

#[test]
fn times_and_rates_of_a_file_are_those_of_its_packets() {
    if !have(&["capinfos"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (made, out) = (path("made.pcap"), path("out.pcap"));
    // 500 packets in 1.12 s.
    numbered(Path::new(&made), 0..500, 1_700_000_000_123_456_789, 2_244_489);
    let mut compared = 0;
    let real = real_captures().into_iter().step_by(40);
    for file in [made.clone().into()].into_iter().chain(real) {
        let Some(expected) = capinfos(&file) else { continue };
        let file = file.to_str().unwrap();
        for command in [
            &["count", file][..],
            &["capture", file, "--stats"],
            &["capture", file, "-w", &out, "--format", "pcapng"],
            &["edit", file, &out, "--format", "pcapng"],
        ] {
            let ended = run(&[command, &["--json"]].concat());
            // A damaged file, or one without times.
            if ended.status != Some(0) || expected.contains(&0.0) {
                continue;
            }
            compared += 1;
            let report = ended.report();
            for (place, (ours, theirs)) in reported(&report).iter().zip(&expected).enumerate() {
                // capinfos prints six or nine decimals of a time, and two of a rate. It divides by the difference
                // of two times since 1970, which a double holds to 0.24 us each.
                let rate_limit = 0.0051 + theirs * (1e-5 + 5e-7 / expected[1]);
                let limit = if place < 4 { 2e-6 } else { rate_limit };
                assert!((ours - theirs).abs() <= limit, "{command:?}: {report}\n{expected:?}");
            }
        }
    }
    assert!(compared >= 4, "{compared}");
    let ended = ended(sluice(&["count", &made]).env("TZ", "UTC"));
    assert!(ended.out.contains("446 pps"), "{}", ended.out);
    let times = "recorded 1.12 s from 2023-11-14 22:13:20.123456 to 22:13:21.243456\n";
    assert!(ended.out.contains(times), "{}", ended.out);
    numbered(Path::new(&made), 0..1, 1_700_000_000_123_456_789, 0);
    let one = run(&["count", &made]);
    assert!(one.out.contains("1 packet ") && !one.out.contains("pps"), "no rate: {}", one.out);
}
