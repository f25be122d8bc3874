//! The cost of the scrubber's stages for a packet, by BPF_PROG_RUN: without an interface, a sender or other programs.

use std::rc::Rc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Serialize;
use sluicegate::error::{Error, Result};
use sluicegate_scrub::policy::{
    Challenge, Limit, LimitKey, Policy, Profile, Rate, Set, SetAction, TcpProtection,
};
use sluicegate_scrub::program::Program;
use sluicegate_scrub::program::cost::{Changes, DrawnPacket};
use sluicegate_scrub::tables::Tables;
use sluicegate_scrub::testing::{FrameSpec, Random, drawn_packet, rule_list};

use crate::measurement::Spread;
use crate::observer::{BenchObserver, Failure, Progress};

/// Networks of IPv4 in the sets, by default.
pub const NETWORKS: u32 = 1_000_000;
/// Networks of IPv4 for each one of IPv6.
const NETWORKS_PER_V6: u32 = 5;
/// Rules of each list.
const RULES: [usize; 3] = [100, 1_000, 10_000];
/// Rules beside sets and limits.
const RULES_OF_ALL: usize = 1_000;
/// Sources and others that limits tell apart.
const LIMIT_KEYS: u32 = 1 << 20;
/// Different packets for a list of rules.
const DRAWN: usize = 8192;
/// SYNs of different sources, more than caches have room for.
const SYNS: usize = 1 << 17;
/// TCP among the protocols of IP.
const TCP: u8 = 6;
/// The seed of the tables, which makes lines unpredictable to attackers.
const SEED: u64 = 77;

/// The results of a run.
#[derive(Debug, Default, Serialize)]
pub struct ScrubCosts {
    /// Rounds; every row has a turn in each.
    pub rounds: u32,
    /// Packets of a turn.
    pub packets: u32,
    /// The policies.
    pub rows: Vec<ScrubCost>,
    /// False if it was stopped before the end.
    pub complete: bool,
}

/// The cost of a policy.
#[derive(Debug, Serialize)]
pub struct ScrubCost {
    /// The policy, and the packets.
    pub row: String,
    /// Nanoseconds beyond a program that only changes the packet.
    pub beyond_base_ns: Spread,
    /// Nanoseconds beyond the same stages with an empty policy, on the same packets.
    pub beyond_empty_ns: Spread,
}

/// A policy and its packets.
struct Row {
    name: String,
    tables: Rc<Tables>,
    frame: Vec<u8>,
    /// The packets to draw from; if there are none, sources are random.
    drawn: Vec<DrawnPacket>,
}

impl Row {
    fn changes(&self) -> Changes<'_> {
        match &self.drawn[..] {
            [] => Changes::Random([u32::MAX, 0]),
            drawn => Changes::Drawn(drawn),
        }
    }

    /// Measures what some tables take beyond the base, in ns.
    fn cost(&self, program: &mut Program, tables: &Tables, packets: u32) -> Result<f64> {
        program.install(tables)?;
        let cost = program.cost(&self.frame, self.changes(), packets)?;
        let ns = |time: Duration| time.as_nanos() as f64;
        Ok(ns(cost.stages) - ns(cost.base))
    }
}

/// Measures every row in each round, with as many packets. The sets have `networks` of IPv4, and a fifth as many of IPv6.
///
/// # Errors
/// A missing privilege; too little memory; the run was stopped in the first round.
pub fn run(
    rounds: u32,
    packets: u32,
    networks: u32,
    watch: &dyn BenchObserver,
) -> Result<ScrubCosts, Failure> {
    let empty = tables(&Policy::default())?;
    let mut program = Program::for_rehearsal(LIMIT_KEYS)?;
    let rows = rows(networks)?;
    let mut turns = vec![Vec::new(); rows.len()];
    let mut complete = true;
    'rounds: for round in 0..rounds as usize {
        for (at, row) in rows.iter().enumerate() {
            let (done, all) = (round * rows.len() + at, rounds as usize * rows.len());
            watch.progress(&Progress { step: &row.name, done, turns: Some(all) });
            if watch.pause(Duration::ZERO).is_err() {
                complete = false;
                break 'rounds;
            }
            let below = row.cost(&mut program, &empty, packets)?;
            turns[at].push((row.cost(&mut program, &row.tables, packets)?, below));
        }
    }
    let spread = |row: (Row, Vec<(f64, f64)>)| {
        let (row, turns) = (row.0.name, row.1);
        let beyond_base_ns = Spread::of(turns.iter().map(|(all, _)| *all))?;
        let beyond_empty_ns = Spread::of(turns.iter().map(|(all, below)| all - below))?;
        Some(ScrubCost { row, beyond_base_ns, beyond_empty_ns })
    };
    let rows: Vec<_> = rows.into_iter().zip(turns).filter_map(spread).collect();
    if rows.is_empty() {
        Err(Failure::Stopped)
    } else {
        Ok(ScrubCosts { rounds, packets, rows, complete })
    }
}

