//! `sluice replay --step`: a packet for each line of standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::replay::recording;
use crate::screen::{Screen, on_a_terminal};
use crate::support::*;

/// The lines of packets that a child prints on stderr.
fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.filter(|line| !line.starts_with("sluice: "))
}

#[test]
fn each_line_sends_the_packet_that_was_shown() {
    if !have(&["tcpdump"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("recorded.pcap"), folder.path().join("out.pcap"));
    // An hour apart: nobody waits for recorded times.
    recording(&file, 10, 3_600_000_000_000);
    let expected = tool(&["tcpdump", "-nn", "-r"], &file).out;
    let expected: Vec<&str> = expected.lines().collect();
    let to = format!("pcap:{}", out.display());
    for (sentence, sent, by_signal) in
        [("the input ends", 3, false), ("a signal ends", 2, true), ("the file ends", 10, false)]
    {
        let mut replay = sluice(&["replay", file.to_str().unwrap(), &to, "--step", "--json"]);
        let mut child = replay.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut shown = lines(&mut child);
        for line in &expected[..sent] {
            assert_eq!(shown.next().as_deref(), Some(*line), "{sentence}");
            input.write_all(b"\n").unwrap();
        }
        assert_eq!(shown.next().as_deref(), expected.get(sent).copied(), "{sentence}");
        if by_signal {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        } else {
            drop(input);
        }
        assert_eq!(shown.next(), None, "{sentence}");
        let report = Ended::from(crate::child::end(child)).good();
        assert_eq!(report["accepted"], sent, "{sentence}: {report}");
        let all = packets(&file).into_iter().take(sent).map(|(_, bytes)| bytes);
        let came: Vec<_> = packets(&out).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(came, all.collect::<Vec<_>>(), "{sentence}");
    }
}

#[test]
fn packets_count_when_they_are_sent_not_when_they_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (whole, cut, raw) = (path("whole.pcap"), path("cut.pcap"), path("raw.pcap"));
    recording(Path::new(&whole), 6, 1_000_000);
    run(&["edit", &whole, &cut, "-s", "30", "--json"]).good();
    // Two packets between the others that an Ethernet target does not take.
    let second_ns = packets(Path::new(&whole))[1].0;
    timed(Path::new(&raw), (1..3).map(|after| (second_ns + after, vec![0x45; 40])));
    let mut bytes = std::fs::read(&raw).unwrap();
    bytes[20] = 101;
    std::fs::write(&raw, bytes).unwrap();
    let (mixed, out) = (path("mixed.pcapng"), format!("pcap:{}", path("out.pcap")));
    run(&["edit", &cut, &raw, &mixed, "--json"]).good();
    for (sent, other) in [(1, 0), (2, 2), (3, 2), (6, 2)] {
        let mut replay = sluice(&["replay", &mixed, &out, "--step", "--json"]);
        let mut child = replay.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut shown = lines(&mut child);
        for _ in 0..sent {
            shown.next();
            input.write_all(b"\n").unwrap();
        }
        if sent < 6 {
            assert!(shown.next().is_some(), "the next one is shown");
        }
        drop(input);
        let report = Ended::from(crate::child::end(child)).good();
        let ledger = &report["ledger"];
        let not_ethernet = ledger["losses"]["not_ethernet"].as_u64().unwrap_or(0);
        let cut_in_file = ledger["notes"]["cut_in_file"].as_u64();
        assert_eq!((not_ethernet, cut_in_file), (other, Some(sent)), "{sent}: {report}");
    }
}

#[test]
fn enter_on_a_terminal_sends_a_packet() {
    if !have(&["script", "bash", "timeout"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recorded.pcap");
    recording(&file, 3, 1000);
    let sluice = env!("CARGO_BIN_EXE_sluice");
    let mut script = on_a_terminal(&format!("{sluice} replay {} null: --step", file.display()));
    let mut keys = script.stdin.take().unwrap();
    let mut screen = Screen::of(script.stdout.take().unwrap());
    for _ in 0..2 {
        screen.until("UDP, length");
        keys.write_all(b"\n").unwrap();
    }
    screen.until("UDP, length");
    keys.write_all(b"\x04").unwrap();
    screen.until("2 packets");
    script.wait().unwrap();
}

#[test]
fn steps_need_standard_input_and_one_thread() {
    refused(&["replay", "-", "null:", "--step"], "name a file");
    refused(&["replay", "a.pcap", "null:", "--step", "--threads", "2"], "--threads");
    refused(&["replay", "a.pcap", "null:", "--step", "--top-speed"], "--top-speed");
    refused(&["replay", "a.pcap", "null:", "pcap:b", "--step"], "SERVER-PORT");
}
