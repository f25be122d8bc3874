//! `sluice switch`: a learning Ethernet switch over any ports.

mod control;
mod ports;
mod run;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use sluicegate::control::socket_path;
use sluicegate::error::{Error, Result};
use sluicegate::port::{Directions, PortName};
use sluicegate::units;
use sluicegate_switch::MemberConfig;
use sluicegate_switch::vlan::{self, VlanSet, Vlans};

use crate::args::{Common, Receiving};
use crate::units::duration_in;

const EXAMPLES: &str = "\
Examples:
  sluice switch xdp:eth0 xdp:eth1 xdp:eth2
  sluice switch eth0 up=xdp:eth1 --storm-limit 10K
  sluice switch a=xdp:eth0 b=xdp:eth1 up=xdp:eth2 --access a=10 --access b=20 --trunk up=10,20
  sluice switch xdp:eth0 xdp:eth1 all=pcap:all.pcapng --tx-only all
  sluice switch show
  sluice switch add xdp:eth4
  sluice switch static 02:00:00:00:00:01 eth4

NAME=PORT names a port; the default is its interface or file. With xdp: the host does
not get the packets; with packet: it gets a copy.";

/// Switch Ethernet frames between ports, learning addresses
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
// One thread switches: the flag exists only for an error with the remedy.
#[command(mut_arg("threads", |flag| flag.hide(true)))]
pub struct Args {
    #[command(subcommand)]
    action: Option<control::Request>,

    #[command(flatten)]
    socket: SocketArgs,

    #[command(flatten)]
    run: RunArgs,
}

/// Which switch.
#[derive(clap::Args)]
struct SocketArgs {
    /// Name of the switch, if several run [default: switch]
    #[arg(long, global = true, value_name = "SWITCH")]
    name: Option<String>,

    /// Control socket [default: /run/sluice/switch/NAME/control.sock]
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "name")]
    control: Option<PathBuf>,
}

impl SocketArgs {
    fn path(&self) -> Result<PathBuf> {
        match &self.control {
            Some(path) => Ok(path.clone()),
            None => socket_path("switch", self.name.as_deref().unwrap_or("switch")),
        }
    }
}

/// A switch that is to run.
#[derive(clap::Args)]
struct RunArgs {
    /// Ports: eth0, xdp:eth0, NAME=PORT
    #[arg(value_name = "[NAME=]PORT", required = true)]
    ports: Vec<NamedPort>,

    /// Flood link-local groups too (01:80:c2:00:00:0x: spanning tree, LLDP, LACP), except pause
    /// frames
    #[arg(long)]
    forward_link_local: bool,

    /// Allow an interface with the host's default route; may be repeated
    #[arg(long, value_name = "IFACE")]
    allow_default_route: Vec<String>,

    #[command(flatten)]
    settings: Settings,

    #[command(flatten)]
    table: TableArgs,

    #[command(flatten)]
    receiving: Receiving,

    #[command(flatten)]
    common: Common,
}

/// How large the table is, and how long it remembers.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Table")]
struct TableArgs {
    /// Table entries, rounded to a power of two
    #[arg(long, value_name = "N", default_value = "65536", value_parser = entries)]
    table: usize,

    /// Learned entries of one port, at most [default: an eighth of the table]
    #[arg(long, value_name = "N")]
    max_macs: Option<u32>,

    /// Forget a silent host after this time
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = age)]
    age: Duration,
}

fn entries(text: &str) -> std::result::Result<usize, String> {
    let entries = units::count(text).ok().filter(|n| (64..=1 << 24).contains(n));
    entries.map(|n| n as usize).ok_or_else(|| "use a number from 64 to 16777216".into())
}

fn age(text: &str) -> std::result::Result<Duration, String> {
    let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
    duration_in(range, text, "use a time from 1s to 24h")
}

/// Runs the command.
pub fn switch(args: Args) -> anyhow::Result<()> {
    match args.action {
        Some(request) => control::ask(&request, &args.socket.path()?),
        None => {
            refuse_requests(&args.run.ports)?;
            run::run(args.run, &args.socket)
        }
    }
}

/// Rejects a request after a flag, which the parser takes for a port.
fn refuse_requests(ports: &[NamedPort]) -> Result<()> {
    let requests = control::Request::augment_subcommands(clap::Command::new("switch"));
    let is_request = |named: &&NamedPort| {
        named.port.to_string() == named.name && requests.find_subcommand(&named.name).is_some()
    };
    match ports.iter().find(is_request) {
        None => Ok(()),
        Some(named) => Err(Error::Usage(format!(
            "{0} is a request to a running switch; write it before all flags: `sluice switch {0} --name \
             NAME`; for an interface of that name use packet:{0}",
            named.port
        ))),
    }
}

