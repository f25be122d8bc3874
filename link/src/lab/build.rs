//! Building a lab and taking it down.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{self, Host, HostInterface, Route};
use super::{LabConfig, MissingPart};
use crate::{Address, Ethtool, Interface, Netlink, NextHop, NextHops, VethEnd, netns};
use sluicegate_base::error::{Error, ErrorKind, Result};

/// Settings that stop a host from sending packets on its own. They are written before its interfaces are
/// created, which inherit them.
const QUIET: &[(&str, &str)] = &[
    ("accept_ra", "0"),
    ("router_solicitations", "0"),
    ("autoconf", "0"),
    ("accept_dad", "0"),
    ("dad_transmits", "0"),
    // No link-local address, because each one adds a multicast group to report.
    ("addr_gen_mode", "1"),
    // An address joins a multicast group. The host reports this (MLD, RFC 3810), and again within this time
    // in ms; it should be short.
    ("mldv1_unsolicited_report_interval", "1"),
    ("mldv2_unsolicited_report_interval", "1"),
];

/// The number of reports when a host joins a multicast group.
const REPORTS: &str = "/proc/sys/net/ipv6/mld_qrv";
const REPORTS_DEFAULT: u64 = 2;
/// The longest wait for these reports. Later reports only make the lab less quiet.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

const IPV6: &str = "/proc/sys/net/ipv6/conf";
/// The forwarding settings. A new namespace inherits the setting of IPv4 from the machine's own.
const FORWARDING: [&str; 2] =
    ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];

/// Returns what a lab lacks: hosts, interfaces, their links, addresses and routes. Without the privilege to enter
/// a host, only hosts; an error if all hosts exist.
pub(super) fn missing(config: &LabConfig) -> Result<Vec<MissingPart>> {
    let mut missing = Vec::new();
    let mut checked = Ok(());
    for host in config.shape.hosts() {
        let netns = plan::netns(&config.name, host.name);
        let found = match netns::exists(&netns) {
            true => Netlink::open(Some(&netns)).and_then(|mut netlink| netlink.interfaces()),
            false => Ok(Vec::new()),
        };
        match found {
            Ok(found) if !found.is_empty() => {
                let lacks = |wanted| lacks(&netns, &found, wanted);
                missing.extend(host.interfaces.iter().filter_map(lacks));
            }
            Err(error) if error.kind() == ErrorKind::Privilege => checked = Err(error),
            // Every namespace has a loopback interface.
            Ok(_) | Err(_) => missing.push(MissingPart::Netns(netns)),
        }
    }
    // One missing part is enough to know that the lab is broken.
    if missing.is_empty() { checked.map(|()| missing) } else { Ok(missing) }
}

/// Returns the missing part of an interface.
fn lacks(netns: &str, found: &[Interface], wanted: &HostInterface) -> Option<MissingPart> {
    let name = wanted.name;
    match found.iter().find(|it| it.name == name) {
        None => Some(MissingPart::Interface(name)),
        Some(it) if !it.running => Some(MissingPart::Link(name)),
        Some(it) if is_equipped(netns, it, wanted).unwrap_or(false) => None,
        Some(_) => Some(MissingPart::AddressesOrRoutes(name)),
    }
}

/// True if an interface has the addresses and routes of a lab's.
fn is_equipped(netns: &str, interface: &Interface, wanted: &HostInterface) -> Result<bool> {
    let (addresses, routes) = configuration(netns, wanted)?;
    let mut hops = NextHops::open(Some(netns), interface)?;
    Ok(addresses.iter().all(|address| interface.addresses.contains(address))
        && routes.into_iter().all(|(prefix, gateway)| {
            matches!(hops.to(far_address(prefix)), Ok(NextHop::Neighbour(ip)) if ip == gateway)
        }))
}

/// Returns the addresses and routes of an interface, as far as its host supports them.
fn configuration(netns: &str, interface: &HostInterface) -> Result<(Vec<Address>, Vec<Route>)> {
    let ipv6 = Path::new(IPV6).exists();
    let mut addresses = interface.addresses();
    addresses.retain(|address| ipv6 || address.ip.is_ipv4());
    // Two forwarding hosts would send such a packet to each other until its TTL ends.
    let forwards = netns::run_in(Some(netns), || Ok(forwards()))?;
    let mut routes = if forwards { Vec::new() } else { interface.routes() };
    routes.retain(|(_, gateway)| ipv6 || gateway.is_ipv4());
    Ok((addresses, routes))
}

/// Returns the first address of a prefix's second half, which no host of a lab has.
fn far_address(prefix: Address) -> IpAddr {
    match prefix.ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | 1 << (31 - prefix.prefix)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | 1 << (127 - prefix.prefix)).into(),
    }
}

/// Rejects namespaces of these names that no lab has recorded.
pub(super) fn refuse_foreign(config: &LabConfig) -> Result<()> {
    for host in config.shape.hosts() {
        let name = plan::netns(&config.name, host.name);
        if netns::exists(&name) {
            return Err(Error::Usage(format!(
                "network namespace '{name}' exists already and belongs to no lab: take another \
                 --name, or remove it with `ip netns delete {name}`"
            )));
        }
    }
    Ok(())
}

