//! Peers: other projects' programs that do the same work as Sluice.
//!
//! To add one: its row in [`ALL`], and its steps in [`steps`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::drop::{by_kernel, ports, rules};
use super::forward::passing;
use super::{Kind, StepContext, testpmd};
use crate::process::{Program, Ready, find, quoted, remedy};
use crate::process_output::Count;
use crate::step::{Intake, Job, Order, Setting, Step, Tally, To, Way};
use crate::testbed::{ADDRESS, End, Line, NOBODY};

/// Another project's program.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    /// Its command.
    pub command: &'static str,
    /// The Debian package whose version is shown; absent: the command reports its version itself.
    pub package: Option<&'static str>,
}

/// All known peers. Those of dropping by nftables and iptables are part of the suite.
pub const ALL: &[Peer] = &[
    peer("tcpdump", "tcpdump", None),
    peer("dumpcap", "dumpcap", None),
    peer("netsniff-ng", "netsniff-ng", None),
    peer(testpmd::NAME, testpmd::NAME, Some("dpdk-dev")),
    peer("trafgen", "trafgen", None),
    peer("tcpreplay", "tcpreplay", None),
    peer("masscan", "masscan", None),
    peer("xdp-tools", "xdp-filter", Some("xdp-tools")),
    peer("nftables", "nft", None),
    peer("iptables", "iptables", None),
    peer("clang", "clang", None),
];

const fn peer(name: &'static str, command: &'static str, package: Option<&'static str>) -> Peer {
    Peer { name, command, package }
}

/// A peer, and whether it is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name.
    pub name: String,
    /// In JSON, one key beside the name.
    #[serde(flatten)]
    pub state: PeerState,
}

/// The installation state of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// The version that it or its package reports.
    Version(String),
    /// It is not installed; the command that installs it.
    Missing(String),
}

impl Peer {
    /// Looks up whether it is installed, and its version.
    pub fn look(&self) -> Presence {
        let name = self.name.to_owned();
        if find(self.command).is_none() {
            return Presence { name, state: PeerState::Missing(remedy(self.command)) };
        }
        let ask = match self.package {
            None => Program::tool(self.command, ["--version"]),
            Some(package) => {
                Program::tool("dpkg-query", ["-W", "-f", "${Package} ${Version}", package])
            }
        };
        // Some print it to stderr, and some exit with an error afterwards.
        let text = ask.ask().map_or_else(|_| String::new(), |said| said.out + &said.err);
        let first =
            text.lines().map(str::trim).find(|line| line.contains(|c: char| c.is_numeric()));
        let version = first.unwrap_or("of unknown version").into();
        Presence { name, state: PeerState::Version(version) }
    }
}

/// The peers' steps in a suite.
pub fn steps(kind: Kind, place: &StepContext<'_>) -> Vec<Step> {
    match kind {
        Kind::Rx => receiving(place),
        Kind::Tx => sending(place),
        Kind::Drop => filter(place).into_iter().chain(drop(place)).collect(),
        Kind::Forward => forwarding(place),
        Kind::Pipe => testpmd::pipes(place),
    }
}

/// Programs that capture, each with a buffer of 64 MiB, and testpmd.
fn receiving(place: &StepContext<'_>) -> Vec<Step> {
    let right = place.right();
    let step = |by, how: &str, program, ready, count| {
        let ready = Ready::Says(ready);
        let job = Job { program, cpu: place.receiver(), ready, count: Some(count) };
        let way = Way::Receive(Intake::of(job, To::Nobody));
        Step::new(by, format!("{by} {how}"), place.plain(), way)
    };
    // It stays root, so that it can write.
    let tcpdump = |file: &str| {
        let flags = ["-n", "-i", right, "-B", "65536", "-Z", "root", "-w", file];
        Program::tool("tcpdump", flags)
    };
    let dumpcap = Program::tool("dumpcap", ["-q", "-i", right, "-B", "64", "-w", "/dev/null"]);
    let netsniff_ng = Program::tool("netsniff-ng", ["--in", right, "--out", "/dev/null"]).and([
        "--silent",
        "--ring-size",
        "64MiB",
    ]);
    let captured = Count::Before("captured");
    let file = place.received_file();
    let mut steps = vec![
        step("tcpdump", "-w /dev/null", tcpdump("/dev/null"), "listening on", captured),
        place.removing(&file, step("tcpdump", "-w FILE", tcpdump(&file), "listening on", captured)),
        step("dumpcap", "-w /dev/null", dumpcap, "File: ", Count::After("Packets captured:")),
        step(
            "netsniff-ng",
            "--out /dev/null",
            netsniff_ng,
            "Running!",
            Count::Before("passed filter"),
        ),
    ];
    for driver in ["net_af_packet", "net_af_xdp"] {
        let program = testpmd::rxonly(place, driver);
        steps.push(step(
            testpmd::NAME,
            driver,
            program,
            testpmd::READY,
            Count::After("RX-packets:"),
        ));
    }
    steps
}

