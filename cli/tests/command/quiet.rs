//! Commands print no more than is needed.

use std::io::Write;

use crate::screen::{Screen, on_a_terminal};
use crate::support::*;

#[test]
fn an_ordinary_run_prints_no_errno_and_no_notes_of_other_traffic() {
    let Some(lab) = lab_with(&["ping"]) else { return };
    let netns = lab.netns("right");
    let ping = |count| {
        let ping = on(&lab, "left", &["ping", "-qc", count, "-i", "0.01", "198.18.0.2"]);
        assert_eq!(ping.status, Some(0), "{}", ping.err);
    };
    for (what, port, filter, wait) in [
        ("sockets", "packet:right0", "icmp[0] == 8", 1),
        ("copies of XDP", "xdp:right0?filter=icmp[0] == 8&action=pass", "", 1),
        ("AF_XDP in copy mode", "xdp:right0?filter=udp port 9&method=af_xdp", "", 0),
    ] {
        let mut arguments = vec!["count", port, "--netns", &netns];
        if !filter.is_empty() {
            arguments.extend(["-f", filter]);
        }
        let running = Running::start(&arguments);
        ping("1");
        let ended = running.stop();
        assert_eq!(ended.status, Some(0), "{what}: {ended:?}");
        let said = ended.out + &ended.err;
        let one = format!("{:>15} packet ", 1);
        assert_eq!(said.contains(&one), wait == 1, "{what}: {said}");
        for noise in ["os error", "card received", "1 packets"] {
            assert!(!said.contains(noise), "{what}: '{noise}' in {said}");
        }
    }
}

#[test]
fn the_fallback_from_zero_copy_is_printed_once_and_details_with_verbose() {
    let Some(lab) = lab_of(sluicegate::link::Shape::Pair, 2) else { return };
    let netns = lab.netns("right");
    for (more, answer) in [(&[][..], false), (&["--verbose"], true)] {
        let arguments = ["count", "xdp:right0?method=af_xdp", "--netns", &netns, "--count", "1"];
        let ended = Running::start(&[&arguments, more].concat()).stop();
        let told: Vec<_> = ended.err.lines().filter(|line| line.contains("zero-copy")).collect();
        let short =
            "sluice: xdp:right0: using copy in place of zero-copy: the driver has no zero-copy";
        match told[..] {
            [line] if answer => {
                assert!(line.starts_with(short) && line.contains("os error 95"), "{line}");
            }
            [line] => assert_eq!(line, short),
            _ => panic!("once: {told:?}"),
        }
    }
}

#[test]
fn a_quiet_capture_says_on_a_terminal_that_it_listens() {
    let Some(lab) = lab_with(&["script", "bash", "timeout"]) else { return };
    let line = format!(
        "{} capture right0 --netns {} -f \"udp port 9\"; echo was $?",
        env!("CARGO_BIN_EXE_sluice"),
        lab.netns("right")
    );
    let mut script = on_a_terminal(&line);
    let keys = script.stdin.take().unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    screen.until("listening on right0 (ring), ");
    screen.until("udp port 9");
    screen.until("; ^C ends it");
    (&keys).write_all(&[3]).unwrap();
    screen.until("was 0");
    script.wait().unwrap();
}
