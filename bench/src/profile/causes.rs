//! Maps call chains of function names to causes. The table is causes.json.
//!
//! The lookup goes from the sampled function to its callers; the first name that a row lists decides.
//! `functions` match the sampled function only, `callers` anywhere in the chain. So `memcpy` is copying for
//! any caller, and a list helper below `try_to_wake_up` belongs to wakeups. If two rows list a name, the
//! earlier one wins. A `*` ends a prefix; `bpf:` stands for `bpf_prog_` and the 16 digits after it.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde::Deserialize;

// Names of causes that code refers to; the last three have no functions of their own.
pub const SAMPLING: &str = "sampling";
pub const LOCKS: &str = "lock contention";
pub const COPYING: &str = "copying";
pub const CHECKSUMS: &str = "checksums";
pub const TIMEKEEPING: &str = "reading the time";
pub const IDLE: &str = "idle";
pub const WAKEUPS: &str = "wakeups and scheduling";
pub const BUFFERS: &str = "skb allocation and freeing";
pub const PIPES: &str = "pipes and Unix sockets";
pub const SPINNING: &str = "spinning";
pub const PROGRAM: &str = "the program itself";
pub const SENDER: &str = "sender";
pub const OTHERS: &str = "other programs";
pub const UNKNOWN: &str = "other";

/// A cause that a remedy may exist for, and the functions that belong to it.
#[derive(Debug, Deserialize)]
pub struct Cause {
    /// Its name in reports.
    pub name: &'static str,
    #[serde(default)]
    functions: Vec<&'static str>,
    #[serde(default)]
    callers: Vec<&'static str>,
    /// Functions of programs and libraries, without the path before the name.
    #[serde(default)]
    programs: Vec<&'static str>,
    pub advice: Option<Advice>,
}

/// Advice on a cause. In `problem`, `{share}`, `{function}` and `{packets}` are replaced.
#[derive(Debug, Deserialize)]
pub struct Advice {
    /// The smallest share of the time that is worth advice.
    pub min_share: f64,
    /// The part of the share that the remedy might gain.
    pub gain: f64,
    pub problem: &'static str,
    pub remedy: &'static str,
}

/// All causes that have functions or advice.
pub static CAUSES: LazyLock<Vec<Cause>> = LazyLock::new(|| {
    let table = serde_json::from_str(include_str!("causes.json"));
    table.expect("the table is part of the program, and a test reads it")
});

/// Returns the cause of a program's function.
pub fn of_user(name: &str) -> &'static str {
    let name = name.rsplit("::").next().unwrap_or(name);
    CAUSES.iter().find(|it| matches(&it.programs, name)).map_or(PROGRAM, |it| it.name)
}

/// Returns the cause of a chain of kernel functions.
pub fn of_kernel<'a>(chain: impl IntoIterator<Item = &'a str>) -> &'static str {
    let listed = |(depth, name): (usize, &str)| {
        let name = &*readable(name);
        let lists = |it: &&Cause| {
            (depth == 0 && matches(&it.functions, name)) || matches(&it.callers, name)
        };
        CAUSES.iter().find(lists)
    };
    chain.into_iter().enumerate().find_map(listed).map_or(UNKNOWN, |it| it.name)
}

/// Returns true if the time of a cause is measured work.
pub fn is_measured(cause: &str) -> bool {
    ![IDLE, SPINNING, SENDER, OTHERS, SAMPLING].contains(&cause)
}

/// "bpf:sluice_claim" for bpf_prog_6deef7357e7b4530_sluice_claim, whose number differs from load to
/// load; a program without a name is "bpf:".
pub fn readable(name: &str) -> Cow<'_, str> {
    let digits = |rest: &&str| rest.len() >= 16 && rest.as_bytes()[..16].is_ascii();
    match name.strip_prefix("bpf_prog_").filter(digits).map(|rest| rest.split_at(16)) {
        Some((tag, rest)) if tag.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("bpf:{}", rest.trim_start_matches('_')).into()
        }
        _ => name.into(),
    }
}

/// Returns true if one of the patterns matches a name.
fn matches(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    })
}

/// Returns true if a chain is in the receive softirq, which interrupts any process.
pub fn receives(chain: &[String]) -> bool {
    let softirq = ["net_rx_action", "__napi_poll", "napi_threaded_poll_loop"];
    chain.iter().any(|name| matches(&softirq, name))
}

/// Returns true if a thread that leaves its CPU in this chain sleeps for a time.
pub fn is_sleep(chain: &[String]) -> bool {
    chain.iter().any(|name| matches(&["hrtimer_nanosleep", "do_nanosleep", "common_nsleep*"], name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_chains_have_the_expected_causes() {
        let recorded = include_str!("../../tests/stacks/kernel.txt");
        let mut rows = 0;
        for line in recorded.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (cause, chain) = line.split_once(": ").unwrap();
            assert_eq!(of_kernel(chain.split(';')), cause, "{chain}");
            rows += 1;
        }
        assert!(rows > 20);
    }

    #[test]
    fn code_refers_to_rows_of_the_table_and_each_row_has_one_name() {
        let mut names: Vec<&str> = CAUSES.iter().map(|it| it.name).collect();
        for name in [
            SAMPLING,
            LOCKS,
            COPYING,
            CHECKSUMS,
            TIMEKEEPING,
            IDLE,
            WAKEUPS,
            BUFFERS,
            PIPES,
            SPINNING,
            PROGRAM,
        ] {
            assert!(names.contains(&name), "{name}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn functions_of_programs_are_told_apart() {
        for (name, cause) in [
            ("__memmove_avx_unaligned_erms", COPYING),
            ("[vdso]", TIMEKEEPING),
            ("sluice::run::worker::run", PROGRAM),
            ("sluicegate::port::queue::Queue::wait_rx", SPINNING),
            ("core::slice::memcpy", COPYING),
        ] {
            assert_eq!(of_user(name), cause, "{name}");
        }
    }

    #[test]
    fn a_bpf_program_is_named_without_its_tag() {
        for (name, expected) in [
            ("bpf_prog_6deef7357e7b4530_sluice_claim", "bpf:sluice_claim"),
            ("bpf_prog_6deef7357e7b4530", "bpf:"),
            ("bpf_prog_realloc", "bpf_prog_realloc"),
            ("memcpy", "memcpy"),
        ] {
            assert_eq!(readable(name), expected);
        }
    }

    fn chain(text: &str) -> Vec<String> {
        text.split(';').map(str::to_owned).collect()
    }

    #[test]
    fn only_a_sleep_for_a_time_is_a_sleep() {
        for (text, sleeps) in [
            ("__schedule;schedule;do_nanosleep;hrtimer_nanosleep;__x64_sys_clock_nanosleep", true),
            ("__schedule;schedule;schedule_hrtimeout_range_clock;do_sys_poll", false),
            ("__schedule;schedule;anon_pipe_write;fifo_pipe_write;vfs_write", false),
            ("__schedule;schedule;futex_do_wait;__futex_wait;futex_wait", false),
            ("__schedule;preempt_schedule_irq;irqentry_exit", false),
        ] {
            assert_eq!(is_sleep(&chain(text)), sleeps, "{text}");
        }
    }

    #[test]
    fn a_softirq_in_a_run_of_live_frames_is_receiving() {
        let live = "veth_xdp_xmit;bq_xmit_all;xdp_test_run_batch;bpf_test_run_xdp_live";
        let softirq = "veth_poll;__napi_poll;net_rx_action;handle_softirqs;xdp_test_run_batch";
        assert!(receives(&chain(softirq)));
        assert!(!receives(&chain(live)) && !receives(&chain("do_idle")));
    }
}
