//! Who sends, where that is not what is measured: `sluice generate`, and whom packets are for.

use crate::process::Program;
use crate::testbed::{Testbed, list};

/// Nobody's Ethernet address, as on a mirror port: the host drops these packets early.
pub const NOBODY: &str = "02:00:00:00:00:99";
/// The IPv4 address that packets are sent to.
pub const ADDRESS: &str = "198.18.0.2";

/// Sends UDP packets of so many bytes to an Ethernet address, into a port.
pub fn generate(port: &str, bytes: u32, to: &str) -> Program {
    Program::sluice(["generate", port, "--json", "--size", &bytes.to_string(), "--dmac", to]).and([
        "--src",
        "198.18.0.1",
        "--dst",
        ADDRESS,
        "--dport",
        "9",
    ])
}

/// Sends them from the left end by a thread on each of these CPUs, each packet from another source port.
pub fn from_left(testbed: &Testbed, cpus: &[usize], bytes: u32, to: &str) -> Program {
    let threads = cpus.len().to_string();
    generate(&testbed.left.interface, bytes, to).and([
        "--sport",
        "1..65535",
        "--threads",
        &threads,
        "--cpus",
        &list(cpus),
    ])
}
