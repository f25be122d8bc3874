//! `sluice scrub top`.

use std::io::Write;

use super::{SETS, Scrubber};
use crate::screen::{Screen, on_a_terminal};
use crate::support::*;

#[test]
fn top_shows_what_drops() {
    let Some(lab) = lab_with(&["script", "bash", "timeout", "stty"]) else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    scrubber.send(1234, "203.0.113.9", "set", "bad");
    let top = scrubber.words(&["top"]).join(" ");
    let sluice = env!("CARGO_BIN_EXE_sluice");
    let top = format!("stty rows 24 cols 100; {sluice} {top}; echo was $?");
    let mut script = on_a_terminal(&top);
    let mut keys = script.stdin.take().unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    for text in ["sluice scrub top", "dropped or answered by", "1,234", "bad", "q quit"] {
        screen.until(text);
    }
    keys.write_all(b"q").unwrap();
    screen.until("was 0");
    script.wait().unwrap();
    scrubber.refused(&["top"], "needs a terminal");
}