fn tables(policy: &Policy) -> Result<Rc<Tables>> {
    Tables::build(policy, SEED).map(Rc::new).map_err(|error| Error::Usage(error.to_string()))
}

/// Writes a number with commas.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn rows(networks: u32) -> Result<Vec<Row>> {
    let v4 = FrameSpec::udp(1000, 9, &[0; 30]).between("203.0.113.1", "198.18.0.2").build();
    let v6 = FrameSpec::udp(1000, 9, &[0; 30]).between("2001:db8::1", "2001:db8::2").build();
    let lists = sets(&mut Random::new(1), networks);
    let limited = limited();
    let rules = rule_list(&mut Random::new(5), RULES_OF_ALL);
    let all = Policy { rules, ..Policy { profiles: limited.profiles.clone(), ..lists.clone() } };
    let [lists, limited, all] = [tables(&lists)?, tables(&limited)?, tables(&all)?];
    let row = |name: String, tables: &Rc<Tables>, frame: &[u8], drawn| Row {
        name,
        tables: Rc::clone(tables),
        frame: frame.to_vec(),
        drawn,
    };
    let count = [networks, networks / NETWORKS_PER_V6].map(grouped).join(" + ");
    let mut rows = Vec::new();
    for (version, frame) in [("IPv4", &v4), ("IPv6", &v6)] {
        let name = format!("sets, {count} networks, {version}");
        rows.push(row(name, &lists, frame, Vec::new()));
    }
    for count in RULES {
        let mut random = Random::new(5);
        let rules = rule_list(&mut random, count);
        let drawn = (0..DRAWN).map(|_| drawn_packet(&mut random, &rules)).collect();
        let policy = Policy { rules, ..Policy::default() };
        rows.push(row(format!("rules, {count}"), &tables(&policy)?, &v4, drawn));
    }
    for (version, frame) in [("IPv4", &v4), ("IPv6", &v6)] {
        rows.push(row(format!("limit by source, {version}"), &limited, frame, Vec::new()));
        let name = format!("sets, {RULES_OF_ALL} rules and limit, {version}");
        rows.push(row(name, &all, frame, Vec::new()));
    }
    let challenged = tables(&challenged())?;
    let mut random = Random::new(7);
    let syns = (0..SYNS).map(|_| syn(&mut random)).collect();
    rows.push(row("SYN cookies, IPv4".into(), &challenged, &v4, syns));
    Ok(rows)
}

/// A policy that answers all SYNs.
fn challenged() -> Policy {
    let tcp = TcpProtection { challenge: Challenge::Always, ..TcpProtection::default() };
    Policy { profiles: vec![Profile { tcp, ..Profile::default() }], ..Policy::default() }
}

/// A SYN from a random source.
fn syn(random: &mut Random) -> DrawnPacket {
    let ports = [random.number() as u16 | 1, 80];
    let addresses = [random.number() as u32 & !(3 << 30), 0xc612_0002];
    DrawnPacket { addresses, ports, protocol: TCP, tcp_flags: 0x02 }
}

/// A policy with a limit of 1000 packets a second for each source.
fn limited() -> Policy {
    let burst = Duration::from_millis(100);
    let limit = Limit { by: LimitKey::Source, rate: Rate::Packets(1000), burst };
    let profile = Profile { limits: vec![limit], ..Profile::default() };
    Policy { profiles: vec![profile], ..Policy::default() }
}

/// A policy with a set of networks of IPv4 and IPv6.
fn sets(random: &mut Random, v4: u32) -> Policy {
    let v6 = v4 / NETWORKS_PER_V6;
    let mut networks = Vec::new();
    for _ in 0..v4 {
        let bits = random.pick(&[24, 32, 32, 32, 28, 22, 20, 29]);
        let network = Ipv4Net::new((random.number() as u32).into(), bits);
        networks.push(IpNet::V4(network.expect("a length of at most 32").trunc()));
    }
    for _ in 0..v6 {
        let address = (u128::from(random.number()) << 64) | u128::from(random.number());
        let bits = random.pick(&[29, 32, 36, 40, 44, 48, 48, 48, 56, 64]);
        // In 2000::/3, as are all sources.
        let network = Ipv6Net::new(((address >> 3) | (1 << 125)).into(), bits);
        networks.push(IpNet::V6(network.expect("a length of at most 128").trunc()));
    }
    let set = Set { name: "list".into(), action: SetAction::Drop, networks };
    Policy { sets: vec![set], ..Policy::default() }
}
