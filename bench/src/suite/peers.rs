//! Peers: other projects' programs that do the same work as Sluice.
//!
//! To add one: its row in `ALL`, and its steps in `steps`.

use serde::{Deserialize, Serialize};

use super::drop::{ports, rules, with_rules};
use super::scrub::flooded;
use super::{StepContext, SuiteKind, remove, testpmd};
use crate::process::{Count, LabHost, Program, Ready, Running, is_installed, quoted, remedy};
use crate::step::{Destination, Method, Step};
use crate::testbed::{ADDRESS, NOBODY};

/// All known peers: the name, the command, and the Debian package whose version is shown; empty if the command
/// reports its version itself. The suite of dropping has those of nftables and iptables.
const ALL: [(&str, &str, &str); 11] = [
    ("tcpdump", "tcpdump", ""),
    ("dumpcap", "dumpcap", ""),
    ("netsniff-ng", "netsniff-ng", ""),
    (testpmd::NAME, testpmd::NAME, "dpdk-dev"),
    ("trafgen", "trafgen", ""),
    ("tcpreplay", "tcpreplay", ""),
    ("masscan", "masscan", ""),
    ("xdp-tools", "xdp-filter", "xdp-tools"),
    ("nftables", "nft", ""),
    ("iptables", "iptables", ""),
    ("clang", "clang", ""),
];

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

/// Looks up which peers are installed, and their versions.
pub fn presence() -> Vec<Presence> {
    ALL.map(|(name, command, package)| look_up(name, command, package)).into()
}

fn look_up(name: &str, command: &str, package: &str) -> Presence {
    let name = name.to_owned();
    if !is_installed(command) {
        return Presence { name, state: PeerState::Missing(remedy(command)) };
    }
    let ask = match package {
        "" => Program::tool(command, ["--version"]),
        _ => Program::tool("dpkg-query", ["-W", "-f", "${Package} ${Version}", package]),
    };
    // Some print it to stderr, and some exit with an error afterwards.
    let said = ask.start(None).and_then(Running::to_end).unwrap_or_default();
    let text = said.out + &said.err;
    let first = text.lines().map(str::trim).find(|line| line.contains(|c: char| c.is_numeric()));
    Presence { name, state: PeerState::Version(first.unwrap_or("of unknown version").into()) }
}

/// The peers' steps in a suite.
pub fn steps(kind: SuiteKind, context: &StepContext<'_>) -> Vec<Step> {
    match kind {
        SuiteKind::Rx => receiving(context),
        SuiteKind::Tx => sending(context),
        SuiteKind::Drop => filter(context).into_iter().chain(drop(context)).collect(),
        SuiteKind::Forward => forwarding(context),
        SuiteKind::Pipe => testpmd::pipes(context),
        SuiteKind::Scrub => drop(context).map(flooded).into_iter().collect(),
    }
}

/// A tcpdump that writes to this file. It stays root, so that it can.
pub fn tcpdump(interface: &str, file: &str) -> Program {
    Program::tool("tcpdump", ["-n", "-i", interface, "-B", "65536", "-Z", "root", "-w", file])
        .ready(Ready::Says("listening on"))
        .counting(Count::Before("captured"))
}

/// A dumpcap that discards what it captures.
pub fn dumpcap(interface: &str) -> Program {
    Program::tool("dumpcap", ["-q", "-i", interface, "-B", "64", "-w", "/dev/null"])
        .ready(Ready::Says("File: "))
        .counting(Count::After("Packets captured:"))
}

/// Programs that capture, each with a buffer of 64 MiB, and testpmd.
fn receiving(context: &StepContext<'_>) -> Vec<Step> {
    let right = context.right();
    let step = |by, how: &str, program: Program| {
        let program = program.on(context.receiver());
        context.receives(by, format!("{by} {how}"), Destination::Nobody, program)
    };
    let netsniff_ng = Program::tool("netsniff-ng", ["--in", right, "--out", "/dev/null"])
        .and(["--silent", "--ring-size", "64MiB"])
        .ready(Ready::Says("Running!"))
        .counting(Count::Before("passed filter"));
    let file = context.received_file();
    let to_file = step("tcpdump", "-w FILE", tcpdump(right, &file));
    let mut steps = vec![
        step("tcpdump", "-w /dev/null", tcpdump(right, "/dev/null")),
        to_file.then(remove(&file).at(LabHost::Right)),
        step("dumpcap", "-w /dev/null", dumpcap(right)),
        step("netsniff-ng", "--out /dev/null", netsniff_ng),
    ];
    let drivers = ["net_af_packet", "net_af_xdp"];
    steps.extend(drivers.map(|it| step(testpmd::NAME, it, testpmd::rxonly(context, it))));
    steps
}

