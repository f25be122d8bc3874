//! One sentence of advice, by rules over what was found.
//!
//! A rule is a small function: it looks for one thing and says what to do about it, with a weight:
//! roughly the share of the time that might be gained. The heaviest is what is told.

use super::findings::{CauseShare, Cpu, Findings};
use super::functions::Cause;
use super::table::Wait;

/// What makes the figures doubtful: the machine is not ours alone.
pub fn doubt(findings: &Findings) -> Option<String> {
    others_time(findings).or_else(|| others_packets(findings))
}

fn others_time(findings: &Findings) -> Option<String> {
    let cpus = findings.cpus.len().max(1) as f64;
    let share = findings.cpus.iter().map(|cpu| cpu.others).sum::<f64>() / cpus;
    let who = &findings.found(Cause::Others)?.functions;
    let process = who.iter().find_map(|function| function.process.as_deref());
    let most = process.map_or_else(String::new, |name| format!(", {name} most"));
    let share = (share > 0.1).then(|| percent(share))?;
    Some(format!("other programs had {share} of all CPUs' time{most}: measure again without them"))
}

/// The kernel does not tell whose packets a CPU has handled.
fn others_packets(findings: &Findings) -> Option<String> {
    let others = findings.came().saturating_sub(findings.packets);
    let share = others as f64 / findings.came().max(1) as f64;
    // A few are any host's.
    (share > 0.1 && others > 1000).then(|| {
        let share = percent(share);
        format!("{share} of the packets that came were others': measure again without them")
    })
}

/// What one rule has to say.
#[derive(Clone, Debug, PartialEq)]
struct Advice {
    weight: f64,
    text: String,
}

/// What to do where one program hands packets to another through the kernel.
const SHARED: &str = "more packets a call, or memory that both programs have (memif:)";

type Rule = fn(&Findings) -> Option<Advice>;

const RULES: &[Rule] = &[
    sleeps,
    one_cpu,
    backlog,
    locks,
    wakeups,
    copying,
    system_calls,
    buffers,
    page_faults,
    filters,
    rules,
    checksums,
    clock,
    pipes,
    queueing,
    host,
    squeezed,
    program,
    xdp,
    sender,
];

/// What to do; none where no rule has anything to say.
pub fn advice(findings: &Findings) -> Option<String> {
    let said = RULES.iter().filter_map(|rule| rule(findings));
    said.max_by(|a, b| a.weight.total_cmp(&b.weight)).map(|advice| advice.text)
}

/// Packets are lost while who should take them sleeps, and not for want of packets.
fn sleeps(findings: &Findings) -> Option<Advice> {
    let slept = |waits: &&super::Waits| waits.why == Wait::Sleep && waits.per_second >= 10.0;
    let sleeper = findings.waits.iter().find(slept)?;
    (findings.lost >= 0.01).then(|| Advice {
        weight: 0.8 + findings.lost / 5.0,
        text: format!(
            "{} sleeps {:.0} times a second while {} of the packets are lost: let it wait for packets \
             (poll, --wait adaptive), not for a time",
            sleeper.process,
            sleeper.per_second,
            percent(findings.lost),
        ),
    })
}

/// All packets come to one CPU, which has no time left, while another has enough for half of them.
fn one_cpu(findings: &Findings) -> Option<Advice> {
    let one = findings.alone()?;
    // Of the time that other programs left it.
    let share = one.receive / (1.0 - one.others).max(0.05);
    let full = one.busy > 0.9 || one.dropped > one.came() / 100;
    // What makes and sends packets besides is no less a limit.
    let receives = share > 0.15 && one.receive > one.own() / 2.0;
    // Where a program loses what the CPU has handled, that is the limit.
    let passes = findings.lost_behind() < 0.01;
    let mut others = findings.cpus.iter().filter(|cpu| cpu.cpu != one.cpu);
    let holds = full && receives && passes && others.any(|cpu| cpu.spare() > share / 2.0);
    holds.then(|| Advice {
        weight: 0.5 + share / 2.0,
        text: format!(
            "CPU {} alone receives, which takes {} of its time, and is full: spread packets over more \
             queues and CPUs (ethtool -L and -X; RPS where the card has one queue)",
            one.cpu,
            percent(share),
        ),
    })
}

