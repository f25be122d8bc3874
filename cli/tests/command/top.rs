//! `sluice top`.

use std::io::{Read, Write};

use nix::sys::signal::Signal;
use serde_json::Value;
use sluicegate::link::Shape;

use crate::lines;
use crate::screen::{Screen, on_a_terminal};
use crate::support::*;

/// The lines that a run has printed.
fn printed(ended: &Ended) -> Vec<Value> {
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn top_counts_sent_packets() {
    let Some(lab) = lab_with(&["ping"]) else { return };
    let netns = lab.netns("right");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("lines");
    let how = ["--json", "--interval", "200ms"];
    let mut top = sluice(&[&["top", "right0", "--netns", &netns], &how[..]].concat());
    let top = Running::unawaited(top.stdout(std::fs::File::create(&out).unwrap()));
    let lines = || -> Vec<Value> {
        let lines = std::fs::read_to_string(&out).unwrap();
        let whole = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let sum = |of: fn(&Value) -> &Value| -> f64 {
        let counts = lines().into_iter().map(|line| {
            let right0 = &line["interfaces"][0];
            assert_eq!(right0["name"], "right0");
            of(right0).as_f64().unwrap() * line["interval_s"].as_f64().unwrap()
        });
        counts.sum()
    };
    // With its first line it has begun to count.
    eventually("it begins", || !lines().is_empty());
    let ping = on(&lab, "left", &["ping", "-q", "-c", "50", "-i", "0.01", "198.18.0.2"]);
    assert_eq!(ping.status, Some(0), "{}", ping.err);
    eventually("all are counted", || sum(|i| &i["rx"]["pps"]) > 49.5);
    assert_eq!(top.stop().status, Some(0));
    let packets = sum(|i| &i["rx"]["pps"]);
    assert!(packets < 50.5, "{packets} packets");
    let bits = sum(|i| &i["rx"]["bps_l2"]);
    // A veth with NAPI counts bytes behind the Ethernet header (drivers/net/veth.c, veth_xdp_rcv).
    assert!((bits / packets - 84.0 * 8.0).abs() < 0.01, "84 bytes each: {bits} / {packets}");
    assert_eq!(sum(|i| &i["rx"]["drops_per_s"]["missed"]), 0.0);
    let first = &lines()[0];
    assert!(!first["cpus"].as_array().unwrap().is_empty());
    assert_eq!(first["netns"], netns);
    let ten = ["top", "right0", "--netns", &netns, "--json", "--interval", "20ms", "--count", "10"];
    assert_eq!(printed(&run(&ten)).len(), 10, "a line an interval");
}

#[test]
fn a_veth_queue_has_a_rate_where_it_counts_all_packets() {
    let Some(lab) = lab_with(&["ping"]) else { return };
    let netns = lab.netns("right");
    let packets = || {
        let how = ["--json", "--interval", "100ms", "--count", "5"];
        let how = [&["top", "right0", "--netns", &netns], &how[..]].concat();
        let before = received(&lab, "right", "right0");
        let _ping = background(&lab, "left", &["ping", "-q", "-i", "0.01", "198.18.0.2"]);
        eventually("pings come", || received(&lab, "right", "right0") > before);
        let lines = printed(&run(&how));
        let rates = lines.iter().map(|line| {
            let queue = &line["interfaces"][0]["queues"][0];
            assert_eq!((&queue["direction"], &queue["queue"]), (&"rx".into(), &0.into()));
            queue.get("pps").and_then(Value::as_f64)
        });
        // A queue without counters in one line has none in any.
        rates.collect::<Option<Vec<f64>>>().map(|rates| rates.iter().sum::<f64>())
    };
    assert_eq!(packets(), None, "some of what comes is not counted");
    let Some(attached) = Attached::to(&netns, &[]) else { return };
    assert!(packets() > Some(0.0), "the program has all of it");
    assert_eq!(attached.detach().status, Some(0));
}

#[test]
fn top_knows_the_speed_of_a_link_and_its_driver_s_counters() {
    let Some(lab) = lab_with(&["ethtool", "ping"]) else { return };
    let speed = on(&lab, "right", &["ethtool", "right0"]).out;
    let speed =
        speed.lines().find_map(|line| line.trim().strip_prefix("Speed: ")?.strip_suffix("Mb/s"));
    let speed = speed.unwrap().parse::<f64>().unwrap() * 1e6;
    let counters = on(&lab, "right", &["ethtool", "-S", "right0"]).out;
    let counters = counters.lines().filter_map(|line| line.trim().split_once(':'));
    let drops: Vec<&str> =
        counters.map(|(name, _)| name).filter(|name| name.contains("drop")).collect();
    assert!(!drops.is_empty());
    let netns = lab.netns("right");
    let before = received(&lab, "right", "right0");
    let _ping = background(&lab, "left", &["ping", "-q", "-i", "0.01", "198.18.0.2"]);
    eventually("pings come", || received(&lab, "right", "right0") > before);
    let how = ["top", "right0", "--netns", &netns, "--json", "--interval", "200ms", "--count", "1"];
    let line = printed(&run(&how)).remove(0);
    let right0 = &line["interfaces"][0];
    assert_eq!(right0["speed_bps"], speed, "{line}");
    let of = |name: &str| right0["rx"][name].as_f64().unwrap();
    let share = (of("bps_l2") + of("pps") * 24.0 * 8.0) / speed;
    assert!(share > 0.0 && (of("utilisation") / share - 1.0).abs() < 1e-9, "{line}");
    for drop in drops {
        // Those of an XDP program are on purpose.
        let expected = if drop.contains("xdp_drop") { None } else { Some(0.0) };
        assert_eq!(right0["driver_drops_per_s"][drop].as_f64(), expected, "{drop} in {line}");
    }
}

#[test]
fn the_full_screen_shows_drops_by_cause_on_a_key() {
    if !have(&["script", "bash", "timeout", "stty"]) {
        return;
    }
    let sluice = env!("CARGO_BIN_EXE_sluice");
    let shell = format!("stty cols 130 rows 24; {sluice} top lo --interval 50ms; echo was $?");
    let mut script = on_a_terminal(&shell);
    let mut keys = script.stdin.take().unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    screen.until("received");
    screen.until("queues of lo");
    keys.write_all(b"d").unwrap();
    screen.until("drops of lo by cause");
    screen.until("softnet");
    keys.write_all(b"\r").unwrap();
    screen.until("queues of lo");
    keys.write_all(b"q").unwrap();
    screen.until("was 0");
    script.wait().unwrap();
}

#[test]
fn top_prints_aligned_lines_without_a_terminal() {
    let top = run(&["top", "lo", "--interval", "50ms", "--count", "2"]);
    assert_eq!(top.status, Some(0), "{}", top.err);
    let text = top.out;
    let heads: Vec<&str> = text.lines().filter(|line| line.contains("rx pkt/s")).collect();
    let rows: Vec<&str> = text.lines().filter(|line| line.contains(" lo ")).collect();
    assert_eq!((heads.len(), rows.len()), (2, 2), "{text}");
    assert_eq!(heads[0].len(), rows[0].len(), "{text}");
}

#[test]
fn top_ends_when_all_interfaces_that_it_was_to_show_are_removed() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let netns = lab.netns("middle");
    let how = ["--json", "--interval", "20ms", "--netns", &netns];
    let top = ["top", "middle0", "middle1"];
    let mut top = Running::unawaited(&mut sluice(&[&top, &how[..]].concat()));
    top.has_written(1);
    let remove = |name| {
        assert_eq!(on(&lab, "middle", &["ip", "link", "del", name]).status, Some(0));
    };
    remove("middle0");
    // The other is still shown.
    top.has_written(10_000);
    remove("middle1");
    let ended = top.end();
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.err.contains("middle0, middle1 no longer exist: "), "{}", ended.err);
}