/// Creates hosts, then links, then configures the interfaces.
pub(super) fn build(config: &LabConfig) -> Result<()> {
    for host in config.shape.hosts() {
        let netns = plan::netns(&config.name, host.name);
        netns::create(&netns)?;
        netns::run_in(Some(&netns), || {
            quieten(host);
            Netlink::open(None)?.set_up("lo", true)
        })?;
    }
    for [left, right] in config.shape.links() {
        let [left_netns, right_netns] =
            [left, right].map(|(host, _)| plan::netns(&config.name, host));
        let end = |interface: &HostInterface, netns| VethEnd {
            name: interface.name,
            netns: Some(netns),
            mac: Some(interface.mac),
        };
        // Created in the left host, so that the pair never appears in the machine's own namespace.
        Netlink::open(Some(&left_netns))?.add_veth(
            &VethEnd { netns: None, ..end(left.1, &left_netns) },
            &end(right.1, &right_netns),
            config.queues,
        )?;
    }
    // An end accepts redirected frames only if the other end had NAPI when the first was set up, so NAPI is
    // enabled on all ends first. And no card fills in the checksums that a host leaves to a veth: packets
    // that do not stay skbs would have wrong ones.
    for host in config.shape.hosts() {
        let mut ethtool = Ethtool::open(Some(&plan::netns(&config.name, host.name)))?;
        for interface in host.interfaces {
            ethtool.set_gro(interface.name, true)?;
            ethtool.set_transmit_checksums(interface.name, false)?;
        }
    }
    for host in config.shape.hosts() {
        equip(config, host)?;
    }
    settle(config)
}

/// Switches a host's interfaces on, with addresses, neighbours and routes.
fn equip(config: &LabConfig, host: &Host) -> Result<()> {
    let netns = plan::netns(&config.name, host.name);
    let mut netlink = Netlink::open(Some(&netns))?;
    let ipv6 = Path::new(IPV6).exists();
    let others = config.shape.hosts().iter().filter(|other| other.name != host.name);
    let neighbours: Vec<_> = others.flat_map(|other| other.interfaces).collect();
    for interface in host.interfaces {
        netlink.set_up(interface.name, true)?;
        let (addresses, routes) = configuration(&netns, interface)?;
        for address in &addresses {
            netlink.add_address(interface.name, *address)?;
        }
        if addresses.is_empty() {
            continue;
        }
        for (prefix, gateway) in routes {
            netlink.add_route(interface.name, prefix, gateway)?;
        }
        for neighbour in &neighbours {
            for address in neighbour.addresses() {
                if ipv6 || address.ip.is_ipv4() {
                    netlink.add_neighbour(interface.name, address.ip, neighbour.mac)?;
                }
            }
        }
    }
    Ok(())
}

/// Waits until IPv6's own reports have been sent and received. After that no counter changes until a program
/// sends.
fn settle(config: &LabConfig) -> Result<()> {
    if !Path::new(IPV6).exists() {
        return Ok(());
    }
    let reports = fs::read_to_string(REPORTS).ok();
    let reports = reports.and_then(|n| n.trim().parse().ok()).unwrap_or(REPORTS_DEFAULT);
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    for [left, right] in config.shape.links() {
        let mut ends = Vec::new();
        for (host, interface) in [left, right] {
            let netlink = Netlink::open(Some(&plan::netns(&config.name, host)))?;
            let said = if interface.addresses().is_empty() { 0 } else { reports };
            ends.push((netlink, interface.name, said));
        }
        loop {
            let mut counts = Vec::new();
            for (netlink, name, said) in &mut ends {
                counts.push((netlink.interface(name)?.stats, *said));
            }
            let said = counts.iter().all(|(stats, said)| stats.tx_packets >= *said);
            let [(left, _), (right, _)] = counts[..] else { break };
            let arrived =
                left.tx_packets == right.rx_packets && right.tx_packets == left.rx_packets;
            if (said && arrived) || Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Makes a host quiet. If a setting cannot be written (no IPv6, a read-only `/proc/sys`), the host works but
/// is less quiet.
fn quieten(host: &Host) {
    for switch in FORWARDING {
        let _ = fs::write(switch, "0");
    }
    for (setting, value) in QUIET {
        let _ = fs::write(format!("{IPV6}/default/{setting}"), value);
    }
    let addressed = host.interfaces.iter().any(|i| !i.addresses().is_empty());
    if !addressed {
        let _ = fs::write(format!("{IPV6}/default/disable_ipv6"), "1");
    }
}

/// True if the host of this thread's namespace forwards packets.
fn forwards() -> bool {
    FORWARDING.iter().any(|path| fs::read_to_string(path).is_ok_and(|text| text.trim() != "0"))
}

/// Removes links, then hosts. Missing ones are no error.
pub(super) fn tear_down(config: &LabConfig) -> Result<()> {
    let mut result = Ok(());
    for host in config.shape.hosts() {
        let netns = plan::netns(&config.name, host.name);
        if !netns::exists(&netns) {
            continue;
        }
        // A process still running there keeps the namespace, but not the links.
        if let Ok(mut netlink) = Netlink::open(Some(&netns)) {
            for interface in host.interfaces {
                let _ = netlink.delete(interface.name);
            }
        }
        // A failure for one host does not stop the removal of the others.
        result = result.and(netns::delete(&netns));
    }
    result
}
