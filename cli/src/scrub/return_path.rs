//! The return path of `sluice scrub run`: its flags, and its next hop, which a thread keeps current.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use sluicegate::error::{Error, Result};
use sluicegate::link::{self, Interface, Mac, Netlink, NextHops};
use sluicegate_scrub::program::{Gre, MIN_MSS, NextHop, NextHopWriter, ReturnPath, fitting_mss};

use crate::notice::say;

/// Interval between two look-ups of the next hop.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where packets to protected networks leave.
#[derive(clap::Args)]
pub struct ReturnArgs {
    /// Send packets that pass to protected networks out of this interface, instead of to this host: inside --gre, or to
    /// --next-hop
    #[arg(long = "return", value_name = "IFACE", conflicts_with = "bridge")]
    interface: Option<String>,

    /// Return packets inside GRE between these IPv4 addresses; KEY is a number
    #[arg(long, value_name = "SRC,DST[,KEY]", requires = "interface", value_parser = gre)]
    gre: Option<Gre>,

    /// Return packets with this VLAN tag
    #[arg(long, value_name = "ID", requires = "interface",
        value_parser = RangedU64ValueParser::<u16>::new().range(1..=4094))]
    return_vlan: Option<u16>,

    /// Address or MAC of the router that gets returned packets [default: by the route to the GRE destination]
    #[arg(long, value_name = "ADDRESS|MAC", requires = "interface", value_parser = gateway)]
    next_hop: Option<Gateway>,

    /// Highest MSS in returned SYNs over IPv4; over IPv6 it is 20 less [default: fits into the interface's MTU]
    #[arg(long, value_name = "BYTES", requires = "interface",
        value_parser = RangedU64ValueParser::<u16>::new().range(MIN_MSS.into()..=65535))]
    mss: Option<u16>,
}

impl ReturnArgs {
    /// Returns true if packets leave by a return path.
    pub fn is_set(&self) -> bool {
        self.interface.is_some()
    }
}

/// The router that gets returned packets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gateway {
    Mac(Mac),
    Address(IpAddr),
}

fn gateway(text: &str) -> Result<Gateway, String> {
    let address = || text.parse().map(Gateway::Address);
    let gateway = text.parse().map(Gateway::Mac).or_else(|_| address());
    gateway.map_err(|_| "use an IP address or a MAC: 198.18.30.1, 02:00:00:00:00:01".into())
}

fn gre(text: &str) -> Result<Gre, String> {
    let usage = || "use two IPv4 addresses, and a key if needed: 192.0.2.1,203.0.113.9,7";
    let mut words = text.split(',');
    let mut address = || words.next().and_then(|it| it.parse::<Ipv4Addr>().ok()).ok_or_else(usage);
    let (src, dst) = (address()?, address()?);
    let key = words.next().map(|it| it.parse().map_err(|_| usage())).transpose()?;
    if words.next().is_some() {
        return Err(usage().into());
    }
    for it in [src, dst] {
        if it.is_unspecified() || it.is_multicast() || it.is_loopback() || it.is_broadcast() {
            return Err(format!("{it} is no address of a tunnel's end"));
        }
    }
    if src == dst {
        return Err("the tunnel's ends have the same address".into());
    }
    Ok(Gre { src, dst, key })
}

impl ReturnArgs {
    /// Finds the return path. None without --return.
    pub fn find(
        &self,
        scrubbed: &[String],
        netns: Option<&str>,
    ) -> Result<Option<(ReturnPath, Resolver)>> {
        let Some(name) = &self.interface else { return Ok(None) };
        if self.gre.is_none() && self.return_vlan.is_none() && scrubbed.contains(name) {
            return Err(Error::Usage(format!(
                "--return {name}: the packets come from there; add --gre or --return-vlan, or name another interface"
            )));
        }
        let gateway = match (self.next_hop, self.gre) {
            (Some(gateway), _) => gateway,
            (None, Some(gre)) => Gateway::Address(gre.dst.into()),
            (None, None) => {
                return Err(Error::Usage(format!(
                    "--return {name}: add --gre SRC,DST or --next-hop ADDRESS"
                )));
            }
        };
        let router = match gateway {
            Gateway::Mac(mac) => Router::Mac(mac),
            Gateway::Address(address) => {
                Router::Address(Box::new(self.next_hops(netns, name, address)?), address)
            }
        };
        let mut netlink = Netlink::open(netns)?;
        let interface = netlink.interface(name)?;
        let mut resolver =
            Resolver { netlink, name: name.clone(), router, gre: self.gre, mss: self.mss };
        let mac = match &mut resolver.router {
            Router::Mac(mac) => *mac,
            Router::Address(hops, address) => hops.mac(*address)?,
        };
        let path = ReturnPath {
            next_hop: resolver.next_hop(mac, &interface)?,
            interface,
            vlan: self.return_vlan,
            gre: self.gre,
        };
        Ok(Some((path, resolver)))
    }