/// Programs that send by one thread. Their own counts are not used.
fn sending(context: &StepContext<'_>) -> Vec<Step> {
    let (left, size) = (context.left(), context.setting.size);
    let step = |by, name: &str, program: Program| {
        Step::new(by, name, context.plain(), Method::Send(program.on(context.sender())))
    };
    let trafgen = ["--dev", left, "--conf", "-", "--cpus", "1", "--no-sock-mem"];
    let trafgen = Program::tool("trafgen", trafgen).reading(trafgen_packet(size));
    let file = context.capture_file();
    let tcpreplay = ["--quiet", "--topspeed", "--preload-pcap", "--loop=0", "-i", left, &file];
    let tcpreplay = Program::tool("tcpreplay", tcpreplay);
    let packet = testpmd::txonly(context, "net_af_packet", ",qdisc_bypass=1");
    let mut steps = vec![
        step(testpmd::NAME, "dpdk-testpmd net_af_packet", packet),
        step(testpmd::NAME, "dpdk-testpmd net_af_xdp", testpmd::txonly(context, "net_af_xdp", "")),
        step("trafgen", "trafgen", trafgen),
        context.with_capture_file(step("tcpreplay", "tcpreplay --topspeed", tcpreplay)),
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

/// A packet of this size in trafgen's syntax.
fn trafgen_packet(size: u32) -> String {
    // Ethernet, IPv4 and UDP.
    const HEADERS: u32 = 42;
    format!(
        "{{ eth(da={NOBODY}, sa=02:00:00:00:00:01), ipv4(saddr=198.18.0.1, daddr={ADDRESS}), \
         udp(sp=9, dp=9), fill(0, {}) }}\n",
        size - HEADERS
    )
}

/// Steps of testpmd, and of a one-line XDP program.
fn forwarding(context: &StepContext<'_>) -> Vec<Step> {
    let io = |driver| {
        let program = testpmd::io(context, driver)?;
        let name = format!("{} io, {driver}", testpmd::NAME);
        let program = program.on(context.receiver());
        Some(context.forwards(testpmd::NAME, &name, Destination::Host, Some(program)))
    };
    [io("net_af_packet"), io("net_af_xdp"), redirect(context)].into_iter().flatten().collect()
}

/// The most rules of xdp-filter, which takes a call for each.
const MAX_XDP_FILTER_RULES: u32 = 100;

/// Drops by xdp-filter. It keeps its maps in a BPF file system, which the script mounts for itself.
fn filter(context: &StepContext<'_>) -> Option<Step> {
    let (device, rules) = (context.right(), rules(context));
    let port = |port| format!("xdp-filter port {port} -p udp -m dst");
    let ports: Vec<String> = ports(rules).map(port).collect();
    let script = format!(
        "trap 'xdp-filter status; xdp-filter unload {device}; exit' INT; \
         mount -t bpf bpf /sys/fs/bpf && xdp-filter load {device} -m native -f udp && {} && \
         echo ready && while sleep 0.1; do :; done",
        ports.join(" && ")
    );
    let program = Program::script("xdp-filter", script)
        .ready(Ready::Says("ready"))
        .counting(Count::After("XDP_DROP"));
    let step = context.receives("xdp-tools", "xdp-filter", Destination::Host, program);
    let is_possible = context.testbed.is_ours() && rules <= MAX_XDP_FILTER_RULES;
    is_possible.then(|| with_rules(context, step))
}

/// An XDP program that redirects to the interface `OUT`; `bpf_redirect` is helper 23 (linux/bpf.h).
const REDIRECT: &str = "static long (*redirect)(unsigned int, unsigned long) = (void *)23; \
    __attribute__((section(\"xdp\"), used)) int out(void *ctx) { return redirect(OUT, 0); }";
/// An XDP program that drops.
const DROP: &str = "__attribute__((section(\"xdp\"), used)) int drop(void *ctx) { return 1; }";

/// Drops by a one-line XDP program; a veth counts the drops of each queue.
fn drop(context: &StepContext<'_>) -> Option<Step> {
    let device = context.right();
    let add = r#"awk '/xdp_drops:/ { n += $2 } END { printf "dropped %.0f\n", n }'"#;
    let script = format!("said=$(ethtool -S {device}) && echo \"$said\" | {add}");
    let counters = Program::script("ethtool", script).counting(Count::After("dropped"));
    let step = context.drops("clang", "XDP_DROP and nothing else", counters);
    context.testbed.is_ours().then(|| attach(step, LabHost::Right, device, DROP, device))
}

/// Redirects by a one-line XDP program. The other interface gets one, too: most drivers need it to send for XDP.
fn redirect(context: &StepContext<'_>) -> Option<Step> {
    let [from, to] = context.testbed.middle.as_ref()?.each_ref().map(|side| &side.interface);
    let name = "bpf_redirect and nothing else";
    let step = context.forwards("clang", name, Destination::Host, None);
    let step = attach(step, LabHost::Middle, from, REDIRECT, to);
    Some(attach(step, LabHost::Middle, to, REDIRECT, from))
}

/// Adds the compiling and attaching of a program to a step.
fn attach(step: Step, host: LabHost, device: &str, source: &str, out: &str) -> Step {
    let script = format!(
        "out=$(ip -o link show dev {out} | cut -d : -f 1) && echo {} | \
         clang -O2 -target bpf -D OUT=\"$out\" -x c -c -o xdp.o - && \
         ip link set dev {device} xdpdrv object xdp.o section xdp",
        quoted(source)
    );
    let on = Program::script("clang", script);
    let off = Program::tool("ip", ["link", "set", "dev", device, "xdpdrv", "off"]);
    step.with(on.at(host), off.at(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_peer_has_its_remedy() {
        let presence = look_up("no-such-command", "no-such-command", "");
        assert_eq!(presence.state, PeerState::Missing("apt-get install no-such-command".into()));
        let written = serde_json::to_string(&presence).unwrap();
        let expected = r#"{"name":"no-such-command","missing":"apt-get install no-such-command"}"#;
        assert_eq!(written, expected);
        assert_eq!(serde_json::from_str::<Presence>(&written).unwrap(), presence);
        assert_eq!(remedy("nft"), "apt-get install nftables");
        assert_eq!(remedy("trafgen"), "apt-get install netsniff-ng");
    }

    #[test]
    fn an_installed_peer_has_its_version() {
        let state = look_up("cat", "cat", "").state;
        let is = |version: &str| version.starts_with("cat (");
        assert!(matches!(&state, PeerState::Version(version) if is(version)), "{state:?}");
    }
}
