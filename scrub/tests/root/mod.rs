//! Tests that load XDP programs.

/// Returns true for root; otherwise prints that the test is skipped.
pub fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root; get it by sudo");
    }
    is_root
}
