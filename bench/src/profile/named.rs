//! Names the functions of samples, and assigns each sample to measured work, sender or others.

use std::collections::HashMap;

use super::Participants;
use super::collect::{Process, Recording, Stack};
use super::names::{self, Files, Kernel};
use super::perf::{EventKind, SampleClock};
use super::table::{self, Stage};

/// A place that a CPU was at, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeLocation {
    pub what: EventKind,
    pub cpu: u32,
    /// The process's name.
    pub process: String,
    pub part: Part,
    pub kernel: bool,
    /// The function, then its callers. Outside the kernel there is only the function.
    pub chain: Vec<String>,
    /// For how long, in ns; of a switch how often.
    pub weight: f64,
}

/// Part of a sample's process in the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is what is measured.
    Measured,
    /// It makes the packets.
    Sender,
    /// It has none.
    Other,
    /// It measures.
    Sampling,
}

/// Gives every place of a recording its name. `busy_ns` says for each CPU how long it was not idle:
/// cycles are turned into time by that.
pub fn named(
    recording: &Recording,
    participants: &Participants,
    busy_ns: &HashMap<u32, f64>,
) -> Vec<CodeLocation> {
    let mut files = Files::new();
    let scale = scale(recording, busy_ns);
    let place = |(stack, weight): (&Stack, &u64)| {
        let process = &recording.processes[&stack.process];
        let mut chain: Vec<String> = Vec::new();
        if stack.kernel {
            chain.extend(stack.chain.iter().map(|address| in_kernel(&recording.kernel, *address)));
        }
        let part = part(stack.process, &chain, participants);
        if !stack.kernel {
            chain.push(match part {
                // Names in others' programs help nobody, and some of their files are large.
                Part::Other => "its code".into(),
                _ => in_program(process, stack.chain[0], &mut files),
            });
        }
        let ns = match stack.what {
            EventKind::Time => scale.get(&stack.cpu).copied().unwrap_or(1.0),
            EventKind::Switch => 1.0,
        };
        CodeLocation {
            what: stack.what,
            cpu: stack.cpu,
            process: process.name.clone(),
            part,
            kernel: stack.kernel,
            chain,
            weight: *weight as f64 * ns,
        }
    };
    recording.stacks.iter().map(place).collect()
}

/// By CPU, how many ns a unit of the clock is.
fn scale(recording: &Recording, busy_ns: &HashMap<u32, f64>) -> HashMap<u32, f64> {
    let mut cycles: HashMap<u32, f64> = HashMap::new();
    if recording.clock == SampleClock::Cycles {
        for (stack, weight) in &recording.stacks {
            if stack.what == EventKind::Time {
                *cycles.entry(stack.cpu).or_default() += *weight as f64;
            }
        }
    }
    let ns = |(cpu, cycles): (u32, f64)| Some((cpu, busy_ns.get(&cpu)? / cycles));
    cycles.into_iter().filter_map(ns).collect()
}

/// Assigns a sample to a part. A softirq interrupts any process; its work counts as measured.
fn part(process: u32, chain: &[String], participants: &Participants) -> Part {
    let stage = table::stage(chain.iter().map(String::as_str));
    let listed = |list: &[u32]| list.contains(&process);
    let measured = |list: &Vec<u32>| process == 0 || listed(list);
    match stage {
        Stage::Receive => Part::Measured,
        Stage::LiveFrames if participants.live_frames_send => Part::Sender,
        _ if process == std::process::id() => Part::Sampling,
        _ if listed(&participants.sender) => Part::Sender,
        _ if participants.measured.as_ref().is_none_or(measured) => Part::Measured,
        _ => Part::Other,
    }
}

fn in_kernel(kernel: &Kernel, address: u64) -> String {
    kernel.name(address).map_or_else(|| "[unknown]".into(), |name| names::plain(name).to_owned())
}

/// A function of a program; where its file tells no names, the file's.
fn in_program(process: &Process, address: u64, files: &mut Files) -> String {
    let found = process.mappings.iter().find_map(|map| Some((&map.path, map.offset_of(address)?)));
    let Some((path, offset)) = found else { return "[unknown]".into() };
    let base = || path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    match files.get(path).name(offset) {
        Some(name) => names::plain(name).to_owned(),
        None if path.is_absolute() => format!("[{}]", base()),
        None => base(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_work_it_is_follows_from_the_process_and_from_what_it_interrupted() {
        let (idle, job, sender, rustc) = (0, 7, 8, 9);
        let parts =
            |measured| Participants { measured, sender: vec![sender], live_frames_send: true };
        let of_a_job = parts(Some(vec![job]));
        let of_the_kernel = parts(Some(vec![]));
        let of_all = parts(None);
        let softirq = ["net_rx_action".to_owned()];
        let rows: &[(&str, u32, &[String], &Participants, Part)] = &[
            ("the job", job, &[], &of_a_job, Part::Measured),
            ("another program", rustc, &[], &of_a_job, Part::Other),
            (
                "another, where the kernel alone is measured",
                rustc,
                &[],
                &of_the_kernel,
                Part::Other,
            ),
            ("another, where all are", rustc, &[], &of_all, Part::Measured),
            ("a softirq that interrupts it", rustc, &softirq, &of_the_kernel, Part::Measured),
            ("the sender", sender, &[], &of_all, Part::Sender),
            ("an idle CPU", idle, &[], &of_the_kernel, Part::Measured),
            ("this process", std::process::id(), &[], &of_all, Part::Sampling),
        ];
        for (sentence, process, chain, participants, expected) in rows {
            assert_eq!(part(*process, chain, participants), *expected, "{sentence}");
        }
    }
}
