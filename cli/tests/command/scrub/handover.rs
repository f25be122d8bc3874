//! Hand-over of challenged connections to the kernel.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use serde_json::Value;
use sluicegate::link::{Lab, netns};

use super::Scrubber;
use crate::support::*;

const ALWAYS: &str = "profile.default.tcp = 'always'\n";

fn listen(lab: &Lab) -> (TcpListener, SocketAddr) {
    let bind = || Ok(TcpListener::bind("198.18.0.2:0").unwrap());
    let listener = netns::run_in(Some(&lab.netns("right")), bind).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn connect(lab: &Lab, server: SocketAddr) -> TcpStream {
    netns::run_in(Some(&lab.netns("left")), || Ok(TcpStream::connect(server).unwrap())).unwrap()
}

#[test]
fn a_resident_scrubber_challenges_clients_without_hand_over() {
    let Some(lab) = lab() else { return };
    let (_listener, server) = listen(&lab);
    let scrubber = Scrubber::start(&lab, ALWAYS, &["--resident", "--mode", "skb"]);
    let handover = || scrubber.json(&["status"])["handover"].clone();
    if handover()["obstacle"].as_str().is_some_and(|it| it.contains("Linux 6.0")) {
        return println!("skipped: needs Linux 6.0");
    }
    let _first = connect(&lab, server);
    assert_eq!((&handover()["connections"], &handover()["obstacle"]), (&1.into(), &Value::Null));
    let folder = Rc::clone(&scrubber.folder);
    scrubber.kill();
    // Nothing completes connections any more: a new client is challenged in the other way.
    for command in ["ip addr del 198.18.0.1/24 dev left0", "ip addr add 198.18.0.9/24 dev left0"] {
        let words: Vec<_> = command.split(' ').collect();
        assert_eq!(on(&lab, "left", &words).status, Some(0), "{command}");
    }
    let _second = connect(&lab, server);
    let more = ["--resident", "--mode", "skb"];
    let scrubber = Scrubber::start_in(folder, &lab, ALWAYS, &more);
    assert_eq!(scrubber.count("tcp", "challenge-answered"), 1);
    scrubber.ask(&["stop"]);
}

#[test]
fn the_command_reports_what_prevents_hand_over() {
    let Some(lab) = lab() else { return };
    let setting = ["sysctl", "-qw", "net.ipv4.tcp_syncookies=0"];
    assert_eq!(on(&lab, "right", &setting).status, Some(0));
    let reason = "no hand-over to the kernel";
    let ended = Scrubber::start(&lab, ALWAYS, &[]).stop();
    assert!(ended.err.contains(reason), "{}", ended.err);
    let off = "profile.default.tcp = { challenge = 'always', handover = 'off' }\n";
    for (policy, more) in [(off, &[][..]), ("", &[]), (ALWAYS, &["--monitor"])] {
        let ended = Scrubber::start(&lab, policy, more).stop();
        assert!(!ended.err.contains(reason), "{policy}: {}", ended.err);
    }
}
