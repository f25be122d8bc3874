//! Samples all CPUs by perf(1): what they run, and where threads leave them.
//!
//! The timer `cpu-clock` works on every machine. Code with interrupts off is sampled where it enables them
//! again: as a rule in the same function, or in its caller.

use std::collections::HashMap;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use sluicegate::error::{Error, Result};
use tempfile::{NamedTempFile, TempPath};

/// Events and samples a second and CPU. A round number might synchronize with periodic work. If there are fewer
/// switches, every one is sampled, so that a thread that rarely sleeps is visible beside threads that switch
/// often.
const EVENTS: &str = "cpu-clock/freq=997/,context-switches/freq=5000/";

/// The event of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A CPU ran this.
    Time,
    /// A thread left a CPU here.
    Switch,
}

/// A sampled call chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    pub event: EventKind,
    pub cpu: u32,
    pub process: u32,
    /// True if the CPU was in the kernel.
    pub kernel: bool,
    /// The function, then its callers in the kernel. Outside the kernel it is the function alone.
    pub chain: Vec<String>,
    /// Its time in ns, or the number of switches.
    pub weight: u64,
}

/// All samples.
#[derive(Debug, Default)]
pub struct Recording {
    pub stacks: Vec<Stack>,
    /// The kernel's names of the processes at the end, of at most 15 bytes. perf has those of threads.
    pub names: HashMap<u32, String>,
    /// The process that sampled.
    pub sampler: u32,
    /// Samples that found a buffer full.
    pub lost: u64,
}

/// Sampling in progress. Ends when dropped.
#[derive(Debug)]
pub struct Sampling {
    perf: Child,
    file: TempPath,
}

