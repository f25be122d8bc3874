//! Outputs that block, or have no reader.

use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::rc::Rc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use sluicegate::link::Lab;

use super::resident::{ALL, received, send_to_host};
use super::{SETS, Scrubber};
use crate::support::*;

/// Returns a pipe that is full: each write blocks.
fn full() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let bytes = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).unwrap();
    writer.write_all(&vec![b'\n'; bytes as usize]).unwrap();
    (reader, writer)
}

/// Starts a scrubber that drops all, with outputs to a pipe.
fn start<'a>(lab: &'a Lab, more: &[&str], output: PipeWriter) -> Scrubber<'a> {
    let folder = Rc::new(tempfile::tempdir().unwrap());
    Scrubber::start_with(folder, lab, ALL, more, |command| {
        command.stdout(output.try_clone().unwrap()).stderr(output);
    })
}

/// Waits until packets reach the right host, which all were dropped before.
fn passes_again(lab: &Lab) {
    let before = received(lab);
    eventually("the host gets packets", || {
        send_to_host(lab);
        received(lab) > before
    });
}

#[test]
fn an_unconfirmed_policy_ends_while_its_outputs_block() {
    let Some(lab) = lab() else { return };
    let (_reader, output) = full();
    let scrubber = start(&lab, &["--confirm", "2s", "--json", "--interval", "10ms"], output);
    scrubber.send(10, "198.18.0.1", "set", "bad");
    passes_again(&lab);
    // The result waits for a reader. A signal ends that; a second one, if the scrubber had not ended before the first.
    assert!(!scrubber.running.has_ended());
    eventually("it ends", || {
        scrubber.running.signal(Signal::SIGINT);
        scrubber.running.has_ended()
    });
    let ended = scrubber.running.end();
    assert!(
        ended.signal == Some(Signal::SIGINT as i32) || ended.status == Some(130),
        "{}",
        ended.err
    );
}

#[test]
fn a_second_signal_ends_a_command_whose_outputs_block() {
    let Some(lab) = lab() else { return };
    let (_reader, output) = full();
    let scrubber = start(&lab, &[], output);
    scrubber.running.signal(Signal::SIGINT);
    passes_again(&lab);
    eventually("it ends", || {
        scrubber.running.signal(Signal::SIGINT);
        scrubber.running.has_ended()
    });
    assert_eq!(scrubber.running.end().status, Some(130));
}

#[test]
fn a_reader_of_lines_ends_the_command_and_one_of_the_result_does_not() {
    let Some(lab) = lab() else { return };
    let start = |more: &[&str]| {
        let (reader, output) = pipe().unwrap();
        let folder = Rc::new(tempfile::tempdir().unwrap());
        let scrubber = Scrubber::start_with(folder, &lab, SETS, more, |command| {
            command.stdout(output);
        });
        drop(reader);
        scrubber
    };
    let scrubber = start(&["--json"]);
    scrubber.send(10, "203.0.113.9", "set", "bad");
    scrubber.send(10, "203.0.113.9", "set", "bad");
    assert_eq!(scrubber.stop().status, Some(0));
    let scrubber = start(&["--json", "--interval", "1h"]);
    eventually("it ends", || scrubber.running.has_ended());
    assert_eq!(scrubber.running.end().status, Some(0));
}