/// Packets are dropped between softirqs of two CPUs.
fn backlog(findings: &Findings) -> Option<Advice> {
    let dropped: u64 = findings.cpus.iter().map(|cpu| cpu.dropped).sum();
    let processed: u64 = findings.cpus.iter().map(|cpu| cpu.processed).sum();
    let share = dropped as f64 / (dropped + processed).max(1) as f64;
    (share > 0.01).then(|| Advice {
        weight: share / 2.0,
        text: format!(
            "{} of the packets found a CPU's backlog full: spread them over more CPUs, or make it \
             longer (sysctl net.core.netdev_max_backlog)",
            percent(share),
        ),
    })
}

fn locks(findings: &Findings) -> Option<Advice> {
    let remedy =
        remedy(findings, "give each thread a queue of its own, and packets to it by fanout or RSS");
    of_share(findings, Cause::Locks, 0.1, 1.0, |found, share| {
        format!("waiting for locks takes {share} of the time (most in {}): {remedy}", most(found))
    })
}

fn wakeups(findings: &Findings) -> Option<Advice> {
    let switches: u64 = findings.cpus.iter().map(|cpu| cpu.switches).sum();
    let a_switch = findings.packets as f64 / switches.max(1) as f64;
    let remedy = remedy(
        findings,
        "let the reader spin (--wait spin), or longer before it sleeps (adaptive)",
    );
    of_share(findings, Cause::Wakeups, 0.15, 1.0, |_, share| {
        format!(
            "waking up and switching between threads takes {share} of the time, a switch each \
             {a_switch:.0} packets: {remedy}"
        )
    })
}

fn copying(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Copying, 0.15, 1.0, |found, share| {
        let first = found.functions.first();
        let caller = first.and_then(|function| function.caller.as_deref()).unwrap_or_default();
        let remedy = match first.and_then(|function| function.process.as_deref()) {
            Some(process) => format!("have {process} look at packets where they are"),
            None if caller.starts_with("tpacket") || caller.starts_with("packet") => {
                "keep less of each packet (--snaplen), or take fewer (a filter)".into()
            }
            None if caller.contains("xsk") || caller.contains("xdp") => {
                "take a driver with zero-copy, or less of each packet (mirror: with snaplen)".into()
            }
            None => {
                "take a ring that is mapped (packet: ring, xdp:) in place of calls that copy".into()
            }
        };
        format!("copying takes {share} of the time (most in {}): {remedy}", most(found))
    })
}

fn system_calls(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::SystemCalls, 0.15, 1.0, |_, share| {
        format!(
            "the way into the kernel and back takes {share} of the time: more packets a call \
             (recvmmsg, sendmmsg, a larger --batch), or a ring, which needs none"
        )
    })
}

fn buffers(findings: &Findings) -> Option<Advice> {
    let remedy = remedy(
        findings,
        "work before they are made (xdp:, mirror:, dropping in XDP), or send without them (live frames)",
    );
    of_share(findings, Cause::Buffers, 0.2, 0.9, |_, share| {
        format!(
            "making and freeing the kernel's packet buffers takes {share} of the time: {remedy}"
        )
    })
}

fn page_faults(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::PageFaults, 0.05, 1.0, |_, share| {
        format!(
            "page faults take {share} of the time: touch memory before the run, use it again, or \
             take huge pages"
        )
    })
}

fn filters(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Filters, 0.2, 0.8, |found, share| {
        format!(
            "filters take {share} of the time (most in {}): shorten the expression, its most frequent \
             case first",
            most(found)
        )
    })
}

fn rules(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Rules, 0.15, 1.0, |found, share| {
        format!(
            "firewall rules take {share} of the time (most in {}): sets or maps in place of lists, or \
             decide earlier (netdev ingress, tc, XDP)",
            most(found)
        )
    })
}