/// A port and its name in the switch: `NAME=PORT`, or `PORT` with its usual name.
#[derive(Clone, Debug)]
pub struct NamedPort {
    pub name: String,
    pub port: PortName,
}

impl FromStr for NamedPort {
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
                "'{name}' is not a valid port name; use NAME=PORT with at most 64 letters, digits, '-', \
                 '_', '.' and '@'"
            )));
        }
        Ok(Self { name, port })
    }
}

/// The settings of ports, by their names.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Ports")]
pub struct Settings {
    /// Untagged port, and its VLAN; with VLANs in use, other ports are in VLAN 1
    #[arg(long, value_name = "NAME=VLAN", value_parser = pair)]
    pub access: Vec<(String, String)>,

    /// Tagged port, and its VLANs: up=10,20-29
    #[arg(long, value_name = "NAME=VLANS", value_parser = pair)]
    pub trunk: Vec<(String, String)>,

    /// VLAN of untagged packets on a tagged port
    #[arg(long, value_name = "NAME=VLAN", value_parser = pair)]
    pub native: Vec<(String, String)>,

    /// Flooded packets per second of a port: broadcast, multicast, unknown; without a name for every
    /// port
    #[arg(long, value_name = "[NAME=]PPS")]
    pub storm_limit: Vec<String>,

    /// Port that only receives: an input file, a mirror: port
    #[arg(long, value_name = "NAME")]
    pub rx_only: Vec<String>,

    /// Port that only sends: an output file, a live: port
    #[arg(long, value_name = "NAME")]
    pub tx_only: Vec<String>,
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a port's name is missing; use NAME=VALUE".into()),
    }
}

impl Settings {
    /// The settings of the port with this name.
    pub fn of(&self, name: &str) -> PortSettings {
        let value = |pairs: &[(String, String)]| {
            pairs.iter().rev().find(|(of, _)| of == name).map(|(_, value)| value.clone())
        };
        let says = |names: &[String]| names.iter().any(|said| said == name);
        // A limit for the port's name takes precedence over one for all ports.
        let mut limits =
            self.storm_limit.iter().map(|text| text.split_once('=').unwrap_or(("", text)));
        let of_all = limits.clone().rfind(|(of, _)| of.is_empty());
        let storm = limits.find(|(of, _)| *of == name).or(of_all);
        PortSettings {
            access: value(&self.access),
            trunk: value(&self.trunk),
            native: value(&self.native),
            storm_limit: storm.map(|(_, packets)| packets.to_owned()),
            rx_only: says(&self.rx_only),
            tx_only: says(&self.tx_only),
        }
    }

    /// Rejects settings of ports that do not exist.
    ///
    /// # Errors
    /// A name that none of these ports has.
    pub fn refuse_unknown(&self, ports: &[NamedPort]) -> Result<()> {
        let pairs = self.access.iter().chain(&self.trunk).chain(&self.native).map(|(name, _)| name);
        let storms = self.storm_limit.iter().filter_map(|text| Some(text.split_once('=')?.0));
        let said = pairs.chain(&self.rx_only).chain(&self.tx_only).map(String::as_str);
        let there: BTreeSet<&str> = ports.iter().map(|named| named.name.as_str()).collect();
        match said.chain(storms).find(|name| !there.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let names: Vec<&str> = there.into_iter().collect();
                Err(Error::Usage(format!("no port '{name}'; available: {}", names.join(", "))))
            }
        }
    }
}

/// The settings of one port.
#[derive(clap::Args, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct PortSettings {
    /// VLAN of an untagged port
    #[arg(long, value_name = "VLAN", conflicts_with_all = ["trunk", "native"])]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,

    /// VLANs of a tagged port: 10,20-29
    #[arg(long, value_name = "VLANS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<String>,

    /// VLAN of untagged packets on a tagged port
    #[arg(long, value_name = "VLAN")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<String>,

    /// Flooded packets per second of the port
    #[arg(long, value_name = "PPS")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm_limit: Option<String>,

    /// The port only receives
    #[arg(long, conflicts_with = "tx_only")]
    #[serde(default)]
    pub rx_only: bool,

    /// The port only sends
    #[arg(long)]
    #[serde(default)]
    pub tx_only: bool,
}