#[test]
fn top_explains_wrong_usage() {
    for (arguments, said) in [
        (&["no-such"][..], "no interface 'no-such'; available: lo"),
        (&["--netns", "no-such"], "no network namespace 'no-such'"),
        (&["--interval", "5x"], "250ms"),
        (&["--interval", "1us"], "the minimum is 10ms"),
        (&["--plain", "--json"], "cannot be used with"),
    ] {
        refused(&[&["top"], arguments].concat(), said);
    }
}

#[test]
fn a_signal_ends_top_cleanly() {
    let mut top = Running::unawaited(&mut sluice(&["top", "lo", "--json", "--interval", "20ms"]));
    // Its first line shows that it waits for signals.
    let (first, mut rest) = lines::until(top.pid(), top.child().stdout.take().unwrap(), "");
    assert!(first.starts_with('{'), "{first}");
    top.signal(Signal::SIGTERM);
    assert_eq!(top.end().status, Some(0));
    let mut more = String::new();
    rest.read_to_string(&mut more).unwrap();
    assert!(more.is_empty() || more.ends_with('\n'), "no half line: {more}");
}

#[test]
fn control_z_stops_top_and_other_control_letters_do_nothing() {
    if !have(&["script", "bash", "timeout", "stty"]) {
        return;
    }
    let shell = format!(
        "stty cols 80 rows 24; {} top lo; echo was $?; fg >/dev/null; echo then $?",
        env!("CARGO_BIN_EXE_sluice")
    );
    let mut script = on_a_terminal(&shell);
    let mut keys = script.stdin.take().unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    screen.until("q quit");
    // ^P, ^Q and ^D first: if one were a key it would pause or end the command.
    keys.write_all(b"\x10\x11\x04\x1a").unwrap();
    let seen = screen.until("\x1b[?1049l");
    assert!(!seen.contains("PAUSED") && seen.ends_with("\x1b[?25h"), "the cursor is back: {seen}");
    screen.until("was 148");
    screen.until("\x1b[?1049h");
    screen.until("q quit");
    keys.write_all(b"q").unwrap();
    screen.until("then 0");
    script.wait().unwrap();
}

#[test]
fn top_names_a_terminal_that_it_cannot_use() {
    if !have(&["script", "bash", "timeout", "setsid"]) {
        return;
    }
    // Without a controlling terminal, and without one on standard input.
    let top = format!("setsid -w {} top lo </dev/null; echo was $?", env!("CARGO_BIN_EXE_sluice"));
    let mut script = on_a_terminal(&top);
    let mut screen = Screen::of(script.stdout.take().unwrap());
    screen.until("sluice: show the full screen (--plain needs no terminal): ");
    screen.until("was 1");
    script.wait().unwrap();
}