impl Sampling {
    /// Starts to sample all CPUs.
    ///
    /// # Errors
    /// perf is not installed or fails: a missing privilege, or a kernel without the events; the error has the
    /// remedy.
    pub fn start() -> Result<Self> {
        let file = NamedTempFile::new().map_err(failed)?.into_temp_path();
        // perf samples as long as its command runs: a shell that prints a line, and ends with its standard
        // input, so that perf ends with this process in any case.
        let mut perf = Command::new("perf")
            .args(["record", "--quiet", "--all-cpus", "-g", "--no-buildid", "--no-buildid-cache"])
            .args(["--event", EVENTS, "--output"])
            .arg(&file)
            .args(["/bin/sh", "-c", "echo; read -r line || :"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal's signals are for this process, which then stops perf.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let started = perf.stdout.as_mut().map(|output| output.read_exact(&mut [0]));
        match started {
            Some(Ok(())) => Ok(Self { perf, file }),
            _ => {
                let said = perf.wait_with_output().map_err(failed)?.stderr;
                Err(refusal(&said))
            }
        }
    }

    /// Stops, and returns the samples.
    ///
    /// # Errors
    /// perf could not record, or cannot read what it recorded.
    pub fn stop(mut self) -> Result<Recording> {
        let names = names();
        drop(self.perf.stdin.take());
        let mut said = Vec::new();
        let _ = self.perf.stderr.take().map(|mut stderr| stderr.read_to_end(&mut said));
        if !self.perf.wait().map_err(failed)?.success() {
            return Err(refusal(&said));
        }
        let script = Command::new("perf")
            .args(["script", "--no-inline", "--show-lost-events"])
            .args(["--fields", "pid,cpu,event,period,ip,sym,dso", "--input"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .output()
            .map_err(failed)?;
        if !script.status.success() {
            return Err(refusal(&script.stderr));
        }
        let text = String::from_utf8_lossy(&script.stdout);
        Ok(Recording { names, sampler: self.perf.id(), ..Recording::parse(&text) })
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        drop(self.perf.stdin.take());
        let _ = self.perf.wait();
    }
}

/// Returns the names of all processes.
fn names() -> HashMap<u32, String> {
    let name = |process: DirEntry| {
        let number = process.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some((number, name.trim_end().to_owned()))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(name).collect()
}

/// Returns the error of a perf that fails, by what it printed.
fn refusal(said: &[u8]) -> Error {
    let said = String::from_utf8_lossy(said);
    // Ubuntu's perf is a script that starts the one for the running kernel.
    if said.contains("perf not found for kernel") {
        return failed(ErrorKind::NotFound.into());
    }
    let reason = said.lines().map(str::trim).find(|line| !["", "Error:"].contains(line));
    Error::Unsupported {
        feature: format!("sampling by perf ({})", reason.unwrap_or("it ended")),
        remedy: "run it with sudo, or measure with --no-causes".into(),
    }
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::Unsupported {
            feature: "perf, which samples all CPUs".into(),
            remedy: "install linux-perf (on Ubuntu linux-tools-$(uname -r)), or measure with --no-causes"
                .into(),
        },
        _ => Error::start("perf", error),
    }
}

impl Recording {
    /// Parses the output of `perf script`: for each sample a line, then one for each function of its chain.
    fn parse(text: &str) -> Self {
        let mut recording = Self::default();
        for line in text.lines() {
            if let Some((_, lost)) = line.split_once("PERF_RECORD_LOST lost ") {
                recording.lost += lost.trim().parse::<u64>().unwrap_or(0);
            } else if let Some(stack) = sample(line) {
                recording.stacks.push(stack);
            } else if let (Some(stack), Some(function)) =
                (recording.stacks.last_mut(), function(line))
            {
                stack.add(function);
            }
        }
        recording.stacks.retain(|stack| !stack.chain.is_empty());
        recording
    }
}

/// Parses a line such as ` 4493 [000]    1003009   cpu-clock/freq=997/: `.
fn sample(line: &str) -> Option<Stack> {
    let mut words = line.split_ascii_whitespace();
    let process = words.next()?.parse().ok()?;
    let cpu = words.next()?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
    let weight = words.next()?.parse().ok()?;
    let is_time = words.next()?.starts_with("cpu-clock");
    let event = if is_time { EventKind::Time } else { EventKind::Switch };
    Some(Stack { event, cpu, process, kernel: false, chain: Vec::new(), weight })
}

/// Parses a line such as `  ffffffff821fb643 schedule ([kernel.kallsyms])`: true for the kernel, and the name.
/// A function without a name is called by its file.
fn function(line: &str) -> Option<(bool, String)> {
    let (address, rest) = line.trim_start().split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (name, file) = rest.trim_end_matches(" (deleted))").rsplit_once(" (")?;
    let base = || file.trim_end_matches(')').rsplit('/').next().unwrap_or_default();
    let name = match name {
        "[unknown]" if base() == "unknown" => name.to_owned(),
        "[unknown]" => format!("[{}]", base().trim_matches(['[', ']'])),
        _ => without_suffix(name).to_owned(),
    };
    // Kernels have the upper half of the addresses.
    Some((address >> 63 != 0, name))
}

impl Stack {
    /// Adds a function, or a caller in the kernel. Few programs are built to provide callers.
    fn add(&mut self, (kernel, name): (bool, String)) {
        if self.chain.is_empty() {
            self.kernel = kernel;
            self.chain.push(name);
        } else if self.kernel && kernel {
            self.chain.push(name);
        }
    }
}

/// Returns a function's name without the suffixes of functions that a compiler split, cloned or moved.
fn without_suffix(name: &str) -> &str {
    let suffixes = [".isra.", ".constprop.", ".part.", ".cold", ".llvm."];
    let end = suffixes.iter().filter_map(|suffix| name.find(suffix)).min();
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
 4493 [000]          3 context-switches/freq=5000/: 
\tffffffff821fb643 schedule ([kernel.kallsyms])
\tffffffff816db017 poll_schedule_timeout.constprop.0 ([kernel.kallsyms])
\t          167adf __poll (/usr/lib/x86_64-linux-gnu/libc.so.6)

:-1    -1 [001]          PERF_RECORD_LOST lost 7
 4319 [001]    1003009         cpu-clock/freq=997/: 
\t          163961 <a b as c::D>::e (/opt/a b/sluice (deleted))
\t            90c0 [unknown] ([unknown])

    0 [001]    1003009         cpu-clock/freq=997/: 
\tffffffffc02aa111 bpf_prog_6deef7357e7b4530_sluice_claim (bpf_prog_6deef7357e7b4530_sluice_claim)

    7 [000]    1003009         cpu-clock/freq=997/: 
\t    7ffd1a5f3c2d [unknown] ([vdso])

    8 [000]    1003009         cpu-clock/freq=997/: 

    9 [000]    1003009         cpu-clock/freq=997/: 
\t          163961 [unknown] (/usr/lib/libdpdk.so (deleted))
";

    #[test]
    fn samples_have_their_functions_and_callers_in_the_kernel() {
        let recording = Recording::parse(SCRIPT);
        assert_eq!(recording.lost, 7);
        let rows: [(u32, u32, bool, &[&str]); 5] = [
            (4493, 0, true, &["schedule", "poll_schedule_timeout"]),
            (4319, 1, false, &["<a b as c::D>::e"]),
            (0, 1, true, &["bpf_prog_6deef7357e7b4530_sluice_claim"]),
            (7, 0, false, &["[vdso]"]),
            (9, 0, false, &["[libdpdk.so]"]),
        ];
        assert_eq!(recording.stacks.len(), rows.len());
        for (stack, (process, cpu, kernel, chain)) in recording.stacks.iter().zip(rows) {
            assert_eq!((stack.process, stack.cpu, stack.kernel), (process, cpu, kernel));
            assert_eq!(stack.chain, chain);
        }
        let [switch, time, ..] = &recording.stacks[..] else { panic!("five stacks") };
        assert_eq!((switch.event, switch.weight), (EventKind::Switch, 3));
        assert_eq!((time.event, time.weight), (EventKind::Time, 1_003_009));
    }

    #[test]
    fn a_perf_that_is_missing_for_the_kernel_has_its_remedy() {
        let wrapper = b"WARNING: perf not found for kernel 6.8.0-45\n\n  You may need to install";
        let said = refusal(wrapper).to_string();
        assert!(said.contains("linux-tools-$(uname -r)") && !said.contains("sudo"), "{said}");
        let said = refusal(b"Error:\nNo permission to enable cpu-clock event.\n").to_string();
        assert!(said.contains("(No permission") && said.contains("sudo"), "{said}");
    }

    #[test]
    fn suffixes_of_compilers_are_left_out() {
        for (name, plain) in [
            ("memcpy", "memcpy"),
            ("veth_poll.isra.0", "veth_poll"),
            ("finish_task_switch.isra.0.cold", "finish_task_switch"),
            ("bpf_prog_6deef7357e7b4530_sluice_claim", "bpf_prog_6deef7357e7b4530_sluice_claim"),
        ] {
            assert_eq!(without_suffix(name), plain);
        }
    }
}
