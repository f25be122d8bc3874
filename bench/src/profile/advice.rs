//! Advice, by rules over the findings. A rule checks for one limit and weighs it by the share of time that
//! its remedy might save. The heaviest rule is reported.

use super::causes::{BUFFERS, CAUSES, COPYING, LOCKS, OTHERS, PIPES, WAKEUPS};
use super::findings::{Cpu, Findings};

/// Returns why the figures are doubtful: samples are missing, or the machine did other work.
pub fn doubt(findings: &Findings) -> Option<String> {
    lost_samples(findings).or_else(|| others_time(findings)).or_else(|| others_packets(findings))
}

fn lost_samples(findings: &Findings) -> Option<String> {
    let share = percent(findings.lost_samples);
    let text = format!("{share} of the samples were lost: measure again on a less busy machine");
    (findings.lost_samples > 0.05).then_some(text)
}

fn others_time(findings: &Findings) -> Option<String> {
    let others = findings.cause(OTHERS)?;
    let share = others.ns / 1e9 / findings.seconds / findings.cpus.len().max(1) as f64;
    let process = others.functions.iter().find_map(|(function, _)| function.process.as_deref());
    let mostly = process.map_or_else(String::new, |name| format!(", mostly {name}"));
    // The causes have their share of the time in which the CPUs were not idle.
    (share > 0.1)
        .then(|| format!("other programs took CPU time{mostly}: measure again without them"))
}

/// Reports a share of foreign packets: the excess of handled packets over measured ones, because the kernel's
/// counters do not distinguish them.
fn others_packets(findings: &Findings) -> Option<String> {
    let came = findings.total(Cpu::came);
    let others = came.saturating_sub(findings.packets);
    let share = others as f64 / came.max(1) as f64;
    // Every host receives a few.
    (share > 0.1 && others > 1000).then(|| {
        let share = percent(share);
        format!("{share} of the received packets were not the bench's: measure again without them")
    })
}

/// The weight of a rule, and its text.
type Weighed = (f64, String);

/// Returns the heaviest advice; none if no rule applies.
pub fn advice(findings: &Findings) -> Option<String> {
    let rules = [sleeps, one_cpu, backlog, squeezed, sender];
    let limits = rules.iter().filter_map(|rule| rule(findings));
    let all = limits.chain(of_causes(findings));
    all.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, text)| text)
}

/// Advice on all causes that have enough of the time.
fn of_causes(findings: &Findings) -> impl Iterator<Item = Weighed> {
    CAUSES.iter().filter_map(|cause| {
        let (advice, found) = (cause.advice.as_ref()?, findings.cause(cause.name)?);
        let share = findings.share(cause.name);
        if share < advice.min_share {
            return None;
        }
        let (function, _) = found.functions.first()?;
        let switches = findings.total(|cpu| cpu.switches).max(1) as f64;
        let values = [
            ("{share}", percent(share)),
            ("{function}", function.to_string()),
            ("{packets}", format!("{:.0}", findings.packets as f64 / switches)),
        ];
        let problem = advice.problem.to_owned();
        let problem = values.iter().fold(problem, |text, (name, value)| text.replace(name, value));
        let caller = function.caller.as_deref().unwrap_or_default();
        let remedy = match (cause.name, &function.process) {
            (LOCKS | BUFFERS | WAKEUPS, _) if findings.share(PIPES) >= 0.05 => {
                let pipes = CAUSES.iter().find(|it| it.name == PIPES)?;
                pipes.advice.as_ref()?.remedy.to_owned()
            }
            (COPYING, Some(process)) => format!("let {process} read packets in place"),
            (COPYING, None) if caller.starts_with("tpacket") || caller.starts_with("packet") => {
                "keep less of each packet (--snaplen), or receive fewer (a filter)".into()
            }
            (COPYING, None) if caller.contains("xsk") || caller.contains("xdp") => {
                "use a driver with zero-copy, or copy less of each packet (mirror: with snaplen)"
                    .into()
            }
            _ => advice.remedy.to_owned(),
        };
        Some((share * advice.gain, format!("{problem}: {remedy}")))
    })
}

