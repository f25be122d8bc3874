//! Dropping: the cost of dropping an unwanted packet at each point of its path.

use super::StepContext;
use crate::process::{Count, LabHost, Program, Ready, StdinText, quoted};
use crate::step::{Destination, Setting, Step};

/// The most alternatives of a filter, which is one program without loops.
const MAX_FILTER: u32 = 100;
/// The first port of the rules that match no packet.
const FIRST: u32 = 20_000;
/// The destination port of packets.
const LAST: u32 = 9;

/// Returns the steps, from the last point of the path to the first.
pub fn steps(context: &StepContext<'_>) -> Vec<Step> {
    let mut steps = vec![listener(context), no_listener(context), iptables(context)];
    steps.extend(nftables(context));
    steps.push(flower(context));
    if rules(context) <= MAX_FILTER {
        steps.extend([tc_bpf(context), xdp(context)]);
    }
    let port = format!("xdp:{}?action=drop", context.right());
    steps.push(by_count(context, "XDP, all packets", &port));
    steps
}

/// Destination ports for that many rules; the last one matches.
pub fn ports(rules: u32) -> impl Iterator<Item = u32> {
    (0..rules.saturating_sub(1)).map(|n| FIRST + n).chain([LAST])
}

/// Lists rules between two texts: a line each, in which `%s` is the port.
fn listed(rules: u32, before: &str, line: &str, after: &str) -> StdinText {
    let lines = ports(rules).map(|port| line.replace("%s", &port.to_string()) + "\n");
    let text = [before.to_owned()].into_iter().chain(lines).chain([after.to_owned()]).collect();
    let (before, after, line) = (quoted(before), quoted(after), quoted(&format!(r"{line}\n")));
    let ports = format!("$(seq {FIRST} {}) {LAST}", FIRST - 2 + rules);
    let shell = format!("{{ printf %s {before}; printf -- {line} {ports}; printf %s {after}; }}");
    StdinText { text, shell }
}

/// The requested number of rules.
pub fn rules(context: &StepContext<'_>) -> u32 {
    context.setting.rules.unwrap_or(1)
}

/// Sets the number of rules of a step.
pub fn with_rules(context: &StepContext<'_>, step: Step) -> Step {
    Step { setting: Setting { rules: Some(rules(context)), ..step.setting }, ..step }
}

/// A program that reads a UDP socket and discards the packets.
fn listener(context: &StepContext<'_>) -> Step {
    let program = Program::sluice(["bench", "listener", "--port", "9"])
        .on(context.receiver())
        .ready(Ready::Says("listening"))
        .counting(Count::At("/received"));
    context.receives("sluice", "listener in user space", Destination::Host, program)
}

/// Packets to a port without a listener go through the whole stack, which drops them last.
fn no_listener(context: &StepContext<'_>) -> Step {
    let cat = Program::tool("cat", ["/proc/net/snmp"]).counting(Count::Below("Udp:", "NoPorts"));
    context.drops("linux", "no listener", cat)
}

/// A step of rules that one command adds and another removes.
fn ruled(
    context: &StepContext<'_>,
    by: &'static str,
    name: &str,
    counter: Program,
    [add, remove]: [Program; 2],
) -> Step {
    let [add, remove] = [add, remove].map(|program| program.at(LabHost::Right));
    with_rules(context, context.drops(by, name, counter).with(add, remove))
}

/// Rules of nftables as a list, in the prerouting hook and at the interface's ingress; at the ingress also
/// as one set.
fn nftables(context: &StepContext<'_>) -> Vec<Step> {
    let raw = "type filter hook prerouting priority raw;";
    let right = context.right();
    let ingress = format!("type filter hook ingress device \"{right}\" priority filter;");
    let each = ["", "udp dport %s counter name dropped drop", ""];
    let set = ["udp dport {\n", "%s,", "} counter name dropped drop\n"];
    let mut steps = vec![
        nft_step(context, "nftables, raw prerouting", "ip", raw, each),
        nft_step(context, "nftables, netdev ingress", "netdev", &ingress, each),
    ];
    if rules(context) > 1 {
        steps.push(nft_step(context, "nftables, netdev ingress, a set", "netdev", &ingress, set));
    }
    steps
}

/// An nftables table with one chain; `[before, line, after]` as in [`listed`].
fn nft_step(
    context: &StepContext<'_>,
    name: &str,
    family: &str,
    hook: &str,
    [before, line, after]: [&str; 3],
) -> Step {
    const TABLE: &str = "sluice_bench";
    let head = format!("table {family} {TABLE} {{\ncounter dropped {{\n}}\nchain c {{\n{hook}\n");
    let (before, after) = (format!("{head}{before}"), format!("{after}}}\n}}\n"));
    let table = listed(rules(context), &before, line, &after);
    let counter = Program::tool("nft", ["list", "counter", family, TABLE, "dropped"])
        .counting(Count::After("packets "));
    let add = Program::tool("nft", ["-f", "-"]).reading(table);
    let delete = Program::tool("nft", ["delete", "table", family, TABLE]);
    ruled(context, "nftables", name, counter, [add, delete])
}

