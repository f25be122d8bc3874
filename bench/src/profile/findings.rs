//! Assigns samples to parts of the measurement, and sums time by cause and by CPU.

use std::collections::HashMap;
use std::fmt;

use super::Participants;
use super::causes::{
    self, CHECKSUMS, COPYING, IDLE, LOCKS, OTHERS, SAMPLING, SENDER, SPINNING, TIMEKEEPING,
};
use super::sampler::{EventKind, Recording};
use crate::measurement::Cause;

/// The most functions that a report names for a cause.
const MAX_FUNCTIONS: usize = 5;

/// A sampled call chain, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedStack {
    pub event: EventKind,
    pub cpu: u32,
    /// The process's name.
    pub process: String,
    pub part: Part,
    pub kernel: bool,
    /// The function, then its callers. Outside the kernel it is the function alone.
    pub chain: Vec<String>,
    /// Its time in ns, or the number of switches.
    pub weight: f64,
}

/// Part of a sample's process in the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is measured.
    Measured,
    /// It makes the packets.
    Sender,
    /// It has none.
    Other,
    /// It samples.
    Sampling,
}

/// Adds the names and parts of the processes to the stacks of a recording.
pub fn named(recording: &Recording, participants: &Participants) -> Vec<NamedStack> {
    let name = |process: u32| match process {
        0 => "idle".into(),
        _ => recording.names.get(&process).map_or_else(|| "ended".into(), String::clone),
    };
    let stacks = recording.stacks.iter().map(|stack| NamedStack {
        event: stack.event,
        cpu: stack.cpu,
        process: name(stack.process),
        part: part_of(stack.process, &stack.chain, recording.sampler, participants),
        kernel: stack.kernel,
        chain: stack.chain.clone(),
        weight: stack.weight as f64,
    });
    stacks.collect()
}

/// Assigns a sample to a part. A softirq interrupts any process; its work counts as measured.
fn part_of(process: u32, chain: &[String], sampler: u32, participants: &Participants) -> Part {
    match process {
        _ if process == 0 || causes::receives(chain) => Part::Measured,
        _ if process == sampler => Part::Sampling,
        _ if participants.sender.contains(&process) => Part::Sender,
        _ if participants.measured.contains(&process) => Part::Measured,
        _ => Part::Other,
    }
}

/// The facts that advice is based on.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The sampled time.
    pub seconds: f64,
    /// The largest first.
    pub causes: Vec<CauseTime>,
    /// By number.
    pub cpus: Vec<Cpu>,
    /// Sleeps for a time, a second, of each measured process; the most frequent sleeper first.
    pub sleeps: Vec<(String, f64)>,
    /// Packets handled.
    pub packets: u64,
    /// The share of the packets that was lost, from 0 to 1.
    pub lost: f64,
    /// The share of the samples that found a ring full, from 0 to 1.
    pub lost_samples: f64,
}

/// The time of one cause.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseTime {
    pub name: &'static str,
    pub ns: f64,
    /// With the time of each, the largest first.
    pub functions: Vec<(Function, f64)>,
}

/// A function that took time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    pub name: String,
    /// Its caller, for functions that many share.
    pub caller: Option<String>,
    /// The process, outside the kernel.
    pub process: Option<String>,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.process, &self.caller) {
            (Some(process), _) => write!(f, "{} of {process}", self.name),
            (None, Some(caller)) => write!(f, "{} for {caller}", self.name),
            (None, None) => f.write_str(&self.name),
        }
    }
}

/// Work of one CPU. Shares are of the elapsed time, from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// The share that it was not idle.
    pub busy: f64,
    /// The share of receive softirqs.
    pub receive: f64,
    /// The share of a sender that is not measured.
    pub sender: f64,
    /// The share of programs without a part in the measurement, and of the sampling.
    pub others: f64,
    /// The share of empty polling.
    pub spinning: f64,
    /// Packets its softirqs handled.
    pub processed: u64,
    /// Packets that found its backlog full.
    pub dropped: u64,
    /// Times that its receive softirq ran out of budget.
    pub squeezed: u64,
    /// Context switches.
    pub switches: u64,
}

