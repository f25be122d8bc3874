//! Netmap programs in C (netmap/tests/programs), compiled by `cc`, that load the library.

#[path = "../../../../core/tests/child/limit.rs"]
mod child;
mod kills;
#[path = "../../../../core/tests/child/lines.rs"]
mod lines;
mod netmaps_own;
mod netmaps_shared;
mod program;
#[path = "../../../../core/tests/lab/scratch.rs"]
mod scratch;
mod shared;
#[path = "../../../tests/shared/test_server.rs"]
mod test_server;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use program::{Programs, RunningProgram};
use scratch::lab_of;
use sluicegate::error::Error;
use sluicegate::link::{Lab, Shape, netns};

#[test]
fn a_persistent_port_is_created_attached_listed_detached_and_deleted() {
    let Some(programs) = Programs::build(&["valectl"]) else { return };
    let expected = "\
        create v1: ok\n\
        slots 64 128\n\
        create v1: File exists\n\
        attach vale3:v1: ok\n\
        attach vale3:v1: Device or resource busy\n\
        port 0 of switch 0: vale3:v1\n\
        end of list: No such file or directory\n\
        delete v1: Device or resource busy\n\
        detach vale3:v2: No such device or address\n\
        detach vale3:v1: ok\n\
        end of list: No such file or directory\n\
        delete v1: ok\n\
        delete v1: No such device or address\n";
    assert_eq!(programs.run("valectl", &[]), expected);
}

#[test]
fn messages_with_descriptors_of_others_allocate_no_memory() {
    let Some(programs) = Programs::build(&["allocations"]) else { return };
    assert_eq!(programs.run("allocations", &[]), "allocations 0 of 1\n");
}

#[test]
fn a_pipe_passes_whole_slots_in_both_directions() {
    let Some(programs) = Programs::build(&["pipe"]) else { return };
    for parent in ["q1", "vale4:1"] {
        assert_eq!(programs.run("pipe", &[parent, "5000"]), "passed 10000, buffers 10000\n");
    }
}

#[test]
fn every_frame_sent_is_received_with_its_bytes() {
    let Some(programs) = Programs::build(&["send", "receive"]) else { return };
    for (queues, length) in [(1, "60"), (2, "1500")] {
        let Some(lab) = lab_of(Shape::Pair, queues) else { return };
        let credits = &programs.fifo("credits");
        let receiver = programs.start((&lab, "right"), "receive", &["right0", "20000", credits]);
        let sent = programs.run_on((&lab, "left"), "send", &["left0", "20000", length, credits]);
        assert_eq!(sent, "sent 20000\n");
        assert_eq!(receiver.end(), "received 20000, repeated 0, wrong 0\n", "{queues} queues");
    }
}

#[test]
fn a_bridge_between_two_interfaces_passes_every_frame() {
    let Some(programs) = Programs::build(&["send", "receive", "bridge"]) else { return };
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let credits = &programs.fifo("credits");
    let receiver = programs.start((&lab, "right"), "receive", &["right0", "10000", credits]);
    let bridge = programs.start((&lab, "middle"), "bridge", &["middle0", "middle1", "10000"]);
    let sent = programs.run_on((&lab, "left"), "send", &["left0", "10000", "60", credits]);
    assert_eq!(sent, "sent 10000\n");
    assert_eq!(bridge.end(), "passed 10000, buffers exchanged\n");
    assert_eq!(receiver.end(), "received 10000, repeated 0, wrong 0\n");
}

#[test]
fn a_bridge_to_the_host_s_rings_leaves_the_host_connected() {
    let Some(programs) = Programs::build(&["send", "bridge"]) else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    assert!(ping(&lab), "without a program");
    let bridge = programs.start((&lab, "right"), "bridge", &["right0", "right0^", "1"]);
    assert!(ping(&lab), "through the program");
    // It ends by a numbered frame.
    let sent = programs.run_on((&lab, "left"), "send", &["left0", "1", "60", "/dev/null"]);
    assert_eq!(sent, "sent 1\n");
    assert_eq!(bridge.end(), "passed 1, buffers exchanged\n");
}

#[test]
fn the_host_keeps_its_connections_beside_programs_with_a_filter() {
    let Some(programs) = Programs::build(&["send", "receive"]) else { return };
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let listener = netns::run_in(Some(&lab.netns("right")), || {
        TcpListener::bind("198.18.0.2:22").map_err(|error| Error::system("listen", "TCP", error))
    });
    let listener = listener.unwrap();
    let connect = || {
        TcpStream::connect("198.18.0.2:22").map_err(|error| Error::system("connect", "TCP", error))
    };
    let mut client = netns::run_in(Some(&lab.netns("left")), connect).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let credits = &programs.fifo("credits");
    let filtered = |name: &str, words: &[&str]| {
        let mut command = programs.command(name, words);
        command.env("SLUICE_NETMAP_FILTER", "ether proto 0x88b5");
        command
    };
    let mut receiver = filtered("receive", &["right0", "20000", credits]);
    let receiver =
        RunningProgram::when_ready("receive", lab.spawn("right", &mut receiver).unwrap());
    let mut sender = filtered("send", &["left0", "20000", "60", credits]);
    let sender = lab.spawn("left", &mut sender).unwrap();
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 1000];
        while server.read_exact(&mut bytes).is_ok() {
            server.write_all(&bytes).unwrap();
        }
    });
    for number in 0..2000u32 {
        let mut typed = [number as u8; 1000];
        client.write_all(&typed).unwrap();
        typed.fill(0);
        client.read_exact(&mut typed).unwrap();
        assert_eq!(typed, [number as u8; 1000], "answer {number}");
    }
    let sent = child::end(sender);
    assert_eq!(sent.stdout, b"sent 20000\n");
    assert_eq!(receiver.end(), "received 20000, repeated 0, wrong 0\n");
    drop(client);
    echo.join().unwrap();
}

/// Returns true if the left host reaches the right one, three times.
fn ping(lab: &Lab) -> bool {
    let mut command = Command::new("ping");
    command.args(["-c", "3", "-i", "0.2", "-W", "10", "198.18.0.2"]).stdout(Stdio::null());
    child::end(lab.spawn("left", &mut command).unwrap()).status.success()
}