fn checksums(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Checksums, 0.1, 1.0, |_, share| {
        format!("checksums take {share} of the time: leave them to the card (ethtool -K)")
    })
}

fn clock(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::TimeUnit, 0.1, 1.0, |found, share| {
        format!(
            "reading the time takes {share} of the time (most in {}): read it once a batch, or take \
             a faster clock source",
            most(found)
        )
    })
}

/// What helps where packets come from an interface; between two programs that is something else.
fn remedy(findings: &Findings, of_interfaces: &'static str) -> &'static str {
    if findings.share(Cause::Pipes) >= 0.05 { SHARED } else { of_interfaces }
}

fn pipes(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Pipes, 0.15, 0.9, |found, share| {
        format!(
            "pipes and Unix sockets take {share} of the time (most in {}): {SHARED}",
            most(found)
        )
    })
}

fn queueing(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Queueing, 0.15, 0.9, |_, share| {
        format!(
            "the queueing discipline takes {share} of the time: go round it (qdisc=bypass), or \
             take noqueue"
        )
    })
}

fn host(findings: &Findings) -> Option<Advice> {
    of_share(findings, Cause::Host, 0.25, 0.9, |_, share| {
        format!(
            "the host's own stack takes {share} of the time: keep packets from it that it need not \
             see (xdp: takes them, XDP drops them)"
        )
    })
}

/// The softirq has more to do than it may in one go.
fn squeezed(findings: &Findings) -> Option<Advice> {
    let squeezed: u64 = findings.cpus.iter().map(|cpu| cpu.squeezed).sum();
    (squeezed > 100 && findings.lost > 0.01).then(|| Advice {
        weight: 0.1,
        text: format!(
            "the receive softirq ran out of its budget {squeezed} times: raise it \
             (sysctl net.core.netdev_budget and netdev_budget_usecs)"
        ),
    })
}

fn program(findings: &Findings) -> Option<Advice> {
    let packets = findings.packets.max(1) as f64;
    of_share(findings, Cause::Program, 0.3, 0.2, |found, share| {
        format!(
            "the program itself takes {share} of the time, {:.0} ns a packet, most in {}: more queues, \
             each with a thread and a CPU",
            found.ns / packets,
            most(found)
        )
    })
}

fn xdp(findings: &Findings) -> Option<Advice> {
    let packets = findings.packets.max(1) as f64;
    of_share(findings, Cause::Xdp, 0.3, 0.2, |found, share| {
        format!(
            "XDP programs take {share} of the time, {:.0} ns a packet, most in {}: more queues, each \
             with a CPU",
            found.ns / packets,
            most(found)
        )
    })
}

/// Nothing is lost and a CPU has time left: there is no more to handle.
fn sender(findings: &Findings) -> Option<Advice> {
    let work = |cpu: &Cpu| cpu.busy - cpu.spinning;
    let least = |a: &&Cpu, b: &&Cpu| work(a).total_cmp(&work(b));
    let free = findings.cpus.iter().min_by(least)?;
    (findings.lost < 0.001 && work(free) < 0.7).then(|| Advice {
        weight: 0.12,
        text: format!(
            "nothing is lost and CPU {} has nothing to do for {} of the time: who sends is the limit \
             (more --threads of it)",
            free.cpu,
            percent(1.0 - work(free)),
        ),
    })
}

/// Advice on a cause that has at least `least` of the time; `part` of that might be gained.
fn of_share(
    findings: &Findings,
    cause: Cause,
    least: f64,
    part: f64,
    text: impl FnOnce(&CauseShare, String) -> String,
) -> Option<Advice> {
    let share = findings.share(cause);
    let found = findings.found(cause)?;
    (share >= least).then(|| Advice { weight: share * part, text: text(found, percent(share)) })
}

fn most(found: &CauseShare) -> String {
    found.functions.first().map_or_else(String::new, ToString::to_string)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests;
