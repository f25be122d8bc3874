//! Dropping: where on its way a packet that nobody wants is thrown away, and what that costs.

use super::{StepContext, count};
use crate::process::{Input, Program, Ready, quoted};
use crate::process_output::Count;
use crate::step::{Intake, Job, Order, Setting, Step, Tally, To, Way};
use crate::testbed::End;

/// The most alternatives that a filter is asked for: it is one program without loops.
const FILTER_MAX: u32 = 100;

/// The steps, from the last place to the first.
pub fn steps(place: &StepContext<'_>) -> Vec<Step> {
    let mut steps = vec![listener(place), no_listener(place)];
    steps.extend(iptables(place));
    steps.extend(nftables(place));
    steps.push(flower(place));
    steps.extend(tc_bpf(place));
    steps.extend(xdp(place));
    steps.push(all(place));
    steps
}

/// The first of the ports that nothing comes to.
const FIRST: u32 = 20_000;
/// The one that packets are for.
const LAST: u32 = 9;

/// Destination ports for that many rules: packets are for the last one.
pub fn ports(rules: u32) -> impl Iterator<Item = u32> {
    (0..rules.saturating_sub(1)).map(|n| FIRST + n).chain([LAST])
}

/// That many rules between two texts: each is a line, in which `%s` is the port.
pub fn listed(rules: u32, before: &str, line: &str, after: &str) -> Input {
    let lines = ports(rules).map(|port| line.replace("%s", &port.to_string()) + "\n");
    let text = [before.to_owned()].into_iter().chain(lines).chain([after.to_owned()]).collect();
    let (before, after, line) = (quoted(before), quoted(after), quoted(&format!(r"{line}\n")));
    let ports = format!("$(seq {FIRST} {}) {LAST}", FIRST - 2 + rules);
    let shell = format!("{{ printf %s {before}; printf -- {line} {ports}; printf %s {after}; }}");
    Input { text, shell }
}

/// Rules that a place asks for.
pub fn rules(place: &StepContext<'_>) -> u32 {
    place.setting.rules.unwrap_or(1)
}

/// A step without a program: the kernel drops, and says how many it has dropped.
pub fn by_kernel(by: &'static str, name: &str, setting: Setting, tally: Tally) -> Step {
    let intake = Intake::told(tally, To::Host);
    Step::new(by, name, setting, Way::Receive(intake))
}

/// An order at the end that receives.
pub fn order(program: Program) -> Order {
    Order { end: End::Right, program }
}

/// A program that reads what comes to a UDP socket, and forgets it.
fn listener(place: &StepContext<'_>) -> Step {
    let job = Job {
        program: Program::sluice(["bench", "listener", "--port", "9"]),
        cpu: place.receiver(),
        ready: Ready::Says("listening"),
        count: Some(Count::At("/received")),
    };
    let intake = Intake::of(job, To::Host);
    Step::new("sluice", "listener in user space", place.plain(), Way::Receive(intake))
}

/// Packets to a port that nobody listens on go all the way up, and are dropped there.
fn no_listener(place: &StepContext<'_>) -> Step {
    let tally =
        Tally::Says(Program::tool("cat", ["/proc/net/snmp"]), Count::Below("Udp:", "NoPorts"));
    by_kernel("linux", "no listener", place.plain(), tally)
}

/// The table that a step of nftables creates and deletes.
const TABLE: &str = "sluice_bench";

/// Rules of nftables as a list, in the prerouting hook and at the interface's ingress; at the ingress also
/// as one set.
fn nftables(place: &StepContext<'_>) -> Vec<Step> {
    let rules = rules(place);
    let raw = "type filter hook prerouting priority raw;";
    let ingress = format!("type filter hook ingress device \"{}\" priority filter;", place.right());
    let each = ["", "udp dport %s counter name dropped drop", ""];
    let set = ["udp dport {\n", "%s,", "} counter name dropped drop\n"];
    let mut steps = vec![
        nft_step(place, "nftables, raw prerouting", "ip", raw, each),
        nft_step(place, "nftables, netdev ingress", "netdev", &ingress, each),
    ];
    if rules > 1 {
        steps.push(nft_step(place, "nftables, netdev ingress, a set", "netdev", &ingress, set));
    }
    steps
}

/// An nftables table with one chain. `rules_` is the text before the rules, the line of a rule, and the text
/// after them.
fn nft_step(
    place: &StepContext<'_>,
    name: &str,
    family: &str,
    hook: &str,
    rules_: [&str; 3],
) -> Step {
    let [before, line, after] = rules_;
    let head = format!("table {family} {TABLE} {{\ncounter dropped {{\n}}\nchain c {{\n{hook}\n");
    let (before, after) = (format!("{head}{before}"), format!("{after}}}\n}}\n"));
    let table = listed(rules(place), &before, line, &after);
    let tally = Tally::Says(
        Program::tool("nft", ["list", "counter", family, TABLE, "dropped"]),
        Count::After("packets "),
    );
    let setting = Setting { rules: Some(rules(place)), ..place.plain() };
    by_kernel("nftables", name, setting, tally).with(
        order(Program::tool("nft", ["-f", "-"]).reading(table)),
        order(Program::tool("nft", ["delete", "table", family, TABLE])),
    )
}

