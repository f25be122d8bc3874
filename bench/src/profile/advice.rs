//! One sentence of advice, by rules over what was found.
//!
//! A rule is a small function: it looks for one thing and says what to do about it, with a weight:
//! roughly the share of the time that might be gained. The heaviest is what is told.

use super::findings::{CauseShare, Cpu, Findings};
use super::table::{Cause, Wait};

/// Returns why the figures are doubtful: samples are missing, or the machine did other work.
pub fn doubt(findings: &Findings) -> Option<String> {
    lost_samples(findings).or_else(|| others_time(findings)).or_else(|| others_packets(findings))
}

fn lost_samples(findings: &Findings) -> Option<String> {
    (findings.lost_samples > 0.05).then(|| {
        let share = percent(findings.lost_samples);
        format!("{share} of the samples were lost: measure again on a less busy machine")
    })
}

fn others_time(findings: &Findings) -> Option<String> {
    let cpus = findings.cpus.len().max(1) as f64;
    let share = findings.cpus.iter().map(|cpu| cpu.others).sum::<f64>() / cpus;
    let functions = &findings.found(Cause::Others)?.functions;
    let process = functions.iter().find_map(|function| function.process.as_deref());
    let most = process.map_or_else(String::new, |name| format!(", {name} most"));
    let share = (share > 0.1).then(|| percent(share))?;
    Some(format!("other programs had {share} of all CPUs' time{most}: measure again without them"))
}

/// Reports a share of foreign packets, as the excess of handled packets over measured ones: the
/// kernel's counters do not tell them apart.
fn others_packets(findings: &Findings) -> Option<String> {
    let others = findings.came().saturating_sub(findings.packets);
    let share = others as f64 / findings.came().max(1) as f64;
    // A few are any host's.
    (share > 0.1 && others > 1000).then(|| {
        let share = percent(share);
        format!("{share} of the packets that came were others': measure again without them")
    })
}

/// Advice of one rule.
#[derive(Clone, Debug, PartialEq)]
struct Advice {
    weight: f64,
    text: String,
}

/// Remedy where one program passes packets to another through the kernel.
const SHARED: &str = "more packets a call, or memory that both programs have (memif:)";

type Rule = fn(&Findings) -> Option<Advice>;

const RULES: &[Rule] =
    &[sleeps, one_cpu, backlog, wakeups, copying, squeezed, program, xdp, sender];

/// A rule on one cause alone. `least` is the smallest share that is told; `part` of the share might be gained. In
/// `text`, `{share}` stands for the share, `{most}` for the function that takes most of it.
struct CauseRule {
    cause: Cause,
    least: f64,
    part: f64,
    text: &'static str,
    remedy: &'static str,
    /// Between two programs [`SHARED`] is the remedy.
    between_programs: bool,
}

const fn rule(
    cause: Cause,
    least: f64,
    part: f64,
    text: &'static str,
    remedy: &'static str,
) -> CauseRule {
    CauseRule { cause, least, part, text, remedy, between_programs: false }
}

