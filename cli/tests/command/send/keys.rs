//! Keys that change a rate, on a terminal.

use std::io::Write;

use crate::screen::{Screen, on_a_terminal};
use crate::support::*;

#[test]
fn keys_change_the_rate_and_the_terminal_is_given_back() {
    if !have(&["script", "bash", "timeout", "stty"]) {
        return;
    }
    let settings = "echo settings $(stty -g) end";
    let shell = format!(
        "stty cols 100 rows 24; {settings}; {} generate null: --rate 5pps; echo was $?; {settings}; \
         fg >/dev/null; echo then $?; {settings}",
        env!("CARGO_BIN_EXE_sluice")
    );
    let mut script = on_a_terminal(&shell);
    let mut keys = script.stdin.take().unwrap();
    let mut press = |pressed: &[u8]| keys.write_all(pressed).unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    screen.until("settings ");
    let settings = screen.until(" end");
    screen.until("q end");
    press(b"+");
    screen.until("asked 5.5 pps");
    press(b"p");
    screen.until("paused");
    press(b"\x1a");
    screen.until("was 148");
    screen.until("settings ");
    assert_eq!(screen.until(" end"), settings, "stopped");
    press(b"*");
    screen.until("asked 11 pps");
    press(b"q");
    screen.until("asked for 11 pps at last, changed 3 times");
    screen.until("then 0");
    screen.until("settings ");
    assert_eq!(screen.until(" end"), settings, "ended");
    script.wait().unwrap();
}
