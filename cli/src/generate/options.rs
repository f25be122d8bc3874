//! The traffic flags of the command line: a file, a profile, or flags, which may change either.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use sluicegate::error::{Error, Result};
use sluicegate::link::{Interface, NextHop, NextHops};
use sluicegate_traffic::plan::{FrameBuilder, Plan, StreamPlan};
use sluicegate_traffic::spec::{Defaults, Flags, PROFILES, Spec, SpecError};

use super::receiving::ReceiveArgs;
use crate::target::{common_hop, destination};

/// The specification's flags.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Packets")]
pub struct SpecArgs {
    /// Specification in TOML; see the manual page sluice-spec(7)
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    spec: Option<PathBuf>,

    /// The different packets of a capture file, as often as in the file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spec", "profile"])]
    from: Option<PathBuf>,

    /// Ready specification: syn-flood, udp-flood, dns-amplification, imix, rfc2544, …
    #[arg(long, value_name = "NAME", long_help = profiles(), value_parser = profile_name)]
    profile: Option<String>,

    /// Frame bytes without check sequence: 60, 60,512,1514 (in turn), 64-1500, imix
    #[arg(long, value_name = "BYTES")]
    size: Option<String>,

    /// Source MAC address [default: the interface's]
    #[arg(long, value_name = "MAC")]
    smac: Option<String>,

    /// Destination MAC address [default: the next hop's]
    #[arg(long, value_name = "MAC")]
    dmac: Option<String>,

    /// Source IP address [default: the interface's, or 198.18.0.1], or a prefix for random addresses:
    /// 198.18.0.0/16
    #[arg(long, value_name = "ADDRESS")]
    src: Option<String>,

    /// Destination IP address [default: 198.18.0.2, or .1 if the interface has .2], or a prefix
    #[arg(long, value_name = "ADDRESS")]
    dst: Option<String>,

    /// Source port, or a range for random ports: 1024-65535
    #[arg(long, value_name = "PORT")]
    sport: Option<String>,

    /// Destination port, or a range
    #[arg(long, value_name = "PORT")]
    dport: Option<String>,

    /// Protocol: udp, tcp or icmp
    #[arg(long, value_name = "NAME")]
    proto: Option<String>,

    /// VLAN tag; may be repeated, from the outside in
    #[arg(long, value_name = "ID")]
    vlan: Vec<String>,

    /// Number of flows; varying fields vary by flow
    #[arg(long, value_name = "N")]
    flows: Option<u32>,

    /// TCP flags: S, SA, syn+ack
    #[arg(long, value_name = "FLAGS")]
    tcp_flags: Option<String>,

    /// Payload: hex:…, text:…, pattern:…, file:… or random
    #[arg(long, value_name = "WHAT")]
    payload: Option<String>,

    /// Stamp every packet with its number, stream and time, for `count --analyze`
    #[arg(long)]
    stamp: bool,