impl PortSettings {
    /// Returns true if a setting concerns VLANs.
    pub fn concern_vlans(&self) -> bool {
        self.access.is_some() || self.trunk.is_some() || self.native.is_some()
    }

    /// The configuration of the port with this name.
    ///
    /// # Errors
    /// A setting is invalid, or two exclude each other.
    pub fn config(&self, name: &str) -> Result<MemberConfig> {
        let usage = match (self.rx_only, self.tx_only) {
            (true, true) => {
                return Err(Error::Usage(format!(
                    "{name}: --rx-only and --tx-only exclude each other"
                )));
            }
            (true, false) => Some(Directions::Receive),
            (false, true) => Some(Directions::Send),
            (false, false) => None,
        };
        let vlans = match (&self.access, &self.trunk, &self.native) {
            (None, None, None) => Vlans::access(1),
            (Some(access), None, None) => Vlans::access(vlan::number(access)?),
            (Some(_), _, _) => {
                return Err(Error::Usage(format!(
                    "{name}: --access is for an untagged port; use it alone, or --trunk and --native"
                )));
            }
            (None, trunk, native) => Vlans {
                untagged: native.as_deref().map(vlan::number).transpose()?,
                tagged: trunk.as_deref().map_or(Ok(VlanSet::default()), str::parse)?,
            },
        };
        let storm = self.storm_limit.as_deref().map(|text| {
            let packets = units::count(text).ok().and_then(|n| u32::try_from(n).ok());
            packets.ok_or_else(|| {
                Error::Usage(format!(
                    "--storm-limit {text}: use a number of packets per second: 1000, 10K"
                ))
            })
        });
        Ok(MemberConfig { vlans, storm: storm.transpose()?, usage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_no_flag_that_is_refused() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("switch"));
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("--cpus") && !help.contains("--threads"), "{help}");
        command.try_get_matches_from(["switch", "eth0", "--threads", "2"]).unwrap();
    }

    #[test]
    fn a_request_after_a_flag_is_no_port() {
        for (port, is_request) in [
            ("show", true),
            ("flush", true),
            ("up=show", false),
            ("packet:show", false),
            ("eth0", false),
        ] {
            let refused = refuse_requests(&[port.parse().unwrap()]).is_err();
            assert_eq!(refused, is_request, "{port}");
        }
    }

    #[test]
    fn ports_have_their_short_names() {
        for (text, name, port) in [
            ("eth0", "eth0", "eth0"),
            ("xdp:eth0?filter=ether[0]=1", "eth0", "xdp:eth0?filter=ether[0]=1"),
            ("up=xdp:eth0/0-1", "up", "xdp:eth0/0-1"),
            ("pcap:/tmp/a.pcapng", "a", "pcap:/tmp/a.pcapng"),
            ("null:", "null", "null:"),
        ] {
            let named: NamedPort = text.parse().unwrap();
            assert_eq!((&named.name[..], &named.port.to_string()[..]), (name, port), "{text}");
        }
        for text in ["a b=eth0", "=eth0", "up=", "up=nothing:eth0"] {
            assert!(text.parse::<NamedPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_port_has_its_own_settings() {
        let pairs = |text: &[&str]| text.iter().map(|text| pair(text).unwrap()).collect();
        let settings = Settings {
            access: pairs(&["a=10"]),
            trunk: pairs(&["b=10,20"]),
            native: pairs(&["b=1"]),
            storm_limit: vec!["1000".into(), "b=5".into()],
            rx_only: vec!["a".into()],
            tx_only: Vec::new(),
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| settings.of(name).config(name).unwrap());
        assert_eq!(
            (a.vlans, a.storm, a.usage),
            (Vlans::access(10), Some(1000), Some(Directions::Receive))
        );
        let trunk = Vlans { untagged: Some(1), tagged: "10,20".parse().unwrap() };
        assert_eq!((b.vlans, b.storm, b.usage), (trunk, Some(5), None));
        assert_eq!(c.vlans, Vlans::access(1));
        let ports: Vec<NamedPort> = ["a=null:", "b=null:"].map(|text| text.parse().unwrap()).into();
        settings.refuse_unknown(&ports).unwrap();
        let error = settings.refuse_unknown(&ports[..1]).unwrap_err().to_string();
        assert!(error.starts_with("no port 'b'; available: a"), "{error}");
    }
}
