use super::super::findings::tests::{findings, kernel, of, program, switch};
use super::super::named::{CodeLocation, Part};
use super::*;

const IDLE: &str = "pv_native_safe_halt;default_idle;do_idle";
const SLEEP: &str = "__schedule;schedule;do_nanosleep;hrtimer_nanosleep";
const SOFTIRQ: &str = "ip_rcv;__netif_receive_skb_core;process_backlog;__napi_poll;net_rx_action";
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
            &[program(1, "memmove", 700.0), program(1, "run", 300.0), program(0, "run", 1000.0)],
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
    /// What each CPU handled and dropped, of 1000; XDP had the rest.
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
        ("who reads beside it", 0.0, one, &[half.clone(), program(0, "run", 600.0)], false),
        ("who sends beside it", 0.0, one, &[half.clone(), sends(0, 600.0)], true),
        ("who sends on the other", 0.0, one, &[full.clone(), sends(1, 950.0)], false),
        ("others on both", 0.0, one, &[half.clone(), rustc(0, 600.0), rustc(1, 980.0)], true),
    ];
    for (sentence, lost, came, places, is_limit) in rows {
        let mut found = Findings { lost: *lost, ..findings(places) };
        for (cpu, (processed, dropped)) in found.cpus.iter_mut().zip(came) {
            (cpu.processed, cpu.dropped) = (*processed, *dropped);
        }
        let said = one_cpu(&found).map(|advice| advice.text);
        let is_named = said.as_deref().is_some_and(|said| said.starts_with("CPU 0 alone receives"));
        assert_eq!(is_named, *is_limit, "{sentence}: {said:?}");
    }
}

#[test]
fn drops_between_cpus_are_told_where_nothing_else_is() {
    let mut found = findings(&[kernel(0, IDLE, 100.0)]);
    found.lost = 0.5;
    (found.cpus[0].processed, found.cpus[0].dropped) = (500, 500);
    assert!(advice(&found).unwrap().starts_with("50 % of the packets found a CPU's backlog full"));
}

#[test]
fn a_machine_that_others_use_makes_figures_doubtful() {
    let rustc = of(Part::Other, program(0, "parse", 900.0));
    let said = doubt(&findings(&[rustc, program(1, "run", 900.0)])).unwrap();
    assert!(said.starts_with("other programs had 45 % of all CPUs' time, sluice most"), "{said}");
    let mut found = findings(&[program(1, "run", 900.0)]);
    assert_eq!(doubt(&found), None);
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