/// Rules of iptables in the table raw, the first table that a packet to the host meets.
fn iptables(place: &StepContext<'_>) -> Vec<Step> {
    let rules = rules(place);
    let table = listed(rules, "*raw\n", "-A PREROUTING -p udp --dport %s -j DROP", "COMMIT\n");
    let restore = Program::tool("iptables-restore", ["--noflush"]).reading(table);
    let list = ["-t", "raw", "-L", "PREROUTING", "-v", "-x", "-n", "-w"];
    let tally = Tally::Says(Program::tool("iptables", list), Count::Before("DROP"));
    let setting = Setting { rules: Some(rules), ..place.plain() };
    let flush = Program::tool("iptables", ["-t", "raw", "-F", "PREROUTING", "-w"]);
    vec![
        by_kernel("iptables", "iptables, raw PREROUTING", setting, tally)
            .with(order(restore), order(flush)),
    ]
}

/// By tc's flower classifier, which keeps rules of one form in a hash table.
fn flower(place: &StepContext<'_>) -> Step {
    let rule = "pref 1 protocol ip flower ip_proto udp dst_port %s action drop";
    let line = format!("filter add dev {} ingress {rule}", place.right());
    tc(place, "tc flower, ingress", listed(rules(place), &clsact(place), &line, ""))
}

/// By one program of tc's BPF classifier that goes through the rules.
fn tc_bpf(place: &StepContext<'_>) -> Option<Step> {
    let program = classic(&ports(rules(place)).collect::<Vec<_>>());
    let rule = format!("ingress bpf direct-action bytecode \"{program}\"");
    let input = format!("{}filter add dev {} {rule}\n", clsact(place), place.right());
    (rules(place) <= FILTER_MAX).then(|| tc(place, "tc BPF, ingress", input))
}

/// Classic BPF as tc-bpf(8) takes it: UDP in IPv4 without options to one of these ports is dropped,
/// the rest goes on. Jumps are 255 instructions at most.
fn classic(ports: &[u32]) -> String {
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
        // To the drop, which stands behind the rest; from the last one, where nothing matches, past it.
        let (to_drop, else_) = (n - 1 - at, usize::from(at + 1 == n));
        program.push(format!("21 {to_drop} {else_} {port}"));
    }
    program.extend([drop.to_owned(), go_on.to_owned()]);
    format!("{},{}", program.len(), program.join(","))
}

/// The tc command that adds the ingress hook.
fn clsact(place: &StepContext<'_>) -> String {
    format!("qdisc add dev {} clsact\n", place.right())
}

/// Rules of tc at the interface's ingress: a batch of commands that begins with [`clsact`].
fn tc(place: &StepContext<'_>, name: &str, batch: impl Into<Input>) -> Step {
    let device = place.right();
    let tally = Tally::Says(
        Program::tool("tc", ["-s", "qdisc", "show", "dev", device, "clsact"]),
        Count::After("(dropped"),
    );
    let setting = Setting { rules: Some(rules(place)), ..place.plain() };
    by_kernel("linux", name, setting, tally).with(
        order(Program::tool("tc", ["-batch", "-"]).reading(batch)),
        order(Program::tool("tc", ["qdisc", "del", "dev", device, "clsact"])),
    )
}

/// By the resident XDP program.
fn xdp(place: &StepContext<'_>) -> Option<Step> {
    let rules = rules(place);
    let ports: Vec<String> = ports(rules).map(|port| port.to_string()).collect();
    let filter = format!("udp dst port ({})", ports.join(" or "));
    let port = format!("xdp:{}?action=drop&filter={filter}", place.right());
    let intake = Intake::of(count(place, &port, [""; 0]), To::Host);
    let setting = Setting { rules: Some(rules), ..place.plain() };
    (rules <= FILTER_MAX).then(|| Step::new("sluice", "XDP", setting, Way::Receive(intake)))
}

/// Drops all packets in XDP.
fn all(place: &StepContext<'_>) -> Step {
    let port = format!("xdp:{}?action=drop", place.right());
    let intake = Intake::of(count(place, &port, [""; 0]), To::Host);
    Step::new("sluice", "XDP, all packets", place.plain(), Way::Receive(intake))
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
            let Input { text, shell } = listed(rules, "-a 'b'\n", "- port %s { drop }", "}\n");
            let shell = std::process::Command::new("sh").args(["-c", &shell]).output().unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), text, "{rules}");
            assert_eq!(text.lines().count(), 2 + rules as usize);
            assert!(text.ends_with("- port 9 { drop }\n}\n"), "{text}");
        }
    }

    #[test]
    fn a_classic_program_jumps_to_the_drop_from_every_rule() {
        let program = classic(&[7, 9]);
        let words: Vec<&str> = program.split(',').collect();
        assert_eq!(words[0], "9");
        // Past the three loads, the two rules and the drop, to the last instruction.
        assert_eq!((words[2], words[4]), ("21 0 6 2048", "21 0 4 17"));
        assert_eq!(words[6..], ["21 1 0 7", "21 0 1 9", "6 0 0 2", "6 0 0 4294967295"]);
        assert!(classic(&(0..FILTER_MAX).collect::<Vec<_>>()).starts_with("107,"));
    }
}
