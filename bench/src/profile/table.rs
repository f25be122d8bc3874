//! From names to causes: what a call chain means.
//!
//! A chain is read from where the CPU was to who called that. The first function of it that
//! `functions.rs` knows decides; rows marked [`Depth::Here`] count only for the place where the CPU
//! was. So `memcpy` is copying whoever called it, and a list helper below `try_to_wake_up` belongs to
//! waking up.

use super::functions::Cause;
use super::functions::{KERNEL, USER, WAITS};

/// Where in a chain a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only where the CPU was.
    Here,
    /// There, or in whoever called that.
    Under,
}

/// What a function of a program is.
pub fn of_user(name: &str) -> Cause {
    let name = name.rsplit("::").next().unwrap_or(name);
    let known = |(_, patterns): &&(Cause, &str)| matches(patterns, name);
    USER.iter().find(known).map_or(Cause::Program, |(cause, _)| *cause)
}

/// What a chain in the kernel is, and which function of it decided: its place in the chain.
pub fn of_kernel<'a>(chain: impl IntoIterator<Item = &'a str>) -> (Cause, usize) {
    for (depth, name) in chain.into_iter().enumerate() {
        let name = &*readable(name);
        let known = |(_, place, patterns): &&(Cause, Depth, &str)| {
            (depth == 0 || *place == Depth::Under) && matches(patterns, name)
        };
        if let Some((cause, ..)) = KERNEL.iter().find(known) {
            return (*cause, depth);
        }
    }
    (Cause::Other, 0)
}

/// "bpf:sluice_claim" for bpf_prog_6deef7357e7b4530_sluice_claim, which has a new number wherever
/// it is made anew; a program without a name is "bpf:".
pub fn readable(name: &str) -> std::borrow::Cow<'_, str> {
    let digits = |rest: &&str| rest.len() >= 16 && rest.as_bytes()[..16].is_ascii();
    match name.strip_prefix("bpf_prog_").filter(digits).map(|rest| rest.split_at(16)) {
        Some((tag, rest)) if tag.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("bpf:{}", rest.trim_start_matches('_')).into()
        }
        _ => name.into(),
    }
}

/// Whether one of these patterns is a name's.
fn matches(patterns: &str, name: &str) -> bool {
    patterns.split_ascii_whitespace().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    })
}

/// Whose work a moment in the kernel was, as far as the chain says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Packets that have come in: the receive softirq.
    Receive,
    /// A run of live frames.
    LiveFrames,
    /// Anything else.
    Rest,
}

/// The stage of a chain: what it is in the innermost of.
pub fn stage<'a>(chain: impl IntoIterator<Item = &'a str>) -> Stage {
    let one = |name| match name {
        "net_rx_action" | "__napi_poll" | "napi_threaded_poll_loop" => Some(Stage::Receive),
        "bpf_test_run_xdp_live" | "xdp_test_run_batch" => Some(Stage::LiveFrames),
        _ => None,
    };
    chain.into_iter().find_map(one).unwrap_or(Stage::Rest)
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wait {
    /// It waited for packets, or for room.
    Packets,
    /// It slept for a time.
    Sleep,
    /// It waited for another thread.
    Lock,
    /// It waited for a disk or for memory.
    Disk,
    /// Another had to run.
    Preempted,
    /// Whatever else.
    Other,
}

impl Wait {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "waiting for packets",
            Self::Sleep => "sleeping for a time",
            Self::Lock => "waiting for a thread",
            Self::Disk => "waiting for a disk",
            Self::Preempted => "had to let others run",
            Self::Other => "other waits",
        }
    }
}

/// Why a thread left its CPU, from where it did.
pub fn of_switch<'a>(chain: impl IntoIterator<Item = &'a str>) -> Wait {
    let known = |name: &str| {
        let row = WAITS.iter().find(|(_, patterns)| matches(patterns, name));
        row.map(|(wait, _)| *wait)
    };
    chain.into_iter().find_map(known).unwrap_or(Wait::Other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Cause::{Copying, Program, Spinning, TimeUnit};

    #[test]
    fn chains_that_were_recorded_mean_what_they_should() {
        let recorded = include_str!("../../tests/stacks/kernel.txt");
        let mut rows = 0;
        for line in recorded.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (cause, chain) = line.split_once(": ").unwrap();
            let (found, _) = of_kernel(chain.split(';'));
            assert_eq!(found.name(), cause, "{chain}");
            rows += 1;
        }
        assert!(rows > 20);
    }

    #[test]
    fn functions_of_programs_are_told_apart() {
        for (name, cause) in [
            ("__memmove_avx_unaligned_erms", Copying),
            ("[vdso]", TimeUnit),
            ("sluice::run::worker::run", Program),
            ("sluicegate::port::queue::Queue::wait_rx", Spinning),
            ("core::slice::memcpy", Copying),
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

    #[test]
    fn a_wait_is_known_by_whom_it_was_called() {
        for (chain, wait) in [
            (
                "__schedule;schedule;do_nanosleep;hrtimer_nanosleep;__x64_sys_clock_nanosleep",
                Wait::Sleep,
            ),
            ("__schedule;schedule;schedule_hrtimeout_range_clock;do_sys_poll", Wait::Packets),
            ("__schedule;schedule;anon_pipe_write;fifo_pipe_write;vfs_write", Wait::Packets),
            ("__schedule;schedule;futex_do_wait;__futex_wait;futex_wait", Wait::Lock),
            (
                "__schedule;preempt_schedule_irq;irqentry_exit;asm_sysvec_apic_timer_interrupt",
                Wait::Preempted,
            ),
            ("__schedule;schedule;smpboot_thread_fn;kthread", Wait::Other),
        ] {
            assert_eq!(of_switch(chain.split(';')), wait, "{chain}");
        }
    }

    #[test]
    fn a_softirq_in_a_run_of_live_frames_is_receiving() {
        let live = "veth_xdp_xmit;bq_xmit_all;xdp_test_run_batch;bpf_test_run_xdp_live";
        let softirq = "veth_poll;__napi_poll;net_rx_action;handle_softirqs;xdp_test_run_batch";
        assert_eq!(stage(live.split(';')), Stage::LiveFrames);
        assert_eq!(stage(softirq.split(';')), Stage::Receive);
        assert_eq!(stage(["do_idle"]), Stage::Rest);
    }
}
