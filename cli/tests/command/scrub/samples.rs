//! Sampled packets of a running scrubber.

use serde_json::json;

use super::{SETS, Scrubber, text};
use crate::support::*;

/// A reader of samples, once the scrubber knows it.
fn reader(scrubber: &Scrubber<'_>, what: &[&str]) -> Running {
    let samples = || {
        let rates = &scrubber.json(&["status"])["sampling"];
        *rates != json!({"dropped": 10_000, "passed": 10_000})
    };
    eventually("the reader before it has left", || !samples());
    let command = [&["samples"], what].concat();
    let running = Running::unawaited(&mut sluice(&scrubber.words(&command)));
    eventually("it samples", samples);
    running
}

#[test]
fn all_samples_are_written_with_their_causes() {
    let Some(lab) = lab_with(&["tshark"]) else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    let file = scrubber.folder.path().join("samples.pcapng");
    let rates = ["--dropped", "1", "--passed", "1", "--count", "30", "-w", text(&file)];
    let running = reader(&scrubber, &rates);
    scrubber.send(20, "203.0.113.9", "set", "bad");
    scrubber.send(10, "192.0.2.9", "set", "good");
    let ended = running.end();
    assert_eq!((ended.status, ended.err.as_str()), (Some(0), "sluice: 30 packets\n"));
    let fields = ["-T", "fields", "-e", "ip.src", "-e", "frame.comment"];
    let mut lines = tshark(&file, &fields);
    lines.sort();
    assert_eq!(lines[..10], vec!["192.0.2.9\tpass set good"; 10], "{lines:?}");
    assert_eq!(lines[10..], vec!["203.0.113.9\tdrop set bad"; 20], "{lines:?}");
    // The times are those of the day.
    let now = sluicegate::ring::now_ns();
    assert!(packets(&file).iter().all(|it| now - it.0 < 60_000_000_000));
    eventually("its rate ends", || scrubber.json(&["status"])["sampling"]["dropped"] == 10_000);
}

#[test]
fn samples_are_printed_with_their_causes() {
    let Some(lab) = lab() else { return };
    let rule = "[[rule]]\nname = 'udp'\nmatch = 'udp'\naction = 'continue'\nsample = 1\n";
    let scrubber = Scrubber::start(&lab, &format!("{rule}{SETS}"), &[]);
    let running = reader(&scrubber, &["--dropped", "1", "--count", "5"]);
    scrubber.send(5, "203.0.113.9", "set", "bad");
    let ended = running.end();
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    assert_eq!(ended.out.lines().count(), 5);
    for line in ended.out.lines() {
        assert!(line.contains(" IP 203.0.113.9.") && line.ends_with("  drop set bad"), "{line}");
    }
    // A signal ends it, and the scrubber's end too.
    let running = reader(&scrubber, &["--passed", "7"]);
    assert_eq!(running.stop().status, Some(0));
    let running = reader(&scrubber, &["--dropped", "7"]);
    scrubber.refused(&["samples", "--rule", "tcp"], "no rule 'tcp'");
    assert_eq!(scrubber.stop().status, Some(0));
    assert_eq!(running.end().status, Some(1));
}
