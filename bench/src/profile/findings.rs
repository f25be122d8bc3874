//! Sums of samples: time by cause, time by CPU, and waits.

use std::collections::HashMap;

use super::named::{CodeLocation, Part};
use super::perf::EventKind;
use super::table::{self, Cause, Stage, Wait};
use crate::measurement;

/// Functions that a report names for each cause.
const FUNCTIONS: usize = 5;

/// All that advice is given on.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The largest first.
    pub causes: Vec<CauseShare>,
    /// By number.
    pub cpus: Vec<Cpu>,
    /// The most frequent first.
    pub waits: Vec<Waits>,
    /// How many packets were handled.
    pub packets: u64,
    /// The share of the packets that was lost, from 0 to 1.
    pub lost: f64,
    /// The share of the samples that found a ring full, from 0 to 1.
    pub lost_samples: f64,
}

/// One cause's part.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseShare {
    pub cause: Cause,
    pub ns: f64,
    /// The largest first.
    pub functions: Vec<Function>,
}

/// A function's part in a cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    pub name: String,
    /// Its caller, for functions that many share.
    pub caller: Option<String>,
    /// The process, outside the kernel.
    pub process: Option<String>,
    pub ns: f64,
}

impl std::fmt::Display for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    /// It had something to do.
    pub busy: f64,
    /// It received: softirqs that handle packets.
    pub receive: f64,
    /// It worked for a sender that is not measured.
    pub sender: f64,
    /// It worked for programs without a part in it, and for this sampling.
    pub others: f64,
    /// It looked again and again whether there is something.
    pub spinning: f64,
    /// Packets its softirqs handled.
    pub processed: u64,
    /// Packets that found its backlog full.
    pub dropped: u64,
    /// Times that its receive softirq ran out of budget.
    pub squeezed: u64,
    /// Times that it went from one thread to another.
    pub switches: u64,
}

/// Why threads of a process left their CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    /// The process's name.
    pub process: String,
    /// Why.
    pub why: Wait,
    /// How often a second.
    pub per_second: f64,
}

impl Findings {
    /// Adds places up. `cpus` has what the kernel has counted for each; `seconds` is how long that
    /// took.
    pub fn of(places: &[CodeLocation], cpus: Vec<Cpu>, seconds: f64) -> Self {
        let mut causes: HashMap<Cause, HashMap<Key, f64>> = HashMap::new();
        let mut waits: HashMap<(String, Wait), f64> = HashMap::new();
        let mut findings = Self { cpus, ..Self::default() };
        for place in places {
            match place.what {
                EventKind::Switch => {
                    if let Some(wait) = wait(place) {
                        *waits.entry(wait).or_default() += place.weight / seconds;
                    }
                }
                EventKind::Time => {
                    let (cause, key) = cause(place);
                    let share = place.weight / 1e9 / seconds;
                    if let Some(cpu) = findings.cpus.iter_mut().find(|cpu| cpu.cpu == place.cpu) {
                        cpu.add(place, cause, share);
                    }
                    *causes.entry(cause).or_default().entry(key).or_default() += place.weight;
                }
            }
        }
        findings.causes = causes.into_iter().map(found).collect();
        findings.causes.sort_by(|a, b| b.ns.total_cmp(&a.ns));
        let waits = waits.into_iter();
        findings.waits =
            waits.map(|((process, why), per_second)| Waits { process, why, per_second }).collect();
        findings.waits.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
        findings
    }

    /// Time of what is measured, in ns: without idling and spinning, senders, others, and the
    /// sampling.
    pub fn own_ns(&self) -> f64 {
        self.causes.iter().filter(|found| found.cause.is_own()).map(|found| found.ns).sum()
    }

    /// A cause's share of that time, from 0 to 1.
    pub fn share(&self, cause: Cause) -> f64 {
        let ns = self.found(cause).map_or(0.0, |found| found.ns);
        let own = self.own_ns();
        if own > 0.0 { ns / own } else { 0.0 }
    }