/// The receiver sleeps for a time while packets are lost.
fn sleeps(findings: &Findings) -> Option<Weighed> {
    let (process, per_second) = findings.sleeps.iter().find(|(_, times)| *times >= 10.0)?;
    let text = format!(
        "{process} sleeps {per_second:.0} times a second while packets are lost: let it wait for packets \
         (poll, --wait adaptive), not for a time"
    );
    (findings.lost >= 0.01).then_some((0.8 + findings.lost / 5.0, text))
}

/// All packets arrive at one full CPU while another has time for half of them.
fn one_cpu(findings: &Findings) -> Option<Weighed> {
    let one = findings.only_receiver()?;
    // The share of the time that other programs leave to it.
    let share = one.receive / (1.0 - one.others).max(0.05);
    let is_full = one.busy > 0.9 || one.dropped > one.came() / 100;
    // If the CPU mostly makes and sends packets, more receiving CPUs help little.
    let receives = share > 0.15 && one.receive > one.own() / 2.0;
    // If a program loses packets that the CPU has handled, the program is the limit.
    let keeps_up = findings.lost_behind() < 0.01;
    let has_room = |cpu: &Cpu| cpu.cpu != one.cpu && cpu.spare() > share / 2.0;
    let applies = is_full && receives && keeps_up && findings.cpus.iter().any(has_room);
    applies.then(|| {
        let text = format!(
            "CPU {} alone receives packets, which takes {} of its time, and it is full: spread packets over \
             more queues and CPUs (ethtool -L and -X; RPS if the card has one queue)",
            one.cpu,
            percent(share),
        );
        (0.5 + share / 2.0, text)
    })
}

/// A CPU's backlog drops packets that another CPU puts there.
fn backlog(findings: &Findings) -> Option<Weighed> {
    let dropped = findings.total(|cpu| cpu.dropped);
    let share = dropped as f64 / findings.total(Cpu::came).max(1) as f64;
    let text = format!(
        "{} of the packets found a CPU's backlog full: spread them over more CPUs, or raise the limit (sysctl \
         net.core.netdev_max_backlog)",
        percent(share),
    );
    (share > 0.01).then_some((share / 2.0, text))
}

/// The receive softirq runs out of its budget.
fn squeezed(findings: &Findings) -> Option<Weighed> {
    let squeezed = findings.total(|cpu| cpu.squeezed);
    let text = format!(
        "the receive softirq ran out of its budget {squeezed} times: raise it (sysctl net.core.netdev_budget \
         and netdev_budget_usecs)"
    );
    (squeezed > 100 && findings.lost > 0.01).then_some((0.1, text))
}