    /// Seed of random fields: the same seed gives the same packets
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SpecArgs {
    /// Adds stamps if a receiver counts the packets.
    pub fn stamp_for(&mut self, receiving: &ReceiveArgs) {
        self.stamp |= receiving.is_given();
    }

    /// Returns true if a flag describes packets.
    pub fn is_given(&self) -> bool {
        let has_base = self.spec.is_some() || self.profile.is_some() || self.from.is_some();
        has_base || self.flags() != Flags::default()
    }

    /// Builds the specification.
    ///
    /// # Errors
    /// The specification is invalid; the error names the line or the flag.
    pub fn spec(&self) -> Result<Spec> {
        let flags = self.flags();
        let base = match (&self.spec, &self.profile, &self.from) {
            (Some(path), ..) => Some(Spec::read(path).map_err(wrong)?),
            (_, Some(name), _) => Some(Spec::profile(name).map_err(wrong)?),
            (.., Some(path)) => Some(Spec::of_capture(path)?),
            _ => None,
        };
        let mut spec = match base {
            Some(mut spec) => {
                spec.apply(&flags).map_err(wrong)?;
                spec
            }
            None => Spec::from_flags(&flags).map_err(wrong)?,
        };
        spec.seed = self.seed.or(spec.seed);
        Ok(spec)
    }

    fn flags(&self) -> Flags {
        let of = self.clone();
        Flags {
            size: of.size,
            smac: of.smac,
            dmac: of.dmac,
            src: of.src,
            dst: of.dst,
            sport: of.sport,
            dport: of.dport,
            proto: of.proto,
            vlan: of.vlan,
            flows: of.flows,
            tcp_flags: of.tcp_flags,
            payload: of.payload,
            stamp: of.stamp,
        }
    }
}

/// A specification that makes no sense is wrong usage.
pub fn wrong(error: SpecError) -> Error {
    Error::Usage(error.to_string())
}

/// Checks that a profile exists.
fn profile_name(text: &str) -> std::result::Result<String, String> {
    Spec::profile(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn profiles() -> String {
    let lines = PROFILES.iter().map(|profile| format!("\n{:18} {}", profile.name, profile.about()));
    format!("Ready specification; other flags change it:{}", lines.collect::<String>())
}

/// Packets of a stream whose destinations are inspected.
const SAMPLED: usize = 16;

/// Makes the plan of packets for an interface, or for a file. Streams that name no destination MAC get
/// that of the next hop. If the plan is only shown, no neighbour is asked: an unknown next hop gets an
/// address that no card has.
///
/// # Errors
/// The specification contradicts itself; a next hop does not resolve.
pub fn plan(
    spec: &Spec,
    interface: Option<&Interface>,
    netns: Option<&str>,
    only_shown: bool,
) -> Result<Plan> {
    let defaults = of_interface(interface);
    let plan = spec.plan(&defaults).map_err(wrong)?;
    let Some(interface) = interface.filter(|it| it.mac.is_some()) else { return Ok(plan) };
    // If another default changes nothing, the specification itself names the destination.
    let other = spec.plan(&Defaults { dmac: [0xff; 6], ..defaults }).map_err(wrong)?;
    if plan == other {
        return Ok(plan);
    }
    let mut hops = NextHops::open(netns, interface)?;
    let mut all = vec![defaults; plan.streams.len()];
    for ((stream, other), own) in plan.streams.iter().zip(&other.streams).zip(&mut all) {
        if stream == other {
            continue;
        }
        let hop = hop_of(&mut hops, stream);
        let mac = match only_shown {
            true => hop.and_then(|(_, hop)| hops.known_mac(hop)).ok().flatten(),
            false => Some(hops.mac(hop?.0)?),
        };
        own.dmac = mac.map_or(defaults.dmac, |mac| mac.0);
    }
    spec.plan_each(&all).map_err(wrong)
}

fn of_interface(interface: Option<&Interface>) -> Defaults {
    let mut defaults = Defaults::default();
    let Some(interface) = interface else { return defaults };
    defaults.smac = interface.mac.map_or(defaults.smac, |mac| mac.0);
    let own: Vec<_> = interface.addresses.iter().map(|address| address.ip).collect();
    let ipv4 = own.iter().find_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
    let mut ipv6: Vec<_> = own
        .iter()
        .filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None })
        .collect();
    ipv6.sort_by_key(Ipv6Addr::is_unicast_link_local);
    defaults.ipv4 = pair(ipv4, defaults.ipv4, &own);
    defaults.ipv6 = pair(ipv6.first().copied(), defaults.ipv6, &own);
    defaults
}

/// Returns the source of an interface with the addresses `own`, and the one of two default addresses that is
/// not its own.
fn pair<A: Copy + PartialEq + Into<IpAddr>>(
    source: Option<A>,
    [first, second]: [A; 2],
    own: &[IpAddr],
) -> [A; 2] {
    let destination = if own.contains(&second.into()) { first } else { second };
    [source.unwrap_or(first), destination]
}

/// The next hop of a stream's packets, and one of their destinations.
fn hop_of(hops: &mut NextHops, stream: &StreamPlan) -> Result<(IpAddr, NextHop)> {
    let plan = Plan::of_stream(stream);
    let mut room = vec![0; plan.longest()];
    let mut frames = FrameBuilder::new(&plan, 0, 1, || 0);
    let sampled = std::iter::repeat_with(|| {
        let bytes = frames.next_into(&mut room)?;
        destination(&room[..bytes])
    });
    let destinations: Vec<_> = sampled.take(SAMPLED).flatten().collect();
    common_hop(hops, &format!("stream {}", stream.name), &destinations)
}