    /// A cause's part, if it has any.
    pub fn found(&self, cause: Cause) -> Option<&CauseShare> {
        self.causes.iter().find(|found| found.cause == cause)
    }

    /// Packets that the kernel counted as they came, all CPUs together.
    pub fn came(&self) -> u64 {
        self.cpus.iter().map(Cpu::came).sum()
    }

    /// The CPU that all packets come to, but for a tenth at most; none where several share them. By the
    /// kernel's counts, or, where XDP deals with packets before they are counted, by time.
    pub fn alone(&self) -> Option<&Cpu> {
        let are_counted = self.are_counted();
        let part = |cpu: &Cpu| if are_counted { cpu.came() as f64 } else { cpu.receive };
        let all: f64 = self.cpus.iter().map(part).sum();
        self.cpus.iter().find(|cpu| part(cpu) > 0.9 * all)
    }

    /// The share of the packets that CPUs have handled and that are lost all the same: by a program that does
    /// not keep up with them. 0 where they are not counted.
    pub fn lost_behind(&self) -> f64 {
        let handled: u64 = self.cpus.iter().map(|cpu| cpu.processed).sum();
        let handled = (handled as f64 / self.packets.max(1) as f64).min(1.0);
        let arrived = 1.0 - self.lost;
        if self.are_counted() { (handled - arrived).max(0.0) } else { 0.0 }
    }

    /// Returns true if the kernel's counters include the packets: XDP's are not in them.
    fn are_counted(&self) -> bool {
        self.came() > self.packets / 2
    }

    /// The causes as a report has them, without idling and the sampling: shares of the time in which
    /// the CPUs were not idle.
    pub fn report(&self) -> Vec<measurement::Cause> {
        let reported = |found: &&CauseShare| !matches!(found.cause, Cause::Idle | Cause::Sampling);
        let whole: f64 = self.causes.iter().filter(reported).map(|found| found.ns).sum();
        let packets = self.packets.max(1) as f64;
        let one = |found: &CauseShare| measurement::Cause {
            name: found.cause.name().into(),
            share: found.ns / whole,
            ns: found.ns / packets,
            functions: found.functions.iter().take(FUNCTIONS).map(Function::to_string).collect(),
        };
        self.causes.iter().filter(reported).map(one).collect()
    }
}

impl Cpu {
    /// The share of its time that it worked for what is measured.
    pub(super) fn own(&self) -> f64 {
        self.busy - self.sender - self.others - self.spinning
    }

    /// The share of its time that it has for more packets: softirqs come before other programs, and before
    /// threads that spin.
    pub(super) fn spare(&self) -> f64 {
        1.0 - self.own() - self.sender
    }

    /// Packets that came to it, handled or not.
    pub(super) fn came(&self) -> u64 {
        self.processed + self.dropped
    }

    fn add(&mut self, place: &CodeLocation, cause: Cause, share: f64) {
        if cause != Cause::Idle {
            self.busy += share;
        }
        match cause {
            Cause::Sender => self.sender += share,
            Cause::Others | Cause::Sampling => self.others += share,
            Cause::Spinning => self.spinning += share,
            _ if place.stage() == Stage::Receive => self.receive += share,
            _ => {}
        }
    }
}

impl CodeLocation {
    fn stage(&self) -> Stage {
        table::stage(self.chain.iter().map(String::as_str))
    }
}

/// A function's name, its caller and its process, as in [`Function`].
type Key = (String, Option<String>, Option<String>);

/// Returns the cause of a sample's time, and the function to report.
fn cause(place: &CodeLocation) -> (Cause, Key) {
    let name = table::readable(&place.chain[0]).into_owned();
    let (cause, caller) = if place.kernel {
        let (cause, _) = table::of_kernel(place.chain.iter().map(String::as_str));
        (cause, caller(cause, &place.chain))
    } else {
        (table::of_user(&name), None)
    };
    let cause = match place.part {
        _ if cause == Cause::Idle => cause,
        Part::Measured => cause,
        Part::Sender => Cause::Sender,
        Part::Other => Cause::Others,
        Part::Sampling => Cause::Sampling,
    };
    let process = (!place.kernel).then(|| place.process.clone());
    (cause, (name, caller, process))
}