const CAUSE_RULES: &[CauseRule] = &[
    CauseRule {
        between_programs: true,
        ..rule(
            Cause::Locks,
            0.1,
            1.0,
            "waiting for locks takes {share} of the time (most in {most})",
            "give each thread a queue of its own, and packets to it by fanout or RSS",
        )
    },
    rule(
        Cause::SystemCalls,
        0.15,
        1.0,
        "the way into the kernel and back takes {share} of the time",
        "more packets a call (recvmmsg, sendmmsg, a larger --batch), or a ring, which needs none",
    ),
    CauseRule {
        between_programs: true,
        ..rule(
            Cause::Buffers,
            0.2,
            0.9,
            "making and freeing the kernel's packet buffers takes {share} of the time",
            "work before they are made (xdp:, mirror:, dropping in XDP), or send without them (live frames)",
        )
    },
    rule(
        Cause::PageFaults,
        0.05,
        1.0,
        "page faults take {share} of the time",
        "touch memory before the run, use it again, or take huge pages",
    ),
    rule(
        Cause::Filters,
        0.2,
        0.8,
        "filters take {share} of the time (most in {most})",
        "shorten the expression, its most frequent case first",
    ),
    rule(
        Cause::Rules,
        0.15,
        1.0,
        "firewall rules take {share} of the time (most in {most})",
        "sets or maps in place of lists, or decide earlier (netdev ingress, tc, XDP)",
    ),
    rule(
        Cause::Checksums,
        0.1,
        1.0,
        "checksums take {share} of the time",
        "leave them to the card (ethtool -K)",
    ),
    rule(
        Cause::Timekeeping,
        0.1,
        1.0,
        "reading the time takes {share} of the time (most in {most})",
        "read it once a batch, or take a faster clock source",
    ),
    rule(
        Cause::Pipes,
        0.15,
        0.9,
        "pipes and Unix sockets take {share} of the time (most in {most})",
        SHARED,
    ),
    rule(
        Cause::Queueing,
        0.15,
        0.9,
        "the queueing discipline takes {share} of the time",
        "go round it (qdisc=bypass), or take noqueue",
    ),
    rule(
        Cause::Host,
        0.25,
        0.9,
        "the host's own stack takes {share} of the time",
        "keep packets from it that it need not see (xdp: takes them, XDP drops them)",
    ),
];

impl CauseRule {
    fn advice(&self, findings: &Findings) -> Option<Advice> {
        let Self { cause, least, part, text, .. } = *self;
        of_share(findings, cause, least, part, |found, share| {
            let text = text.replace("{share}", &share).replace("{most}", &most(found));
            let own = self.remedy;
            format!("{text}: {}", if self.between_programs { remedy(findings, own) } else { own })
        })
    }
}

/// Returns the advice of most weight; none if no rule applies.
pub fn advice(findings: &Findings) -> Option<String> {
    let of_causes = CAUSE_RULES.iter().filter_map(|rule| rule.advice(findings));
    let said = RULES.iter().filter_map(|rule| rule(findings)).chain(of_causes);
    said.max_by(|a, b| a.weight.total_cmp(&b.weight)).map(|advice| advice.text)
}

/// Packets are lost while their receiver sleeps, although packets are waiting.
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

