//! Where the host sends its own packets: default routes and neighbours, from `/proc`.
//!
//! Sources: net/ipv4/fib_trie.c (`fib_route_seq_show`), net/ipv6/route.c (`rt6_info_route`),
//! net/ipv4/arp.c (`arp_format_neigh_entry`).

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sys::socket::{setsockopt, sockopt};

use super::{Mac, netns};
use crate::error::{Error, Result};

/// The discard service: a packet to it asks nobody for anything.
const DISCARD: u16 = 9;
/// A neighbour that answers does so within this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The flag of an entry whose address is known (`ATF_COM`, linux/if_arp.h).
const COMPLETE: u32 = 0x02;
/// The flag of a route that refuses (`RTF_REJECT`, linux/route.h).
const REFUSES: u32 = 0x0200;

/// Whether the host sends packets for the rest of the world out of this interface.
///
/// # Errors
/// The routes cannot be read.
pub fn carries_default_route(netns: Option<&str>, interface: &str) -> Result<bool> {
    netns::within(netns, || {
        let four = read("/proc/thread-self/net/route")?;
        // A kernel without IPv6 has no such file.
        let six = read("/proc/thread-self/net/ipv6_route").unwrap_or_default();
        Ok(default_of_four(&four, interface) || default_of_six(&six, interface))
    })
}

/// The Ethernet address of a neighbour on an interface, as far as the kernel knows it.
///
/// # Errors
/// The table of neighbours cannot be read.
pub fn known_neighbour(
    netns: Option<&str>,
    interface: &str,
    address: Ipv4Addr,
) -> Result<Option<Mac>> {
    netns::within(netns, || look_up(interface, address))
}

/// The same, and the kernel is made to ask for it if it does not know it: with an empty packet to the
/// neighbour's discard port, which leaves by this interface and reaches its own network only.
///
/// # Errors
/// The table of neighbours cannot be read.
pub fn neighbour(netns: Option<&str>, interface: &str, address: Ipv4Addr) -> Result<Option<Mac>> {
    netns::within(netns, || {
        let end = Instant::now() + PATIENCE;
        let mut asked = false;
        loop {
            if let Some(mac) = look_up(interface, address)? {
                return Ok(Some(mac));
            }
            // Who is not on this network is no neighbour, and is not asked.
            if !std::mem::replace(&mut asked, true) && ask(interface, address).is_err() {
                return Ok(None);
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    })
}

fn look_up(interface: &str, address: Ipv4Addr) -> Result<Option<Mac>> {
    let table = read("/proc/thread-self/net/arp")?;
    Ok(neighbour_in(&table, interface, address))
}

/// Sends a packet that no router takes on.
fn ask(interface: &str, address: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    setsockopt(&socket, sockopt::BindToDevice, &interface.into())?;
    setsockopt(&socket, sockopt::DontRoute, &true)?;
    socket.set_ttl(1)?;
    socket.send_to(&[], (address, DISCARD)).map(drop)
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

/// Columns: address, hardware type, flags, hardware address, mask, interface.
fn neighbour_in(table: &str, interface: &str, address: Ipv4Addr) -> Option<Mac> {
    let address = address.to_string();
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [ip, _, flags, mac, _, name] = words[..] else { return None };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        (ip == address && name == interface && flags & COMPLETE != 0)
            .then(|| mac.parse().ok())
            .flatten()
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

    #[test]
    fn neighbours_are_found_where_they_are_known() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
            198.18.0.2       0x1         0x6         02:00:00:00:00:02     *        left0\n\
            198.18.0.3       0x1         0x0         00:00:00:00:00:00     *        left0\n";
        let of = |interface, last| neighbour_in(table, interface, Ipv4Addr::new(198, 18, 0, last));
        assert_eq!(of("left0", 2), Some(Mac([2, 0, 0, 0, 0, 2])));
        assert_eq!(of("left0", 3), None, "asked for, and not answered");
        assert_eq!(of("right0", 2), None, "of another interface");
    }
}