/// Returns the caller of a shared function: the first one of another cause.
fn caller(cause: Cause, chain: &[String]) -> Option<String> {
    if !matches!(cause, Cause::Copying | Cause::Locks | Cause::Checksums | Cause::Timekeeping) {
        return None;
    }
    let other = |name: &&String| table::of_kernel([name.as_str()]).0 != cause;
    chain.iter().skip(1).find(other).map(|name| table::readable(name).into_owned())
}

fn found((cause, functions): (Cause, HashMap<Key, f64>)) -> CauseShare {
    let mut functions: Vec<Function> = functions
        .into_iter()
        .map(|((name, caller, process), ns)| Function { name, caller, process, ns })
        .collect();
    functions.sort_by(|a, b| b.ns.total_cmp(&a.ns));
    CauseShare { cause, ns: functions.iter().map(|function| function.ns).sum(), functions }
}

/// Why a thread of what is measured left its CPU.
fn wait(place: &CodeLocation) -> Option<(String, Wait)> {
    let ours = place.part == Part::Measured && place.process != "idle";
    let why = || table::of_switch(place.chain.iter().map(String::as_str));
    ours.then(|| (place.process.clone(), why()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A sample of measured work in the kernel, of `ms` ms; `chain` is "leaf;caller;…".
    pub fn kernel(cpu: u32, chain: &str, ms: f64) -> CodeLocation {
        let chain = chain.split(';').map(str::to_owned).collect();
        let (what, process, part) = (EventKind::Time, "sluice".into(), Part::Measured);
        CodeLocation { what, cpu, process, part, kernel: true, chain, weight: ms * 1e6 }
    }

    /// A sample of measured work in a program.
    pub fn program(cpu: u32, function: &str, ms: f64) -> CodeLocation {
        CodeLocation { kernel: false, ..kernel(cpu, function, ms) }
    }

    /// A thread that left its CPU there, so often.
    pub fn switch(chain: &str, times: f64) -> CodeLocation {
        CodeLocation { what: EventKind::Switch, weight: times, ..kernel(0, chain, 0.0) }
    }

    /// `place` with another part.
    pub fn of(part: Part, place: CodeLocation) -> CodeLocation {
        CodeLocation { part, ..place }
    }

    /// Sums samples of one second on two CPUs, with 1000 packets handled.
    pub fn findings(places: &[CodeLocation]) -> Findings {
        let cpus = [0, 1].map(|cpu| Cpu { cpu, ..Cpu::default() });
        Findings { packets: 1000, ..Findings::of(places, cpus.to_vec(), 1.0) }
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
        assert_eq!(findings.share(Cause::Copying), 1.0 / 3.0);
        let [first, second] = &findings.cpus[..] else { panic!("two CPUs") };
        assert_eq!((first.receive, first.sender), (0.3, 0.6));
        assert!((first.busy - 0.91).abs() < 1e-9 && (second.busy - 0.3).abs() < 1e-9);
    }

    #[test]
    fn a_copy_names_who_asked_for_it() {
        let chain = "memcpy_orig;skb_copy_bits;tpacket_rcv;__netif_receive_skb_core";
        let findings = findings(&[kernel(0, chain, 1.0)]);
        assert_eq!(findings.report()[0].functions, ["memcpy_orig for tpacket_rcv"]);
    }

    #[test]
    fn nothing_adds_up_to_nothing() {
        let findings = findings(&[]);
        assert!(findings.report().is_empty());
        assert_eq!(findings.share(Cause::Copying), 0.0);
    }

    #[test]
    fn only_what_is_measured_waits() {
        let sleep = "__schedule;schedule;do_nanosleep;hrtimer_nanosleep";
        let other = of(Part::Sender, switch(sleep, 7.0));
        let findings = findings(&[switch(sleep, 5.0), other]);
        let waits = Waits { process: "sluice".into(), why: Wait::Sleep, per_second: 5.0 };
        assert_eq!(findings.waits, [waits]);
    }
}
