//! Programs that are killed at any moment leave nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use sluicegate::link::{Lab, Shape};
use sluicegate_netmap::engine::EngineOptions;

use crate::program::Programs;
use crate::scratch::lab_of;
use crate::test_server::TestServer;

/// The time that a test waits for an event that must come.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Turns of a loop before a kill, at most: longer than a program takes to register its port.
const MAX_TURNS: u64 = 20_000_000;

/// The interfaces of the right host, with their XDP programs and queueing disciplines.
fn links(lab: &Lab) -> String {
    let mut command = Command::new("ip");
    command.args(["-o", "link", "show"]).stdout(std::process::Stdio::piped());
    String::from_utf8(crate::child::end(lab.spawn("right", &mut command).unwrap()).stdout).unwrap()
}

#[test]
fn killed_programs_leave_nothing() {
    let cycles = std::env::var("SOAK_CYCLES").map_or(4, |number| number.parse().unwrap());
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let before = links(&lab);
    let mut random: u64 = 0x5eed;
    for shared in [false, true] {
        let Some(mut programs) = Programs::build(&["send", "receive"]) else { return };
        let options = EngineOptions { netns: Some(lab.netns("right")), ..EngineOptions::default() };
        let server = shared.then(|| TestServer::new(options));
        if let Some(server) = &server {
            programs = programs.with_server(&server.socket());
        }
        let right = (&lab, "right");
        for cycle in 0..cycles {
            let words = ["right0*", "10", "/dev/null"];
            if cycle % 2 == 0 {
                programs.start(right, "receive", &words).kill();
                continue;
            }
            let mut child = lab.spawn("right", &mut programs.command("receive", &words)).unwrap();
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (0..(random >> 33) % MAX_TURNS).for_each(|_| std::hint::spin_loop());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let end = Instant::now() + TIMEOUT;
        while links(&lab) != before {
            assert!(Instant::now() < end, "{before}{}", links(&lab));
        }
        let credits = &programs.fifo("credits");
        let receiver = programs.start(right, "receive", &["right0", "1000", credits]);
        let sender = Programs::build(&["send"]).unwrap();
        let sent = sender.run_on((&lab, "left"), "send", &["left0", "1000", "60", credits]);
        assert_eq!(sent, "sent 1000\n");
        assert_eq!(receiver.end(), "received 1000, repeated 0, wrong 0\n");
    }
}
