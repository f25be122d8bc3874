//! The end of a program.

use std::time::{Duration, Instant};

use sluicegate::link::{self, Shape};

use crate::port::{Port, frame};
use crate::program::{again, has_library};
use crate::scratch::lab_of;

const PACKETS: u64 = 300;

#[test]
fn packets_that_a_program_has_synced_leave_although_it_exits() {
    if has_library() {
        let port = Port::register("left0");
        for _ in 0..PACKETS {
            assert!(port.tx().put(&frame(1)));
        }
        port.txsync().unwrap();
        std::process::exit(0);
    }
    let Some(lab) = lab_of(Shape::Pair, 1) else { return };
    let received =
        || link::interface(Some(&lab.netns("right")), "right0").unwrap().stats.rx_packets;
    let test = "exits::packets_that_a_program_has_synced_leave_although_it_exits";
    // Live frames leave some time after the sync.
    for backend in ["xdp", "live"] {
        let before = received();
        let mut program = again(test);
        program.env("SLUICE_NETMAP_BACKEND", backend);
        let ended = lab.spawn("left", &mut program).unwrap().wait_with_output().unwrap();
        assert!(ended.status.success(), "{backend}: {}", String::from_utf8_lossy(&ended.stderr));
        let start = Instant::now();
        while received() < before + PACKETS {
            let missing = before + PACKETS - received();
            assert!(start.elapsed() < Duration::from_secs(60), "{backend}: {missing} are missing");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
