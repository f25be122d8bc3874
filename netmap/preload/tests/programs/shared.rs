//! Programs that share ports by a server.

use std::time::{Duration, Instant};

use sluicegate::link::Shape;
use sluicegate_netmap::engine::EngineOptions;
use sluicegate_netmap::shared::list;

use crate::program::Programs;
use crate::scratch::lab_of;
use crate::test_server::TestServer;

/// The time that a test waits for an event that must come.
const TIMEOUT: Duration = Duration::from_secs(60);

fn server() -> TestServer {
    TestServer::new(EngineOptions::default())
}

/// Waits until no file has a port.
fn all_are_closed(server: &TestServer) {
    let end = Instant::now() + TIMEOUT;
    loop {
        let text = list(&server.socket()).unwrap().unwrap();
        if text.contains("\"files\":[]") && text.contains("\"ports\":[]") {
            return;
        }
        assert!(Instant::now() < end, "{text}");
    }
}

#[test]
fn pipes_and_switches_join_programs() {
    let Some(programs) = Programs::build(&["send", "receive"]) else { return };
    let server = server();
    let programs = programs.with_server(&server.socket());
    for (from, to) in [("q1{p", "q1}p"), ("vale5:a", "vale5:b"), ("vale6:x{2", "vale6:x}2")] {
        let credits = &programs.fifo("credits");
        let receiver = programs.start_here("receive", &[to, "20000", credits]);
        let sent = programs.run("send", &[from, "20000", "60", credits]);
        assert_eq!(sent, "sent 20000\n");
        assert_eq!(receiver.end(), "received 20000, repeated 0, wrong 0\n", "{from} to {to}");
    }
    all_are_closed(&server);
}

#[test]
fn a_program_sends_its_port_to_another_and_ends() {
    let Some(programs) = Programs::build(&["give", "take", "send"]) else { return };
    let server = server();
    let programs = programs.with_server(&server.socket());
    for port in ["vale5:b", "q1}p"] {
        let path = &programs.path("given");
        let giver = programs.start_here("give", &[port, path]);
        let taker = programs.start_here("take", &[path, "100"]);
        assert_eq!(giver.end(), "");
        let from = if port == "vale5:b" { "vale5:a" } else { "q1{p" };
        assert_eq!(programs.run("send", &[from, "100", "60", "/dev/null"]), "sent 100\n");
        assert_eq!(taker.end(), "received 100\n", "{port}");
        all_are_closed(&server);
    }
}

#[test]
fn two_programs_have_a_card_s_rings_for_each_direction() {
    let Some(programs) = Programs::build(&["send", "receive", "bridge"]) else { return };
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let at = |host| {
        let options = EngineOptions { netns: Some(lab.netns(host)), ..EngineOptions::default() };
        TestServer::new(options)
    };
    let [left, middle, right] = ["left", "middle", "right"].map(at);
    let on = |server: &TestServer, names: &[&str]| {
        Programs::build(names).map(|it| it.with_server(&server.socket()))
    };
    let credits = &programs.fifo("credits");
    let receiver = on(&right, &["receive"]).unwrap();
    let receiver = receiver.start_here("receive", &["right0", "10000", credits]);
    let bridge = on(&middle, &["bridge"]).unwrap();
    let bridge = bridge.start_here("bridge", &["middle0", "middle1", "10000"]);
    let sender = on(&left, &["send"]).unwrap();
    assert_eq!(sender.run("send", &["left0", "10000", "60", credits]), "sent 10000\n");
    assert_eq!(bridge.end(), "passed 10000, buffers exchanged\n");
    assert_eq!(receiver.end(), "received 10000, repeated 0, wrong 0\n");
    [left, middle, right].iter().for_each(all_are_closed);
}

#[test]
fn a_killed_program_s_port_is_closed_and_others_go_on() {
    let Some(programs) = Programs::build(&["send", "receive"]) else { return };
    let server = server();
    let programs = programs.with_server(&server.socket());
    for _ in 0..5 {
        let credits = &programs.fifo("credits");
        let killed = programs.start_here("receive", &["vale5:killed", "20000", "/dev/null"]);
        let receiver = programs.start_here("receive", &["vale5:b", "20000", credits]);
        killed.kill();
        let sent = programs.run("send", &["vale5:a", "20000", "60", credits]);
        assert_eq!(sent, "sent 20000\n");
        assert_eq!(receiver.end(), "received 20000, repeated 0, wrong 0\n");
        all_are_closed(&server);
    }
}

#[test]
fn a_port_survives_threads_that_are_cancelled() {
    let server = server();
    for with_server in [false, true] {
        let Some(mut programs) = Programs::build(&["cancel"]) else { return };
        if with_server {
            programs = programs.with_server(&server.socket());
        }
        assert_eq!(programs.run("cancel", &["vale5:a", "200"]), "cancelled 200\n");
    }
}

#[test]
fn a_server_that_does_not_exist_is_an_error_with_the_remedy() {
    let Some(programs) = Programs::build(&["valectl"]) else { return };
    let programs = programs.with_server(std::path::Path::new("/no/such/socket"));
    let mut command = programs.command("valectl", &[]);
    let ended = crate::child::end(command.stderr(std::process::Stdio::piped()).spawn().unwrap());
    assert!(!ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("no server listens at /no/such/socket"), "{said}");
    assert!(said.contains("sluice netmap serve"), "{said}");
}

#[test]
fn an_option_that_the_server_does_not_read_is_an_error() {
    let Some(programs) = Programs::build(&["valectl"]) else { return };
    let server = server();
    let programs = programs.with_server(&server.socket());
    let mut command = programs.command("valectl", &[]);
    command.env("SLUICE_NETMAP_FILTER", "udp port 9").stderr(std::process::Stdio::piped());
    let ended = crate::child::end(command.spawn().unwrap());
    assert!(!ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("SLUICE_NETMAP_FILTER has no effect"), "{said}");
}
