//! Against DPDK's memif: testpmd sends back what it receives, in each role.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sluicegate::ring::Wait;

use super::{bytes_of, noticed, open, pull, push, until};

/// More would be lost where testpmd's own rings are full.
const IN_FLIGHT: usize = 200;

/// testpmd with one port, which it forwards to itself. It ends with this value.
struct Testpmd(Child);

impl Testpmd {
    /// None where it is not installed, which is said.
    fn start(socket: &Path, options: &str) -> Option<Self> {
        let device =
            format!("net_memif0,id=3,socket={},socket-abstract=no,{options}", socket.display());
        let mut command = Command::new("dpdk-testpmd");
        command.args([
            "--no-pci",
            "--no-shconf",
            "--no-huge",
            "--single-file-segments",
            "-m",
            "256",
        ]);
        command.args(["--lcores", "0@(0-1),1@(0-1)", "--vdev", &device, "--"]);
        command.args(["--forward-mode=io", "--stats-period=1", "--no-mlockall"]);
        command.args(["--no-flush-rx", "--total-num-mbufs=8192"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                println!(
                    "skipped: needs dpdk-testpmd; get it by scripts/setup.sh --bench: {error}"
                );
                None
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dpdk_sends_back_what_it_gets_in_each_role() {
    for (own, theirs) in [
        ("role=server", "role=client"),
        ("role=server&sealed=off", "role=client,zero-copy=yes"),
        ("role=client", "role=server"),
        ("role=client&ring_size=256&buffer=2048", "role=server,rsize=8"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut port = open(&format!("memif:{}?id=3&{own}", path.display()));
        let queue = &mut port.queues[0];
        let Some(testpmd) = Testpmd::start(&path, theirs) else { return };
        noticed(queue, "connected to DPDK");
        let (mut sent, mut received) = (0, 0);
        let length = |number: usize| 60 + number * 37 % 1455;
        until("packets to come back", || {
            while sent < 20_000
                && sent < received + IN_FLIGHT
                && push(queue, &bytes_of(sent, length(sent)))
            {
                sent += 1;
            }
            queue.sync_tx().unwrap();
            queue.wait_rx(Wait::Sleep, Duration::from_millis(5)).unwrap();
            for packet in pull(queue) {
                assert_eq!(packet, bytes_of(received, length(received)), "{own}: {received}");
                received += 1;
            }
            (received == 20_000).then_some(())
        });
        // The other end first: DPDK 22.11 may crash when its client goes.
        drop(testpmd);
        noticed(queue, "disconnected");
        let stats = queue.stats().unwrap();
        assert_eq!((stats.received, stats.sent, stats.sent_or_lost), (20_000, 20_000, 0), "{own}");
    }
}
