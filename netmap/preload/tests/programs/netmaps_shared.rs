//! netmap's own programs as processes that share ports by a server: the folder NETMAP_BIN has them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use sluicegate::link::{Lab, Shape};
use sluicegate_netmap::engine::EngineOptions;

use crate::child;
use crate::netmaps_own::{PACKETS, PeerProgram, all_cases_pass, assert_says, command, folder};
use crate::scratch::lab_of;
use crate::test_server::TestServer;

/// netmap's programs, and the server that they use.
struct NetmapPrograms {
    folder: PathBuf,
    server: TestServer,
}

impl NetmapPrograms {
    fn new(options: EngineOptions) -> Option<Self> {
        Some(Self { folder: folder()?, server: TestServer::new(options) })
    }

    /// A server in a host of a lab.
    fn of((lab, host): (&Lab, &str)) -> Option<Self> {
        Self::new(EngineOptions { netns: Some(lab.netns(host)), ..EngineOptions::default() })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        command(&self.folder, self.server.socket(), program, arguments)
    }

    fn start(&self, program: &str, arguments: &[&str]) -> PeerProgram {
        PeerProgram::spawn(self.command(program, arguments), |it| it.spawn().unwrap())
    }

    /// Runs a program to its end. Returns its success and its output.
    fn run(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let mut command = self.command(program, arguments);
        let output = child::end(command.stdout(Stdio::piped()).spawn().unwrap());
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }
}

#[test]
fn ctrl_api_test_passes_with_a_server_in_all_cases_but_the_exceptions() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let Some(programs) = NetmapPrograms::of((&lab, "left")) else { return };
    all_cases_pass(&programs.folder, &lab, programs.server.socket().as_os_str());
}

#[test]
fn pkt_gen_sends_to_pkt_gen_over_a_switch_and_a_pipe() {
    let Some(programs) = NetmapPrograms::new(EngineOptions::default()) else { return };
    for (from, to, count) in
        [("vale1:a", "vale1:b", &["-n", PACKETS][..]), ("netmap:q1{p", "netmap:q1}p", &[])]
    {
        let receive = [&["-i", to, "-f", "rx", "-w", "1"], count].concat();
        let receiver = programs.start("pkt-gen", &receive).until("Ready...");
        let send = ["-i", from, "-f", "tx", "-w", "1", "-n", PACKETS];
        assert_says(&programs.start("pkt-gen", &send).end(), "Sent 1000 packets 60000 bytes");
        if count.is_empty() {
            // The sender ends when the receiver has returned all slots, so the receiver must not end first.
            receiver.interrupt();
        }
        assert_says(&receiver.end(), "Received 1000 packets 60000 bytes");
    }
}

#[test]
fn vale_ctl_changes_a_switch_for_the_next_program() {
    let Some(programs) = NetmapPrograms::new(EngineOptions::default()) else { return };
    for (arguments, succeeds, output) in [
        (&["-n", "v1"][..], true, ""),
        (&["-a", "vale3:v1"], true, ""),
        (&["-a", "vale3:v1"], false, ""),
        // Its list ends with an error: no further port.
        (&[], false, "vale3:v1 bridge_idx 0 port_idx 0\n"),
        (&["-r", "v1"], false, ""),
        (&["-d", "vale3:v1"], true, ""),
        (&[], false, ""),
        (&["-r", "v1"], true, ""),
        (&["-r", "v1"], false, ""),
    ] {
        let ended = programs.run("vale-ctl", arguments);
        assert_eq!(ended, (succeeds, output.into()), "{arguments:?}");
    }
}

#[test]
fn lb_distributes_packets_to_two_programs() {
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let Some(programs) = NetmapPrograms::of((&lab, "right")) else { return };
    let balance = ["-i", "netmap:right0", "-p", "2", "-w", "1"];
    let balancer = programs.start("lb", &balance).until("successfully opened pipe #2");
    let readers = ["netmap:right0}0", "netmap:right0}1"].map(|pipe| {
        let receive = ["-i", pipe, "-f", "rx", "-w", "1", "-n", "500"];
        programs.start("pkt-gen", &receive).until("Ready...")
    });
    // lb's hash of the addresses gives each of these a pipe of its own.
    for source in ["10.0.0.1:1234", "10.0.0.2:1234"] {
        let send = ["-i", "netmap:left0", "-f", "tx", "-w", "1", "-n", "500", "-s", source];
        let sent = PeerProgram::start(&programs.folder, (&lab, "left"), "pkt-gen", &send).end();
        assert_says(&sent, "Sent 500 packets");
    }
    for reader in readers {
        assert_says(&reader.end(), "Received 500 packets 30000 bytes");
    }
    balancer.interrupt();
    assert_says(&balancer.end(), "1000 packets forwarded.  0 packets dropped. Total 1000");
}

#[test]
fn functional_uses_ports_that_fd_server_has_open() {
    let Some(programs) = NetmapPrograms::new(EngineOptions::default()) else { return };
    let server = programs.start("fd_server", &["-f"]);
    for arguments in [
        &["-i", "vale1:a"][..],
        &["-i", "vale1:b"],
        &["-i", "vale1:a", "-t", "200:x:10", "-q"],
        // The switch has put them into the ring, which fd_server keeps.
        &["-i", "vale1:b", "-r", "200:x:10", "-q"],
        // It stops fd_server.
        &["-c"],
    ] {
        let (succeeds, output) = programs.run("functional", arguments);
        assert!(succeeds, "{arguments:?}: {output}");
    }
    server.end();
    // It leaves its socket.
    std::fs::remove_file("/tmp/netmap-fdserver").unwrap();
}
