//! Scrubbing: the cost of deciding on a flood from random sources, all of which is dropped.
//!
//! All steps but those of SYN cookies get the same packets. Their policies drop what no stage has dropped, so all
//! count all packets.

use super::drop::by_count;
use super::{StepContext, remove_folder};
use crate::process::{Count, LabHost, Program, Ready, SLUICE, quoted};
use crate::scrub_policy::{NETWORKS, POLICY, PolicySize};
use crate::step::{Counter, Destination, Method, Reception, Step};

/// The step that counts and drops at the same place, without a decision.
pub const REFERENCE: &str = "resident program, count and drop";
/// A list of networks.
pub const LIST: &str = "scrub, 1,000,000 networks";
/// A shorter list, as long as nftables takes.
pub const SHORT_LIST: &str = "scrub, 100,000 networks";
/// A limit for each source.
pub const LIMIT: &str = "scrub, limit by source";
/// SYN cookies from XDP.
pub const CHALLENGE: &str = "scrub, TCP challenge";
/// The list in a BPF map.
pub const LPM: &str = "LPM trie, 1,000,000 networks";
/// The shorter list in nftables.
pub const NFT: &str = "nftables, netdev ingress, 100,000 networks";
/// The limit in a BPF map.
pub const LRU: &str = "LRU hash, limit by source";
/// SYN cookies from the TCP stack.
pub const COOKIES: &str = "kernel SYN cookies";

/// Networks of the long list and of the short one.
const NETWORKS_LONG: u32 = 1_000_000;
const NETWORKS_SHORT: u32 = 100_000;
/// The port of the listener, and of packets.
const PORT: &str = "9";
/// The prefix of the sources: half of all addresses.
const SOURCES: &str = "0.0.0.0/1";

/// Returns the steps.
pub fn steps(context: &StepContext<'_>) -> Vec<Step> {
    let port = format!("xdp:{}?action=drop", context.right());
    let counted = flooded(by_count(context, REFERENCE, &port));
    let empty = PolicySize::default();
    let (list, short) = (size(NETWORKS_LONG), size(NETWORKS_SHORT));
    let limited = PolicySize { limit: true, ..empty };
    let rules = PolicySize { rules: 10_000, ..empty };
    let all = PolicySize { networks: NETWORKS_LONG, limit: true, ..rules };
    let challenged = PolicySize { challenge: true, ..empty };
    let scrubbed = |name, size| flooded(scrub(context, name, size, Count::At("/dropped/packets")));
    // An answer leaves by the interface it came from, so it is not in `dropped`.
    let answered = Count::Sum(&["/dropped/packets", "/answered/packets"]);
    vec![
        counted,
        scrubbed("scrub, empty policy", empty),
        scrubbed(SHORT_LIST, short),
        nftables(context, short),
        scrubbed(LIST, list),
        lpm(context, list),
        scrubbed("scrub, 10,000 rules", rules),
        scrubbed(LIMIT, limited),
        flooded(bpf(context, LRU, &["lru"])),
        scrubbed("scrub, all of these", all),
        cookies(context),
        answering(syn_flooded(scrub(context, CHALLENGE, challenged, answered)), context),
    ]
}

fn size(networks: u32) -> PolicySize {
    PolicySize { networks, ..PolicySize::default() }
}

/// Gives a step packets from random sources.
pub fn flooded(step: Step) -> Step {
    step.sending("--src", SOURCES)
}

/// Gives a step a SYN flood.
fn syn_flooded(step: Step) -> Step {
    flooded(step).sending("--proto", "tcp").sending("--tcp-flags", "syn")
}

/// The folder of a policy's files.
fn folder(context: &StepContext<'_>) -> String {
    context.testbed.file("policy")
}

/// Writes the files of a policy before a step, and removes them afterwards.
fn with_policy(context: &StepContext<'_>, step: Step, size: PolicySize) -> Step {
    let folder = folder(context);
    let PolicySize { networks, rules, limit, challenge } = size;
    let numbers = [("--networks", networks), ("--rules", rules)];
    let numbers = numbers.into_iter().filter(|(_, number)| *number > 0);
    let numbers = numbers.flat_map(|(flag, number)| [flag.to_owned(), number.to_string()]);
    let flags = [("--limit", limit), ("--challenge", challenge)];
    let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag);
    let write = Program::sluice(["bench", "policy", &folder]).and(numbers).and(flags);
    step.with(write, remove_folder(&folder))
}