impl Findings {
    /// Adds stacks of `seconds` seconds up. `cpus` has the kernel's counters of each CPU.
    pub fn of(stacks: &[NamedStack], cpus: Vec<Cpu>, seconds: f64) -> Self {
        let mut causes: HashMap<&str, HashMap<Function, f64>> = HashMap::new();
        let mut sleeps: HashMap<String, f64> = HashMap::new();
        let mut findings = Self { seconds, cpus, ..Self::default() };
        for stack in stacks {
            let cpu = findings.cpus.iter_mut().find(|cpu| cpu.cpu == stack.cpu);
            if stack.event == EventKind::Switch {
                if let Some(cpu) = cpu {
                    cpu.switches += stack.weight as u64;
                }
                if stack.part == Part::Measured && causes::is_sleep(&stack.chain) {
                    *sleeps.entry(stack.process.clone()).or_default() += stack.weight / seconds;
                }
                continue;
            }
            let (cause, function) = cause(stack);
            if let Some(cpu) = cpu {
                cpu.add(stack, cause, stack.weight / 1e9 / seconds);
            }
            *causes.entry(cause).or_default().entry(function).or_default() += stack.weight;
        }
        let causes = causes.into_iter().map(|(name, functions)| {
            let functions = largest_first(functions);
            CauseTime { name, ns: functions.iter().map(|(_, ns)| ns).sum(), functions }
        });
        findings.causes = causes.collect();
        findings.causes.sort_by(|a, b| b.ns.total_cmp(&a.ns));
        findings.sleeps = largest_first(sleeps);
        findings
    }

    /// The time of measured work, in ns: without idling and spinning, senders, others, and the sampling.
    pub fn own_ns(&self) -> f64 {
        self.causes.iter().filter(|it| causes::is_measured(it.name)).map(|it| it.ns).sum()
    }

    /// A cause's share of that time, from 0 to 1.
    pub fn share(&self, cause: &str) -> f64 {
        self.cause(cause).map_or(0.0, |it| it.ns / self.own_ns().max(f64::MIN_POSITIVE))
    }

    /// The time of a cause.
    pub fn cause(&self, name: &str) -> Option<&CauseTime> {
        self.causes.iter().find(|it| it.name == name)
    }

    /// A kernel counter, added up over all CPUs.
    pub fn total(&self, counter: impl Fn(&Cpu) -> u64) -> u64 {
        self.cpus.iter().map(counter).sum()
    }

    /// Returns the CPU that receives at least nine tenths of the packets: by the kernel's counters or, if XDP
    /// handles packets before they are counted, by time.
    pub fn only_receiver(&self) -> Option<&Cpu> {
        let are_counted = self.are_counted();
        let part = |cpu: &Cpu| if are_counted { cpu.came() as f64 } else { cpu.receive };
        let all: f64 = self.cpus.iter().map(part).sum();
        self.cpus.iter().find(|cpu| part(cpu) > 0.9 * all)
    }

    /// Returns the share of the packets that CPUs handled and a slow program lost; 0 if the kernel's counters
    /// do not include the packets.
    pub fn lost_behind(&self) -> f64 {
        let handled = self.total(|cpu| cpu.processed) as f64 / self.packets.max(1) as f64;
        let arrived = 1.0 - self.lost;
        if self.are_counted() { (handled.min(1.0) - arrived).max(0.0) } else { 0.0 }
    }

    /// Returns true if the kernel's counters include the packets: those of XDP are not in them.
    fn are_counted(&self) -> bool {
        self.total(Cpu::came) > self.packets / 2
    }