/// No packet is lost and a CPU has time left: the sender sends too few.
fn sender(findings: &Findings) -> Option<Weighed> {
    let work = |cpu: &Cpu| cpu.busy - cpu.spinning;
    let free = findings.cpus.iter().min_by(|a, b| work(a).total_cmp(&work(b)))?;
    let idle = 1.0 - work(free);
    let text = format!(
        "no packet is lost and CPU {} is idle for {} of the time, so the sender is the limit: give it more \
         --threads",
        free.cpu,
        percent(idle),
    );
    (findings.lost < 0.001 && idle > 0.3).then_some((0.12, text))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::findings::tests::{findings, kernel, of, program, switch};
    use crate::profile::findings::{NamedStack, Part};

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
    fn advice_is_on_the_largest_limit() {
        let rows: &[(&str, f64, &[NamedStack], &str)] = &[
            (
                "a reader that sleeps and loses",
                0.5,
                &[switch(SLEEP, 1000.0), program(1, "run", 100.0), kernel(1, SOFTIRQ, 50.0)],
                "sluice sleeps 1000 times a second while packets are lost",
            ),
            (
                "one that sleeps and loses nothing",
                0.0,
                &[switch(SLEEP, 1000.0), kernel(0, IDLE, 1000.0), kernel(1, IDLE, 900.0)],
                "no packet is lost and CPU 0 is idle for 100 % of the time, so the sender is the limit",
            ),
            (
                "all on one CPU",
                0.2,
                &[kernel(0, SOFTIRQ, 900.0), program(0, "run", 50.0), kernel(1, IDLE, 1000.0)],
                "CPU 0 alone receives packets, which takes 90 % of its time",
            ),
            (
                "on two CPUs alike",
                0.0,
                &[kernel(0, SOFTIRQ, 950.0), kernel(1, SOFTIRQ, 950.0)],
                "the host's network stack takes 100 % of the time",
            ),
            (
                "wakeups",
                0.0,
                &[kernel(0, WAKE, 400.0), program(1, "run", 500.0), program(0, "run", 500.0)],
                "wakeups and context switches take 29 % of the time",
            ),
            (
                "copying by a program",
                0.0,
                &[
                    program(1, "memmove", 700.0),
                    program(1, "run", 300.0),
                    program(0, "run", 1000.0),
                ],
                "copying takes 35 % of the time (mostly in memmove of sluice): let sluice read",
            ),
            (
                "copying for a packet socket",
                0.0,
                &[kernel(0, COPY, 900.0), program(1, "run", 900.0)],
                "copying takes 50 % of the time (mostly in skb_copy_bits for tpacket_rcv): keep less",
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
                "allocating and freeing skbs takes 50 % of the time",
            ),
            (
                "a pipe",
                0.0,
                &[kernel(0, PIPE, 900.0), program(1, "run", 900.0)],
                "pipes and Unix sockets take 50 % of the time (mostly in anon_pipe_write): pass more \
             packets per call, or share memory between the programs (memif:)",
            ),
            (
                "locks between two programs",
                0.0,
                &[kernel(0, LOCK, 900.0), kernel(1, PIPE, 200.0)],
                "waiting for locks takes 82 % of the time (mostly in native_queued_spin_lock_slowpath for \
             packet_rcv): pass more packets per call",
            ),
            (
                "the program",
                0.0,
                &[program(0, "count::run", 900.0), program(1, "count::run", 900.0)],
                "the program itself takes 100 % of the time, mostly in count::run",
            ),
        ];
        for (sentence, lost, places, expected) in rows {
            let found = Findings { lost: *lost, ..findings(places) };
            let said = advice(&found).unwrap_or_default();
            assert!(said.starts_with(expected), "{sentence}: {said}");
        }
    }

    #[test]
    fn one_full_cpu_is_the_limit_if_another_has_time_for_half_of_the_packets() {
        /// Packets that each CPU handled and dropped, of 1000; XDP had the rest.
        type Came = [(u64, u64); 2];
        const SEND: &str = "veth_xdp_xmit;bq_xmit_all;xdp_test_run_batch;bpf_test_run_xdp_live";
        let (full, half) = (kernel(0, SOFTIRQ, 950.0), kernel(0, SOFTIRQ, 350.0));
        let sends = |cpu, ms| of(Part::Sender, kernel(cpu, SEND, ms));
        let rustc = |cpu, ms| of(Part::Other, program(cpu, "parse", ms));
        let busy = std::slice::from_ref(&full);
        let (xdp, one, each) = ([(0, 0); 2], [(990, 0), (10, 0)], [(500, 0), (500, 0)]);
        // With the share that is lost.
        let rows: &[(&str, f64, Came, &[NamedStack], bool)] = &[
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
            let said = one_cpu(&found).map(|(_, text)| text);
            let is_named =
                said.as_deref().is_some_and(|said| said.starts_with("CPU 0 alone receives"));
            assert_eq!(is_named, *is_limit, "{sentence}: {said:?}");
        }
    }

    #[test]
    fn drops_of_a_backlog_are_reported() {
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
            said.starts_with("other programs took CPU time, mostly sluice") && !said.contains('%'),
            "{said}"
        );
        let mut found = findings(&[program(1, "run", 900.0)]);
        assert_eq!(doubt(&found), None);
        let perf = of(Part::Sampling, program(0, "write", 900.0));
        let parser = of(Part::Other, program(0, "parse", 50.0));
        assert_eq!(doubt(&findings(&[perf, parser])), None, "the sampler");
        let lossy = Findings { lost_samples: 0.2, ..found.clone() };
        assert!(doubt(&lossy).unwrap().starts_with("20 % of the samples were lost"));
        found.cpus[1].processed = 1900;
        assert_eq!(doubt(&found), None, "a few");
        found.cpus[1].dropped = 1100;
        let said = doubt(&found).unwrap();
        assert!(said.starts_with("67 % of the received packets were not the bench's"), "{said}");
    }

    #[test]
    fn without_a_limit_there_is_no_advice() {
        assert_eq!(advice(&Findings { lost: 0.5, ..findings(&[]) }), None);
    }
}
