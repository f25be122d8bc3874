//! A switch's ports as the command line names them, and what is said of each.

use std::collections::BTreeSet;
use std::str::FromStr;

use sluicegate::error::{Error, Result};
use sluicegate::port::{PortName, Use};
use sluicegate::units;
use sluicegate_switch::MemberConfig;
use sluicegate_switch::vlan::{self, VlanSet, Vlans};

/// A port and its name in the switch: `NAME=PORT`, or `PORT` and what it is called anyway.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub port: PortName,
}

impl FromStr for Named {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let alias = text.split_once('=').filter(|(name, _)| !name.contains([':', '?', '/']));
        let (name, port) = match alias {
            Some((name, port)) => (name.to_owned(), port.parse()?),
            None => {
                let port: PortName = text.parse()?;
                (port.display_name().to_owned(), port)
            }
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(Error::Usage(format!(
                "'{name}' cannot be a port's name: use letters, digits, '-', '_', '.' and '@', 64 \
                 at most, as in NAME=PORT"
            )));
        }
        Ok(Self { name, port })
    }
}

/// The settings of ports, by their names.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Ports")]
pub struct Settings {
    /// Port for hosts without VLAN tags, and its VLAN; the switch then knows VLANs, and ports of
    /// which nothing is said are in VLAN 1
    #[arg(long, value_name = "NAME=VLAN", value_parser = pair)]
    pub access: Vec<(String, String)>,

    /// Port with VLAN tags, and its VLANs: up=10,20-29
    #[arg(long, value_name = "NAME=VLANS", value_parser = pair)]
    pub trunk: Vec<(String, String)>,

    /// VLAN of the packets without a tag on a port with tags
    #[arg(long, value_name = "NAME=VLAN", value_parser = pair)]
    pub native: Vec<(String, String)>,

    /// Packets a second that a port may have flooded: broadcast, multicast, unknown; of all ports
    /// without a name
    #[arg(long, value_name = "[NAME=]PPS")]
    pub storm_limit: Vec<String>,

    /// Port that packets only come from: a file that is read, a mirror: port
    #[arg(long, value_name = "NAME")]
    pub rx_only: Vec<String>,

    /// Port that packets only go to: a file that is written, a live: port
    #[arg(long, value_name = "NAME")]
    pub tx_only: Vec<String>,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("say which port: NAME=VALUE".into()),
    }
}

impl Settings {
    /// Returns true if a setting concerns VLANs.
    pub fn speak_of_vlans(&self) -> bool {
        !(self.access.is_empty() && self.trunk.is_empty() && self.native.is_empty())
    }

    /// The configuration of a port.
    ///
    /// # Errors
    /// A setting is invalid, or two exclude each other.
    pub fn of(&self, name: &str) -> Result<MemberConfig> {
        let usage = match (says(&self.rx_only, name), says(&self.tx_only, name)) {
            (true, true) => {
                return Err(Error::Usage(format!("{name}: --rx-only and --tx-only: say one")));
            }
            (true, false) => Some(Use::Receive),
            (false, true) => Some(Use::Send),
            (false, false) => None,
        };
        Ok(MemberConfig { vlans: self.vlans(name)?, storm: self.storm(name)?, usage })
    }

    fn vlans(&self, name: &str) -> Result<Vlans> {
        let [access, trunk, native] =
            [&self.access, &self.trunk, &self.native].map(|pairs| value(pairs, name));
        match (access, trunk, native) {
            (None, None, None) => Ok(Vlans::access(1)),
            (Some(access), None, None) => vlan::number(access).map(Vlans::access),
            (Some(_), _, _) => Err(Error::Usage(format!(
                "{name}: --access is for a port without tags: use it alone, or --trunk and --native"
            ))),
            (None, trunk, native) => Ok(Vlans {
                untagged: native.map(vlan::number).transpose()?,
                tagged: trunk.map_or(Ok(VlanSet::default()), str::parse)?,
            }),
        }
    }

    fn storm(&self, name: &str) -> Result<Option<u32>> {
        let mut limit = None;
        for text in &self.storm_limit {
            let (of, packets) =
                text.split_once('=').map_or((None, &text[..]), |(n, p)| (Some(n), p));
            let packets = units::count(packets).ok().and_then(|n| u32::try_from(n).ok());
            let packets = packets.ok_or_else(|| {
                Error::Usage(format!("--storm-limit {text}: use a number of packets: 1000, 10K"))
            })?;
            match of {
                Some(of) if of == name => return Ok(Some(packets)),
                Some(_) => {}
                None => limit = Some(packets),
            }
        }
        Ok(limit)
    }

    /// Refuses what is said of ports that are not there.
    ///
    /// # Errors
    /// A name that none of these ports has.
    pub fn refuse_unknown(&self, ports: &[Named]) -> Result<()> {
        let pairs = self.access.iter().chain(&self.trunk).chain(&self.native).map(|(name, _)| name);
        let storms = self.storm_limit.iter().filter_map(|text| Some(text.split_once('=')?.0));
        let said = pairs.chain(&self.rx_only).chain(&self.tx_only).map(String::as_str);
        let there: BTreeSet<&str> = ports.iter().map(|named| named.name.as_str()).collect();
        match said.chain(storms).find(|name| !there.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let names: Vec<&str> = there.into_iter().collect();
                Err(Error::Usage(format!("no port '{name}': there are {}", names.join(", "))))
            }
        }
    }
}

fn says(names: &[String], name: &str) -> bool {
    names.iter().any(|said| said == name)
}

fn value<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().rev().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_the_names_that_people_expect() {
        for (text, name, port) in [
            ("eth0", "eth0", "eth0"),
            ("xdp:eth0?filter=ether[0]=1", "eth0", "xdp:eth0?filter=ether[0]=1"),
            ("up=xdp:eth0/0-1", "up", "xdp:eth0/0-1"),
            ("pcap:/tmp/a.pcapng", "a", "pcap:/tmp/a.pcapng"),
            ("null:", "null", "null:"),
        ] {
            let named: Named = text.parse().unwrap();
            assert_eq!((&named.name[..], &named.port.to_string()[..]), (name, port), "{text}");
        }
        for text in ["a b=eth0", "=eth0", "up=", "up=nothing:eth0"] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_said_of_a_port_is_its_own() {
        let pairs = |text: &[&str]| text.iter().map(|text| pair(text).unwrap()).collect();
        let settings = Settings {
            access: pairs(&["a=10"]),
            trunk: pairs(&["b=10,20"]),
            native: pairs(&["b=1"]),
            storm_limit: vec!["1000".into(), "b=5".into()],
            rx_only: vec!["a".into()],
            tx_only: Vec::new(),
        };
        let (a, b, c) =
            (settings.of("a").unwrap(), settings.of("b").unwrap(), settings.of("c").unwrap());
        assert_eq!(
            (a.vlans, a.storm, a.usage),
            (Vlans::access(10), Some(1000), Some(Use::Receive))
        );
        let trunk = Vlans { untagged: Some(1), tagged: "10,20".parse().unwrap() };
        assert_eq!((b.vlans, b.storm, b.usage), (trunk, Some(5), None));
        assert_eq!(c.vlans, Vlans::access(1));
        let ports: Vec<Named> = ["a=null:", "b=null:"].map(|text| text.parse().unwrap()).into();
        settings.refuse_unknown(&ports).unwrap();
        let error = settings.refuse_unknown(&ports[..1]).unwrap_err().to_string();
        assert!(error.starts_with("no port 'b': there are a"), "{error}");
    }
}
