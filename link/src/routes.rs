//! Whether an interface carries a default route, from `/proc`.
//!
//! Sources: net/ipv4/fib_trie.c (`fib_route_seq_show`), net/ipv6/route.c (`rt6_info_route`).

use std::fs;

use super::netns;
use sluicegate_base::error::{Error, Result};

/// The flag of a route that refuses (`RTF_REJECT`, linux/route.h).
const REFUSES: u32 = 0x0200;

/// Whether the host sends packets for the rest of the world out of this interface.
///
/// # Errors
/// The routes cannot be read.
pub fn carries_default_route(netns: Option<&str>, interface: &str) -> Result<bool> {
    netns::run_in(netns, || {
        let four = read("/proc/thread-self/net/route")?;
        // A kernel without IPv6 has no such file.
        let six = read("/proc/thread-self/net/ipv6_route").unwrap_or_default();
        Ok(default_of_four(&four, interface) || default_of_six(&six, interface))
    })
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::system("read", path, error))
}

/// Columns: interface, destination, gateway, flags, references, use, metric, mask.
fn default_of_four(table: &str, interface: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [name, "00000000", _, _, _, _, _, "00000000", ..] if name == interface)
    })
}

/// Columns: destination, its length, source, its length, gateway, metric, references, use, flags,
/// interface. The kernel has a route of its own on `lo` that refuses everything.
fn default_of_six(table: &str, interface: &str) -> bool {
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "00", _, _, _, _, _, _, flags, name] = words[..] else { return false };
        let flags = u32::from_str_radix(flags, 16).unwrap_or(0);
        name == interface && flags & REFUSES == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_found() {
        let four = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let zeros = "0".repeat(32);
        let six = format!(
            "{zeros} 00 {zeros} 00 fe800000000000000000000000000001 00000400 00000001 00000000 \
             00000003     eth2\n{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 \
             lo\n20010db8{} 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 eth1\n",
            "0".repeat(24)
        );
        let found = |name| (default_of_four(four, name), default_of_six(&six, name));
        assert_eq!(found("eth0"), (true, false));
        assert_eq!(found("eth1"), (false, false));
        assert_eq!(found("eth2"), (false, true));
        assert_eq!(found("lo"), (false, false), "refuses everything");
    }
}