/// Returns the remedy for packets of interfaces, or the one for packets between two programs.
fn remedy(findings: &Findings, of_interfaces: &'static str) -> &'static str {
    if findings.share(Cause::Pipes) >= 0.05 { SHARED } else { of_interfaces }
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
            "nothing is lost and CPU {} has nothing to do for {} of the time: the sender is the limit \
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
mod tests {
    use super::*;
    use crate::profile::findings::tests::{findings, kernel, of, program, switch};
    use crate::profile::named::{CodeLocation, Part};

    const IDLE: &str = "pv_native_safe_halt;default_idle;do_idle";
    const SLEEP: &str = "__schedule;schedule;do_nanosleep;hrtimer_nanosleep";
    const SOFTIRQ: &str =
        "ip_rcv;__netif_receive_skb_core;process_backlog;__napi_poll;net_rx_action";
    const WAKE: &str = "_raw_spin_unlock_irqrestore;try_to_wake_up;sock_def_readable;tpacket_rcv";
    const COPY: &str = "skb_copy_bits;tpacket_rcv;__netif_receive_skb_core";
    const LOCK: &str = "native_queued_spin_lock_slowpath;_raw_spin_lock;packet_rcv";
    const PIPE: &str = "anon_pipe_write;fifo_pipe_write;vfs_write";
    const SKB: &str = "kmem_cache_alloc_noprof;__alloc_skb;sock_alloc_send_pskb";

    #[test]
    fn what_stands_out_is_what_advice_is_given_on() {
        let rows: &[(&str, f64, &[CodeLocation], &str)] = &[
            (
                "a reader that sleeps and loses",
                0.5,
                &[switch(SLEEP, 1000.0), program(1, "run", 100.0), kernel(1, SOFTIRQ, 50.0)],
                "sluice sleeps 1000 times a second while 50 % of the packets are lost",
            ),
            (
                "one that sleeps and loses nothing",
                0.0,
                &[switch(SLEEP, 1000.0), kernel(0, IDLE, 1000.0), kernel(1, IDLE, 900.0)],
                "nothing is lost and CPU 0 has nothing to do for 100 % of the time",
            ),
            (
                "all on one CPU",
                0.2,
                &[kernel(0, SOFTIRQ, 900.0), program(0, "run", 50.0), kernel(1, IDLE, 1000.0)],
                "CPU 0 alone receives, which takes 90 % of its time",
            ),
            (
                "on two CPUs alike",
                0.0,
                &[kernel(0, SOFTIRQ, 950.0), kernel(1, SOFTIRQ, 950.0)],
                "the host's own stack takes 100 % of the time",
            ),
            (
                "wakeups",
                0.0,
                &[kernel(0, WAKE, 400.0), program(1, "run", 500.0), program(0, "run", 500.0)],
                "waking up and switching between threads takes 29 % of the time",
            ),
            (
                "copying by a program",
                0.0,
                &[
                    program(1, "memmove", 700.0),
                    program(1, "run", 300.0),
                    program(0, "run", 1000.0),
                ],
                "copying takes 35 % of the time (most in memmove of sluice): have sluice look",
            ),
            (
                "copying for a packet socket",
                0.0,
                &[kernel(0, COPY, 900.0), program(1, "run", 900.0)],
                "copying takes 50 % of the time (most in skb_copy_bits for tpacket_rcv): keep less",
            ),
            (
                "contention",
                0.0,
                &[kernel(0, LOCK, 900.0), kernel(1, LOCK, 900.0), program(1, "run", 50.0)],
                "waiting for locks takes 97 % of the time",
            ),
            (
                "skbs",
                0.0,
                &[kernel(0, SKB, 900.0), program(1, "run", 900.0)],
                "making and freeing the kernel's packet buffers takes 50 % of the time",
            ),
            (
                "a pipe",
                0.0,
                &[kernel(0, PIPE, 900.0), program(1, "run", 900.0)],
                "pipes and Unix sockets take 50 % of the time (most in anon_pipe_write): more packets a \
             call, or memory that both programs have (memif:)",
            ),
            (
                "locks of a pipe, which nothing can be dealt to",
                0.0,
                &[kernel(0, LOCK, 900.0), kernel(1, PIPE, 200.0)],
                "waiting for locks takes 82 % of the time (most in native_queued_spin_lock_slowpath for \
             packet_rcv): more packets a call",
            ),
            (
                "the program",
                0.0,
                &[program(0, "count::run", 900.0), program(1, "count::run", 900.0)],
                "the program itself takes 100 % of the time, 1800000 ns a packet, most in count::run",
            ),
        ];
        for (sentence, lost, places, expected) in rows {
            let found = Findings { lost: *lost, ..findings(places) };
            let said = advice(&found).unwrap_or_default();
            assert!(said.starts_with(expected), "{sentence}: {said}");
        }
    }

    #[test]
    fn one_cpu_is_the_limit_where_it_is_full_of_all_packets_and_another_could_have_half() {
        /// Packets that each CPU handled and dropped, of 1000; XDP had the rest.
        type Came = [(u64, u64); 2];
        const SEND: &str = "veth_xdp_xmit;bq_xmit_all;xdp_test_run_batch;bpf_test_run_xdp_live";
        let (full, half) = (kernel(0, SOFTIRQ, 950.0), kernel(0, SOFTIRQ, 350.0));
        let sends = |cpu, ms| of(Part::Sender, kernel(cpu, SEND, ms));
        let rustc = |cpu, ms| of(Part::Other, program(cpu, "parse", ms));
        let busy = std::slice::from_ref(&full);
        let (xdp, one, each) = ([(0, 0); 2], [(990, 0), (10, 0)], [(500, 0), (500, 0)]);
        // With the share that is lost.
        let rows: &[(&str, f64, Came, &[CodeLocation], bool)] = &[
            ("all on one", 0.0, one, busy, true),
            ("all on one, by time", 0.5, xdp, busy, true),
            ("others' few beside XDP", 0.0, [(0, 0), (50, 0)], busy, true),
            ("half on each, by count", 0.0, each, busy, false),
            ("half on each, by time", 0.0, xdp, &[full.clone(), kernel(1, SOFTIRQ, 950.0)], false),
            ("half on each, and drops", 0.4, [(500, 0), (100, 400)], busy, false),
            ("drivers on both", 0.0, one, &[full.clone(), kernel(1, SOFTIRQ, 300.0)], true),
            ("time left", 0.0, one, &[kernel(0, SOFTIRQ, 600.0)], false),
            ("drops", 0.5, [(500, 500), (0, 0)], &[kernel(0, SOFTIRQ, 600.0)], true),
            ("lost by the card", 0.4, [(600, 0), (0, 0)], busy, true),
            ("lost by a reader", 0.4, one, &[full.clone(), program(1, "run", 300.0)], false),
            ("a reader that keeps up", 0.0, one, &[full.clone(), program(1, "run", 400.0)], true),
            ("one that is full", 0.0, one, &[full.clone(), program(1, "run", 950.0)], false),
            ("a reader beside it", 0.0, one, &[half.clone(), program(0, "run", 600.0)], false),
            ("a sender beside it", 0.0, one, &[half.clone(), sends(0, 600.0)], true),
            ("a sender on the other", 0.0, one, &[full.clone(), sends(1, 950.0)], false),
            ("others on both", 0.0, one, &[half.clone(), rustc(0, 600.0), rustc(1, 980.0)], true),
        ];
        for (sentence, lost, came, places, is_limit) in rows {
            let mut found = Findings { lost: *lost, ..findings(places) };
            for (cpu, (processed, dropped)) in found.cpus.iter_mut().zip(came) {
                (cpu.processed, cpu.dropped) = (*processed, *dropped);
            }
            let said = one_cpu(&found).map(|advice| advice.text);
            let is_named =
                said.as_deref().is_some_and(|said| said.starts_with("CPU 0 alone receives"));
            assert_eq!(is_named, *is_limit, "{sentence}: {said:?}");
        }
    }

    #[test]
    fn drops_between_cpus_are_told_where_nothing_else_is() {
        let mut found = findings(&[kernel(0, IDLE, 100.0)]);
        found.lost = 0.5;
        (found.cpus[0].processed, found.cpus[0].dropped) = (500, 500);
        assert!(
            advice(&found).unwrap().starts_with("50 % of the packets found a CPU's backlog full")
        );
    }

    #[test]
    fn a_machine_that_others_use_makes_figures_doubtful() {
        let rustc = of(Part::Other, program(0, "parse", 900.0));
        let said = doubt(&findings(&[rustc, program(1, "run", 900.0)])).unwrap();
        assert!(
            said.starts_with("other programs had 45 % of all CPUs' time, sluice most"),
            "{said}"
        );
        let mut found = findings(&[program(1, "run", 900.0)]);
        assert_eq!(doubt(&found), None);
        let lossy = Findings { lost_samples: 0.2, ..found.clone() };
        assert!(doubt(&lossy).unwrap().starts_with("20 % of the samples were lost"));
        found.cpus[1].processed = 1900;
        assert_eq!(doubt(&found), None, "a few");
        found.cpus[1].dropped = 1100;
        let said = doubt(&found).unwrap();
        assert!(said.starts_with("67 % of the packets that came were others'"), "{said}");
    }

    #[test]
    fn nothing_that_stands_out_is_no_advice() {
        assert_eq!(advice(&Findings { lost: 0.5, ..findings(&[]) }), None);
    }
}