/// Programs that send by one thread, as soon as they run. Their own counts are not used.
fn sending(place: &StepContext<'_>) -> Vec<Step> {
    let (left, size) = (place.left(), place.setting.size);
    let step = |by, name: &str, program| {
        let ready = Ready::After(Duration::ZERO);
        let job = Job { program, cpu: place.sender(), ready, count: None };
        Step::new(by, name, place.plain(), Way::Send(job))
    };
    let trafgen = ["--dev", left, "--conf", "-", "--cpus", "1", "--no-sock-mem"];
    let file = place.capture_file();
    let tcpreplay = ["--quiet", "--topspeed", "--preload-pcap", "--loop=0", "-i", left, &file];
    let tcpreplay =
        step("tcpreplay", "tcpreplay --topspeed", Program::tool("tcpreplay", tcpreplay));
    let mut steps = vec![
        step(
            testpmd::NAME,
            "dpdk-testpmd net_af_packet",
            testpmd::txonly(place, "net_af_packet", ",qdisc_bypass=1"),
        ),
        step(testpmd::NAME, "dpdk-testpmd net_af_xdp", testpmd::txonly(place, "net_af_xdp", "")),
        step("trafgen", "trafgen", Program::tool("trafgen", trafgen).reading(packet(size))),
        place.with_capture_file(tcpreplay),
    ];
    // The packets of these have one size: TCP SYN to many addresses and ports, and UDP.
    if size == 60 {
        let ports = ["198.18.0.0/16", "-p1-60000", "--rate", "100000000", "--wait", "0"];
        let masscan = Program::tool("masscan", ports)
            .and(["--adapter", left, "--adapter-ip", "198.18.0.1"])
            .and(["--adapter-mac", "02-00-00-00-00-01", "--router-mac", "02-00-00-00-00-99"]);
        let trafficgen = ["udp", left, "-m", NOBODY, "-P", "9", "-p", "9", "-t", "1"];
        let trafficgen = Program::tool("xdp-trafficgen", trafficgen);
        steps.push(step("masscan", "masscan SYN", masscan));
        steps.push(step("xdp-tools", "xdp-tools xdp-trafficgen", trafficgen));
    }
    steps
}

/// A packet of this size, as trafgen describes it.
fn packet(size: u32) -> String {
    // Ethernet, IPv4 and UDP.
    const HEADERS: u32 = 42;
    format!(
        "{{ eth(da={NOBODY}, sa=02:00:00:00:00:01), ipv4(saddr=198.18.0.1, daddr={ADDRESS}), \
         udp(sp=9, dp=9), fill(0, {}) }}\n",
        size - HEADERS
    )
}

/// testpmd, and a one-line XDP program.
fn forwarding(place: &StepContext<'_>) -> Vec<Step> {
    let io = |driver| {
        let (program, ready) = (testpmd::io(place, driver)?, Ready::Says(testpmd::READY));
        let job = Job { program, cpu: place.receiver(), ready, count: None };
        let name = format!("{} io, {driver}", testpmd::NAME);
        Some(passing(place, testpmd::NAME, &name, Some(job), To::Host))
    };
    [io("net_af_packet"), io("net_af_xdp"), redirect(place)].into_iter().flatten().collect()
}

/// Each rule takes a call of xdp-filter.
const XDP_FILTER_RULES_MAX: u32 = 100;