/// Rules of iptables in the table raw, the first table that a packet to the host meets.
fn iptables(context: &StepContext<'_>) -> Step {
    let line = "-A PREROUTING -p udp --dport %s -j DROP";
    let table = listed(rules(context), "*raw\n", line, "COMMIT\n");
    let restore = Program::tool("iptables-restore", ["--noflush"]).reading(table);
    let list = ["-t", "raw", "-L", "PREROUTING", "-v", "-x", "-n", "-w"];
    let counter = Program::tool("iptables", list).counting(Count::Before("DROP"));
    let flush = Program::tool("iptables", ["-t", "raw", "-F", "PREROUTING", "-w"]);
    ruled(context, "iptables", "iptables, raw PREROUTING", counter, [restore, flush])
}

/// Rules of tc's flower classifier, which keeps rules of one form in a hash table.
fn flower(context: &StepContext<'_>) -> Step {
    let rule = "pref 1 protocol ip flower ip_proto udp dst_port %s action drop";
    let line = format!("filter add dev {} ingress {rule}", context.right());
    tc(context, "tc flower, ingress", listed(rules(context), &clsact(context), &line, ""))
}

/// One program of tc's BPF classifier that goes through the rules.
fn tc_bpf(context: &StepContext<'_>) -> Step {
    let program = classic_bpf(&ports(rules(context)).collect::<Vec<_>>());
    let rule = format!("ingress bpf direct-action bytecode \"{program}\"");
    let batch = format!("{}filter add dev {} {rule}\n", clsact(context), context.right());
    tc(context, "tc BPF, ingress", batch)
}

/// Returns classic BPF in the form of tc-bpf(8): it drops UDP in IPv4 without options to one of these ports,
/// and passes other packets. Jumps have at most 255 instructions.
fn classic_bpf(ports: &[u32]) -> String {
    let (drop, go_on) = ("6 0 0 2", "6 0 0 4294967295"); // TC_ACT_SHOT, TC_ACT_UNSPEC
    let n = ports.len();
    let mut program = vec![
        "40 0 0 12".to_owned(),         // ldh [12]: the type
        format!("21 0 {} 2048", n + 4), // jeq IPv4
        "48 0 0 23".to_owned(),         // ldb [23]: the protocol
        format!("21 0 {} 17", n + 2),   // jeq UDP
        "40 0 0 36".to_owned(),         // ldh [36]: the destination port
    ];
    for (at, port) in ports.iter().enumerate() {
        // To the drop, after the rest; the last one jumps past it if it does not match.
        let (to_drop, else_) = (n - 1 - at, usize::from(at + 1 == n));
        program.push(format!("21 {to_drop} {else_} {port}"));
    }
    program.extend([drop.to_owned(), go_on.to_owned()]);
    format!("{},{}", program.len(), program.join(","))
}

/// The tc command that adds the ingress hook.
fn clsact(context: &StepContext<'_>) -> String {
    format!("qdisc add dev {} clsact\n", context.right())
}

/// Rules of tc at the interface's ingress: a batch of commands that begins with [`clsact`].
fn tc(context: &StepContext<'_>, name: &str, batch: impl Into<StdinText>) -> Step {
    let device = context.right();
    let counter = Program::tool("tc", ["-s", "qdisc", "show", "dev", device, "clsact"])
        .counting(Count::After("(dropped"));
    let add = Program::tool("tc", ["-batch", "-"]).reading(batch);
    let delete = Program::tool("tc", ["qdisc", "del", "dev", device, "clsact"]);
    ruled(context, "linux", name, counter, [add, delete])
}

/// Rules of the resident XDP program.
fn xdp(context: &StepContext<'_>) -> Step {
    let ports: Vec<String> = ports(rules(context)).map(|port| port.to_string()).collect();
    let filter = format!("udp dst port ({})", ports.join(" or "));
    let port = format!("xdp:{}?action=drop&filter={filter}", context.right());
    with_rules(context, by_count(context, "XDP", &port))
}

/// Counts what a port with these options drops.
pub fn by_count(context: &StepContext<'_>, name: &str, port: &str) -> Step {
    context.receives("sluice", name, Destination::Host, context.count(port, [""; 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_is_the_one_that_matches() {
        assert_eq!(ports(1).collect::<Vec<_>>(), [9]);
        assert_eq!(ports(3).collect::<Vec<_>>(), [20_000, 20_001, 9]);
        assert_eq!(ports(10_000).max(), Some(29_998), "a port has 16 bits");
    }

    #[test]
    fn a_shell_lists_the_same_rules() {
        for rules in [1, 2, 100] {
            let StdinText { text, shell } = listed(rules, "-a 'b'\n", "- port %s { drop }", "}\n");
            let shell = std::process::Command::new("sh").args(["-c", &shell]).output().unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), text, "{rules}");
            assert_eq!(text.lines().count(), 2 + rules as usize);
            assert!(text.ends_with("- port 9 { drop }\n}\n"), "{text}");
        }
    }

    #[test]
    fn a_classic_program_jumps_to_the_drop_from_every_rule() {
        let program = classic_bpf(&[7, 9]);
        let words: Vec<&str> = program.split(',').collect();
        assert_eq!(words[0], "9");
        // Past the three loads, the two rules and the drop, to the last instruction.
        assert_eq!((words[2], words[4]), ("21 0 6 2048", "21 0 4 17"));
        assert_eq!(words[6..], ["21 1 0 7", "21 0 1 9", "6 0 0 2", "6 0 0 4294967295"]);
        assert!(classic_bpf(&(0..MAX_FILTER).collect::<Vec<_>>()).starts_with("107,"));
    }
}