/// Scrubs by a policy.
fn scrub(context: &StepContext<'_>, name: &str, size: PolicySize, count: Count) -> Step {
    let policy = format!("{}/{POLICY}", folder(context));
    let socket = context.testbed.file("control");
    let program = Program::sluice(["scrub", "run", context.right(), "--policy", &policy])
        .and(["--control", &socket, "--json", "--interval", "200ms"])
        .on(context.receiver())
        // The first report: the program is attached.
        .ready(Ready::Says("\"elapsed_s\""))
        .counting(count);
    with_policy(context, context.receives(SLUICE, name, Destination::Host, program), size)
}

/// Drops by one of the BPF programs of this bench, which use maps of the kernel.
fn bpf(context: &StepContext<'_>, name: &str, arguments: &[&str]) -> Step {
    let program = Program::sluice(["bench", "bpf-drop", context.right()])
        .and(arguments.iter().copied())
        .on(context.receiver())
        .ready(Ready::Says("attached"))
        .counting(Count::At("/dropped"));
    context.receives("linux", name, Destination::Host, program)
}

fn lpm(context: &StepContext<'_>, size: PolicySize) -> Step {
    let networks = format!("{}/{NETWORKS}", folder(context));
    flooded(with_policy(context, bpf(context, LPM, &["lpm", "--networks", &networks]), size))
}

/// Drops by an interval set; a second counter has the packets of other sources.
fn nftables(context: &StepContext<'_>, size: PolicySize) -> Step {
    const TABLE: &str = "sluice_bench";
    let head = format!(
        "table netdev {TABLE} {{\ncounter dropped {{\n}}\n\
         set networks {{\ntype ipv4_addr\nflags interval\nauto-merge\nelements = {{"
    );
    let chain = format!(
        "}}\n}}\nchain c {{\ntype filter hook ingress device \"{}\" priority filter;\n\
         ip saddr @networks counter name dropped drop\ncounter name dropped drop\n}}\n}}",
        context.right()
    );
    let networks = format!("{}/{NETWORKS}", folder(context));
    let script = format!(
        "{{ echo {}; sed 's/$/,/' {}; echo {}; }} | nft -f -",
        quoted(&head),
        quoted(&networks),
        quoted(&chain)
    );
    let counter = Program::tool("nft", ["list", "counter", "netdev", TABLE, "dropped"])
        .counting(Count::After("packets "));
    let add = Program::script("nft", script).at(LabHost::Right);
    let delete = Program::tool("nft", ["delete", "table", "netdev", TABLE]).at(LabHost::Right);
    flooded(with_policy(context, context.drops("linux", NFT, counter), size).with(add, delete))
}

/// The command that lets an interface receive the answers of XDP programs at its other end, and drops those to a network,
/// because the left's kernel is not measured.
pub fn receives_answers(interface: &str, network: &str) -> Program {
    Program::sluice(["bench", "bpf-drop", interface, "destination", "--network", network])
}

/// Lets answers reach the left: a route to the sources, and an XDP program there, which drops them.
fn answering(step: Step, context: &StepContext<'_>) -> Step {
    let (left, right) = (context.left(), context.right());
    let route = |action| {
        let route = ["route", action, SOURCES, "via", "198.18.0.1", "dev", right];
        Program::tool("ip", route).at(LabHost::Right)
    };
    let off = Program::tool("ip", ["link", "set", "dev", left, "xdpdrv", "off"]);
    step.with(route("add"), route("del")).with(receives_answers(left, SOURCES), off)
}

/// A listener whose kernel answers each SYN by a cookie.
fn cookies(context: &StepContext<'_>) -> Step {
    let sysctl = |value| {
        let script = format!("echo {value} > /proc/sys/net/ipv4/tcp_syncookies");
        Program::script("sh", script).at(LabHost::Right)
    };
    let listener = Program::sluice(["bench", "listener", "--tcp", "--port", PORT]);
    let listener = listener.at(LabHost::Right).ready(Ready::Says("listening"));
    let cat = Program::tool("cat", ["/proc/net/netstat"]).at(LabHost::Right);
    let cat = cat.counting(Count::Below("TcpExt:", "SyncookiesSent"));
    let reception = Reception {
        program: Some(listener),
        counter: Some(Counter::Program(cat.into())),
        to: Destination::Host,
    };
    let step = Step::new("linux", COOKIES, context.plain(), Method::Receive(reception));
    answering(syn_flooded(step).with(sysctl(2), sysctl(1)), context)
}
