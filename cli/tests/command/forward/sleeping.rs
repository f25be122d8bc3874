//! The kernel wakes a sleeping forwarder: its sleep delays no packet.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sluicegate::link::netns;

use super::*;

/// Datagrams that left sends; right answers each before the next.
const QUESTIONS: usize = 40;

/// Left asks right by UDP, which answers. Each packet comes to a forwarder that sleeps.
fn ask_and_answer(lab: &Lab, forwarder: &Running) {
    let bound = |host: &str, address: &'static str| {
        let bind = || Ok(UdpSocket::bind(address).unwrap());
        let socket = netns::run_in(Some(&lab.netns(host)), bind).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    };
    let (asks, answers) = (bound("left", "198.18.0.1:0"), bound("right", "198.18.0.2:9"));
    let sleeps = || eventually("it sleeps", || forwarder.has_sleeping("forward-"));
    let mut heard = [0; 8];
    for number in 0..QUESTIONS {
        sleeps();
        asks.send_to(&number.to_le_bytes(), "198.18.0.2:9").unwrap();
        let (_, from) = answers.recv_from(&mut heard).unwrap();
        sleeps();
        answers.send_to(&heard, from).unwrap();
        asks.recv(&mut heard).unwrap();
        assert_eq!(heard, number.to_le_bytes());
    }
}

/// Sleeps that a packet ended, in strace's files, one for each thread. The others lasted until their
/// limit.
fn woken(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let text: String = files.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    text.lines().filter(|line| line.contains(") = 1 (") || line.contains(") = 2 (")).count()
}

#[test]
fn the_kernel_wakes_a_forwarder_for_every_packet() {
    if !have(&["strace"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    without_gro(&lab, "middle", &["middle0", "middle1"]);
    for ports in [
        ["xdp:middle0", "xdp:middle1"],
        ["xdp:middle0?send=live", "xdp:middle1?send=live"],
        ["packet:middle0", "packet:middle1"],
    ] {
        let running = forward(&lab, &[&ports[..], &["--wait", "sleep"]].concat());
        let folder = tempfile::tempdir().unwrap();
        let mut strace = Command::new("strace");
        strace.args(["-ff", "-e", "trace=ppoll", "-p", &running.pid().to_string(), "-o"]);
        strace.arg(folder.path().join("trace")).stderr(Stdio::piped());
        let mut strace = Running::unawaited(&mut strace);
        // strace reports all threads at once.
        let said = strace.says();
        assert!(said.contains("attached"), "{ports:?}: {said}");
        ask_and_answer(&lab, &running);
        running.stop().good();
        strace.end();
        let (packets, woken) = (2 * QUESTIONS, woken(folder.path()));
        // A sleep may reach its limit just before a packet; without wake-ups all do.
        assert!(woken * 10 >= packets * 9, "{ports:?}: {woken} of {packets} packets ended a sleep");
    }
}
