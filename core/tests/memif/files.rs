//! A peer that sends more files than the process may have.

use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use super::by_hand::{Wire, init};
use super::hostile::serves_a_good_peer;
use super::{child, noticed, open, socket, until};

/// Says that this is the process of its own.
const ROLE: &str = "SLUICE_TEST_MEMIF_FILES";

#[test]
fn received_files_beyond_the_limit_leave_none_open() {
    if std::env::var_os(ROLE).is_none() {
        // For the limit is a process's.
        let name = "files::received_files_beyond_the_limit_leave_none_open";
        let limited = format!("ulimit -n 64 && exec \"$0\" --exact {name} --nocapture");
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited]).arg(std::env::current_exe().unwrap());
        let child = shell.env(ROLE, "1").stdout(Stdio::null()).spawn().unwrap();
        assert!(child::end(child).status.success());
        return;
    }
    let name = socket("files");
    let mut server = open(&format!("memif:{name}?role=server"));
    let queue = &mut server.queues[0];
    let file = tempfile::tempfile().unwrap();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    for _ in 0..2 {
        let wire = Wire::to(&name);
        wire.send(&init(), &[file.as_raw_fd(); 200]);
        assert_eq!(wire.reason(), "nothing", "it is no fault of the peer's, as far as is known");
    }
    // A socket is shut down first and closed then.
    until("all files closed", || (open_files() == before).then_some(()));
    noticed(queue, "Too many open files");
    serves_a_good_peer(&name, queue);
}