    /// The causes for a report, without idling and the sampling: shares of the time in which the CPUs were
    /// not idle.
    pub fn report(&self) -> Vec<Cause> {
        let reported = self.causes.iter().filter(|it| ![IDLE, SAMPLING].contains(&it.name));
        let whole: f64 = reported.clone().map(|it| it.ns).sum();
        let packets = self.packets.max(1) as f64;
        let cause = |it: &CauseTime| {
            let functions = it.functions.iter().take(MAX_FUNCTIONS);
            let functions = functions.map(|(function, _)| function.to_string()).collect();
            Cause { name: it.name.into(), share: it.ns / whole, ns: it.ns / packets, functions }
        };
        reported.map(cause).collect()
    }
}

fn largest_first<T>(values: HashMap<T, f64>) -> Vec<(T, f64)> {
    let mut values: Vec<(T, f64)> = values.into_iter().collect();
    values.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    values
}

impl Cpu {
    /// Returns the share of its time spent on measured work.
    pub fn own(&self) -> f64 {
        self.busy - self.sender - self.others - self.spinning
    }

    /// Returns the share of its time that is free for more packets. Softirqs run before other programs and
    /// before spinning threads.
    pub fn spare(&self) -> f64 {
        1.0 - self.own() - self.sender
    }

    /// Returns the packets that arrived at it, handled or dropped.
    pub fn came(&self) -> u64 {
        self.processed + self.dropped
    }

    fn add(&mut self, stack: &NamedStack, cause: &str, share: f64) {
        self.busy += if cause == IDLE { 0.0 } else { share };
        match cause {
            SENDER => self.sender += share,
            OTHERS | SAMPLING => self.others += share,
            SPINNING => self.spinning += share,
            _ if causes::receives(&stack.chain) => self.receive += share,
            _ => {}
        }
    }
}