    /// Opens the look-up of a next hop. In a VLAN, the kernel's interface of that VLAN asks for it.
    fn next_hops(&self, netns: Option<&str>, name: &str, address: IpAddr) -> Result<NextHops> {
        let Some(vlan) = self.return_vlan else {
            return NextHops::open(netns, &link::interface(netns, name)?);
        };
        let tagged = format!("{name}.{vlan}");
        let interface = link::interface(netns, &tagged).map_err(|_| {
            Error::Usage(format!(
                "cannot resolve the MAC of {address} in VLAN {vlan}: no interface {tagged}; set --next-hop MAC, or ip \
                 link add link {name} name {tagged} type vlan id {vlan}"
            ))
        })?;
        NextHops::open(netns, &interface)
    }
}

/// Looks up the next hop of a return path.
#[derive(Debug)]
pub struct Resolver {
    netlink: Netlink,
    name: String,
    router: Router,
    gre: Option<Gre>,
    mss: Option<u16>,
}

#[derive(Debug)]
enum Router {
    Mac(Mac),
    Address(Box<NextHops>, IpAddr),
}

impl Resolver {
    /// Returns a next hop on the interface.
    fn next_hop(&self, dst_mac: Mac, interface: &Interface) -> Result<NextHop> {
        let src_mac = interface.mac.ok_or_else(|| {
            Error::Usage(format!("--return {}: it is not an Ethernet interface", self.name))
        })?;
        let mss = self.mss.unwrap_or_else(|| fitting_mss(interface.mtu, self.gre));
        Ok(NextHop { dst_mac, src_mac, mtu: interface.mtu, mss: Some(mss) })
    }

    /// Looks up the next hop again. None if the router does not answer.
    fn refresh(&mut self) -> Result<Option<NextHop>> {
        let mac = match &mut self.router {
            Router::Mac(mac) => Some(*mac),
            Router::Address(hops, address) => {
                let hop = hops.to(*address)?;
                hops.confirmed_mac(hop)?
            }
        };
        let interface = self.netlink.interface(&self.name)?;
        mac.map(|mac| self.next_hop(mac, &interface)).transpose()
    }

    /// Keeps a scrubber's next hop current, until the result is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch(self, first: NextHop, writer: NextHopWriter) -> Result<NextHopWatch> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("next-hop".into());
        let thread = thread.spawn(move || self.run(first, &writer, &stopped));
        thread.map_err(|error| Error::system("start", "the thread of the next hop", error))?;
        Ok(NextHopWatch { _stop: stop })
    }

    fn run(mut self, mut present: NextHop, writer: &NextHopWriter, stopped: &Receiver<()>) {
        let mut is_known = true;
        while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let found = self.refresh();
            if let Ok(Some(next_hop)) = found
                && next_hop != present
            {
                writer.set(&next_hop);
                present = next_hop;
            }
            let was_known = std::mem::replace(&mut is_known, matches!(found, Ok(Some(_))));
            if !was_known || is_known {
                continue;
            }
            let reason = match found {
                Err(error) => error.to_string(),
                Ok(_) => "it does not answer".into(),
            };
            say(format_args!(
                "next hop on {}: {reason}; packets still go to {}",
                self.name, present.dst_mac
            ));
        }
    }
}

/// A thread that keeps the next hop current. It ends when this is dropped.
#[derive(Debug)]
pub struct NextHopWatch {
    _stop: Sender<()>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_has_two_addresses_and_maybe_a_key() {
        let found = gre("192.0.2.1,203.0.113.9,7").unwrap();
        assert_eq!((found.src.to_string().as_str(), found.key), ("192.0.2.1", Some(7)));
        assert_eq!(gre("192.0.2.1,203.0.113.9").unwrap().key, None);
        for invalid in [
            "",
            "192.0.2.1",
            "192.0.2.1,203.0.113.9,7,8",
            "192.0.2.1,203.0.113.9,4294967296",
            "192.0.2.1,192.0.2.1",
            "2001:db8::1,2001:db8::2",
            "0.0.0.0,192.0.2.1",
        ] {
            assert!(gre(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_next_hop_is_an_address_or_a_mac() {
        assert_eq!(gateway("02:00:00:00:00:01"), Ok(Gateway::Mac(Mac([2, 0, 0, 0, 0, 1]))));
        assert_eq!(gateway("198.18.0.1"), Ok(Gateway::Address([198, 18, 0, 1].into())));
        assert!(matches!(gateway("fe80::1"), Ok(Gateway::Address(_))));
        assert!(gateway("router").is_err());
    }
}