/// Drops by xdp-filter. It keeps its maps in a BPF file system, which the script mounts for itself.
fn filter(place: &StepContext<'_>) -> Option<Step> {
    let (device, rules) = (place.right(), rules(place));
    let port = |port| format!("xdp-filter port {port} -p udp -m dst");
    let ports: Vec<String> = ports(rules).map(port).collect();
    let script = format!(
        "trap 'xdp-filter status; xdp-filter unload {device}; exit' INT; \
         mount -t bpf bpf /sys/fs/bpf && xdp-filter load {device} -m native -f udp && {} && \
         echo ready && while sleep 0.1; do :; done",
        ports.join(" && ")
    );
    let job = Job {
        program: Program::script("xdp-filter", script),
        cpu: None,
        ready: Ready::Says("ready"),
        count: Some(Count::After("XDP_DROP")),
    };
    let setting = Setting { rules: Some(rules), ..place.plain() };
    let way = Way::Receive(Intake::of(job, To::Host));
    (rules <= XDP_FILTER_RULES_MAX).then(|| Step::new("xdp-tools", "xdp-filter", setting, way))
}

/// An XDP program that redirects to the interface `OUT`; `bpf_redirect` is helper 23 (linux/bpf.h).
const REDIRECT: &str = "static long (*redirect)(unsigned int, unsigned long) = (void *)23; \
    __attribute__((section(\"xdp\"), used)) int out(void *ctx) { return redirect(OUT, 0); }";
/// An XDP program that drops.
const DROP: &str = "__attribute__((section(\"xdp\"), used)) int drop(void *ctx) { return 1; }";

/// Drops by a one-line XDP program; a veth counts the drops of each queue.
fn drop(place: &StepContext<'_>) -> Option<Step> {
    let device = place.right();
    let add = r#"awk '/xdp_drops:/ { n += $2 } END { printf "dropped %.0f\n", n }'"#;
    let script = format!("said=$(ethtool -S {device}) && echo \"$said\" | {add}");
    let counters = Program::script("ethtool", script);
    let tally = Tally::Says(counters, Count::After("dropped"));
    let step = by_kernel("clang", "XDP_DROP and nothing else", place.plain(), tally);
    place.testbed.is_ours().then(|| attach(step, End::Right, device, DROP, device))
}

/// Redirects by a one-line XDP program. The other interface gets one, too: most drivers need it to send for XDP.
fn redirect(place: &StepContext<'_>) -> Option<Step> {
    let Line { from, to, .. } = place.testbed.line.as_ref()?;
    let step = passing(place, "clang", "bpf_redirect and nothing else", None, To::Host);
    let step = attach(step, End::Middle, from, REDIRECT, to);
    Some(attach(step, End::Middle, to, REDIRECT, from))
}

/// Adds the compiling and attaching of a program to a step.
fn attach(step: Step, end: End, device: &str, source: &str, out: &str) -> Step {
    let script = format!(
        "out=$(ip -o link show dev {out} | cut -d : -f 1) && echo {} | \
         clang -O2 -target bpf -D OUT=\"$out\" -x c -c -o xdp.o - && \
         ip link set dev {device} xdpdrv object xdp.o section xdp",
        quoted(source)
    );
    let on = Program::script("clang", script);
    let off = Program::tool("ip", ["link", "set", "dev", device, "xdpdrv", "off"]);
    step.with(Order { end, program: on }, Order { end, program: off })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_missing_is_named_with_the_way_to_get_it() {
        let presence = peer("no-such-command", "no-such-command", None).look();
        assert_eq!(presence.state, PeerState::Missing("apt-get install no-such-command".into()));
        let written = serde_json::to_string(&presence).unwrap();
        let expected = r#"{"name":"no-such-command","missing":"apt-get install no-such-command"}"#;
        assert_eq!(written, expected);
        assert_eq!(serde_json::from_str::<Presence>(&written).unwrap(), presence);
        assert_eq!(remedy("nft"), "apt-get install nftables");
        assert_eq!(remedy("trafgen"), "apt-get install netsniff-ng");
    }

    #[test]
    fn one_that_is_there_says_its_version() {
        let state = peer("cat", "cat", None).look().state;
        let is = |version: &str| version.starts_with("cat (");
        assert!(matches!(&state, PeerState::Version(version) if is(version)), "{state:?}");
    }
}