/// Returns the cause of a stack's time, and the function to report.
fn cause(stack: &NamedStack) -> (&'static str, Function) {
    let name = causes::readable(&stack.chain[0]).into_owned();
    let cause = match stack.kernel {
        true => causes::of_kernel(stack.chain.iter().map(String::as_str)),
        false => causes::of_user(&name),
    };
    // Many callers share these functions, so the first caller with another cause decides.
    let is_shared = stack.kernel && [COPYING, LOCKS, CHECKSUMS, TIMEKEEPING].contains(&cause);
    let other = |name: &&String| is_shared && causes::of_kernel([name.as_str()]) != cause;
    let caller = stack.chain.iter().skip(1).find(other);
    let caller = caller.map(|name| causes::readable(name).into_owned());
    let process = (!stack.kernel).then(|| stack.process.clone());
    let cause = match stack.part {
        _ if cause == IDLE => IDLE,
        Part::Measured => cause,
        Part::Sender => SENDER,
        Part::Other => OTHERS,
        Part::Sampling => SAMPLING,
    };
    (cause, Function { name, caller, process })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A sample of measured work in the kernel, of `ms` ms; `chain` is "leaf;caller;…".
    pub fn kernel(cpu: u32, chain: &str, ms: f64) -> NamedStack {
        let chain = chain.split(';').map(str::to_owned).collect();
        let (event, process, part) = (EventKind::Time, "sluice".into(), Part::Measured);
        NamedStack { event, cpu, process, part, kernel: true, chain, weight: ms * 1e6 }
    }

    /// A sample of measured work in a program.
    pub fn program(cpu: u32, function: &str, ms: f64) -> NamedStack {
        NamedStack { kernel: false, ..kernel(cpu, function, ms) }
    }

    /// Creates a sample of a thread that left its CPU there this many times.
    pub fn switch(chain: &str, times: f64) -> NamedStack {
        NamedStack { event: EventKind::Switch, weight: times, ..kernel(0, chain, 0.0) }
    }

    /// `stack` with another part.
    pub fn of(part: Part, stack: NamedStack) -> NamedStack {
        NamedStack { part, ..stack }
    }

    /// Sums samples of one second on two CPUs, with 1000 packets handled.
    pub fn findings(stacks: &[NamedStack]) -> Findings {
        let cpus = [0, 1].map(|cpu| Cpu { cpu, ..Cpu::default() });
        Findings { packets: 1000, ..Findings::of(stacks, cpus.to_vec(), 1.0) }
    }

    const SOFTIRQ: &str = "veth_poll;__napi_poll;net_rx_action;handle_softirqs";

    #[test]
    fn time_adds_up_by_cause_cpu_and_part() {
        let idle = "pv_native_safe_halt;default_idle;do_idle";
        let findings = findings(&[
            kernel(0, SOFTIRQ, 300.0),
            of(Part::Sender, kernel(0, "xdp_test_run_batch", 600.0)),
            of(Part::Sampling, program(0, "profile", 10.0)),
            kernel(1, idle, 500.0),
            program(1, "count::run", 100.0),
            program(1, "memmove", 200.0),
        ]);
        let report = findings.report();
        let names: Vec<&str> = report.iter().map(|cause| cause.name.as_str()).collect();
        assert_eq!(names, ["sender", "driver and NAPI", "copying", "the program itself"]);
        assert_eq!((report[1].share, report[1].ns), (0.25, 300e3));
        assert_eq!(report[2].functions, ["memmove of sluice"]);
        assert_eq!(findings.own_ns(), 600e6);
        assert_eq!(findings.share(COPYING), 1.0 / 3.0);
        let [first, second] = &findings.cpus[..] else { panic!("two CPUs") };
        assert_eq!((first.receive, first.sender), (0.3, 0.6));
        assert!((first.busy - 0.91).abs() < 1e-9 && (second.busy - 0.3).abs() < 1e-9);
    }

    #[test]
    fn a_copy_names_its_caller() {
        let chain = "memcpy_orig;skb_copy_bits;tpacket_rcv;__netif_receive_skb_core";
        let findings = findings(&[kernel(0, chain, 1.0)]);
        assert_eq!(findings.report()[0].functions, ["memcpy_orig for tpacket_rcv"]);
    }

    #[test]
    fn no_samples_add_up_to_no_causes() {
        let findings = findings(&[]);
        assert!(findings.report().is_empty());
        assert_eq!(findings.share(COPYING), 0.0);
    }

    #[test]
    fn only_sleeps_of_measured_processes_count() {
        let sleep = "__schedule;schedule;do_nanosleep;hrtimer_nanosleep";
        let other = of(Part::Sender, switch(sleep, 7.0));
        let findings = findings(&[switch(sleep, 5.0), other]);
        assert_eq!(findings.sleeps, [("sluice".to_owned(), 5.0)]);
    }

    #[test]
    fn the_part_of_a_sample_follows_from_its_process_and_from_softirqs() {
        let (idle, job, sender, rustc, perf) = (0, 7, 8, 9, 10);
        let parts = |measured| Participants { measured, sender: vec![sender] };
        let (of_a_job, of_the_kernel) = (parts(vec![job]), parts(vec![]));
        let softirq = ["net_rx_action".to_owned()];
        let live = ["xdp_test_run_batch".to_owned()];
        let rows: &[(&str, u32, &[String], &Participants, Part)] = &[
            ("the job", job, &[], &of_a_job, Part::Measured),
            ("its live frames", job, &live, &of_a_job, Part::Measured),
            ("live frames of the sender", sender, &live, &of_a_job, Part::Sender),
            ("another program", rustc, &[], &of_a_job, Part::Other),
            (
                "another, where the kernel alone is measured",
                rustc,
                &[],
                &of_the_kernel,
                Part::Other,
            ),
            ("a softirq that interrupts it", rustc, &softirq, &of_the_kernel, Part::Measured),
            ("the sender", sender, &[], &of_a_job, Part::Sender),
            ("an idle CPU", idle, &[], &of_the_kernel, Part::Measured),
            ("the sampler", perf, &[], &of_a_job, Part::Sampling),
        ];
        for (sentence, process, chain, participants, expected) in rows {
            assert_eq!(part_of(*process, chain, perf, participants), *expected, "{sentence}");
        }
    }
}
