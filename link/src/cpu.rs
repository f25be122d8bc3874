//! The network work of each CPU, from `/proc`.
//!
//! Sources: proc(5), and for `softnet_stat` net/core/net-procfs.c. Newer kernels write the CPU's number there
//! as the 13th word; without it, the lines are those of the online CPUs, in order. The counts are those of
//! the whole machine in every namespace.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use sluicegate_base::error::{Error, Result};

/// Counters of one CPU since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Its number.
    pub cpu: u32,
    /// Total time, in ticks (usually 1/100 s).
    pub total_ticks: u64,
    /// Idle time, including waits for a disk.
    pub idle_ticks: u64,
    /// Time spent in softirqs, where the kernel handles packets.
    pub softirq_ticks: u64,
    /// Receive softirqs run.
    pub net_rx: u64,
    /// Transmit softirqs run.
    pub net_tx: u64,
    /// Packets handled in softirqs.
    pub processed: u64,
    /// Packets dropped because the CPU's backlog was full (`net.core.netdev_max_backlog`).
    pub dropped: u64,
    /// Times that a receive softirq ran out of budget with packets left (`net.core.netdev_budget`).
    pub time_squeeze: u64,
}

/// Reads all CPUs' counters, by number.
///
/// # Errors
/// There is no `/proc`.
pub fn read() -> Result<Vec<CpuCounters>> {
    let stat = file("/proc/stat")?;
    let softirqs = file("/proc/softirqs")?;
    let softnet = file("/proc/net/softnet_stat")?;
    Ok(parse(&stat, &softirqs, &softnet))
}

fn file(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::path("read", Path::new(path), e))
}

fn parse(stat: &str, softirqs: &str, softnet: &str) -> Vec<CpuCounters> {
    let times = stat.lines().filter_map(parse_times);
    let mut cpus: BTreeMap<u32, CpuCounters> = times.map(|cpu| (cpu.cpu, cpu)).collect();
    parse_softirqs(softirqs, &mut cpus);
    parse_softnet(softnet, &mut cpus);
    cpus.into_values().collect()
}

/// Parses a line such as "cpu0 user nice system idle iowait irq softirq steal guest guest_nice"; the first
/// two include the guests' times.
fn parse_times(line: &str) -> Option<CpuCounters> {
    let mut words = line.split_ascii_whitespace();
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    Some(CpuCounters {
        cpu,
        total_ticks: ticks.iter().take(8).sum(),
        idle_ticks: at(3) + at(4),
        softirq_ticks: at(6),
        ..CpuCounters::default()
    })
}

/// Parses a table with a column for each CPU and a row for each kind of softirq.
fn parse_softirqs(text: &str, cpus: &mut BTreeMap<u32, CpuCounters>) {
    let mut lines = text.lines();
    let numbers: Vec<Option<u32>> = lines
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect();
    for line in lines {
        let Some((name, counts)) = line.split_once(':') else { continue };
        let receive = match name.trim() {
            "NET_RX" => true,
            "NET_TX" => false,
            _ => continue,
        };
        for (number, count) in numbers.iter().zip(counts.split_ascii_whitespace()) {
            let cpu = number.and_then(|number| cpus.get_mut(&number));
            if let (Some(cpu), Ok(count)) = (cpu, count.parse()) {
                *(if receive { &mut cpu.net_rx } else { &mut cpu.net_tx }) = count;
            }
        }
    }
}

/// Parses lines of hexadecimal words, 32 bits each.
fn parse_softnet(text: &str, cpus: &mut BTreeMap<u32, CpuCounters>) {
    let order: Vec<u32> = cpus.keys().copied().collect();
    for (line, in_order) in text.lines().zip(order.iter().map(Some).chain(std::iter::repeat(None)))
    {
        let words: Vec<u64> = line
            .split_ascii_whitespace()
            .map_while(|word| u64::from_str_radix(word, 16).ok())
            .collect();
        let [processed, dropped, time_squeeze, ..] = words[..] else { continue };
        let number = match words.get(12) {
            Some(number) => u32::try_from(*number).ok(),
            None => in_order.copied(),
        };
        if let Some(cpu) = number.and_then(|number| cpus.get_mut(&number)) {
            cpu.processed = processed;
            cpu.dropped = dropped;
            cpu.time_squeeze = time_squeeze;
        }
    }
}

/// A measurement of a thread's CPU usage: its wall clock and its CPU clock at the beginning.
#[derive(Clone, Copy, Debug)]
pub struct ThreadCpuUsage {
    wall: Duration,
    on_cpu: Duration,
}

impl ThreadCpuUsage {
    /// Begins to measure this thread.
    pub fn begin() -> Self {
        // The wall clock is read first here and last in `share`. So its span includes the CPU clock's, and no
        // share exceeds 1.
        let wall = time(ClockId::CLOCK_MONOTONIC);
        Self { wall, on_cpu: time(ClockId::CLOCK_THREAD_CPUTIME_ID) }
    }

    /// Returns the share until now, from 0 to 1. Call it in the same thread.
    pub fn share(&self) -> f64 {
        let on_cpu = time(ClockId::CLOCK_THREAD_CPUTIME_ID).saturating_sub(self.on_cpu);
        let wall = time(ClockId::CLOCK_MONOTONIC).saturating_sub(self.wall);
        // The clocks may still differ in speed by parts per million.
        (on_cpu.as_secs_f64() / wall.as_secs_f64().max(1e-9)).min(1.0)
    }
}

fn time(clock: ClockId) -> Duration {
    // These two clocks always exist.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Pins this thread to one CPU.
///
/// # Errors
/// The CPU does not exist, or a cpuset excludes it.
pub fn pin_thread(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    match set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        Err(Errno::EINVAL) => {
            let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
            let online = online.as_deref().map_or("unknown", str::trim);
            Err(Error::Usage(format!(
                "no CPU {cpu} to pin a thread to: online are {online}, and a cpuset may allow fewer"
            )))
        }
        pinned => {
            pinned.map_err(|error| Error::system("pin a thread to", format!("CPU {cpu}"), error))
        }
    }
}

/// Checks that a thread may run on a CPU: pins a thread that exits at once.
///
/// # Errors
/// As [`pin_thread`], or no thread can be started.
pub fn may_pin(cpu: usize) -> Result<()> {
    std::thread::Builder::new()
        .spawn(move || pin_thread(cpu))
        .map_err(|error| Error::start("a thread for a while", error))?
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the number of possible CPUs, including those that are not plugged in. All CPU numbers are below
/// it.
///
/// # Errors
/// The system does not report it.
pub fn possible_cpus() -> Result<usize> {
    libbpf_rs::num_possible_cpus().map_err(|error| {
        Error::system("look up the CPUs of", "this host", std::io::Error::other(error))
    })
}

/// The CPUs that a thread may run on.
#[derive(Clone, Copy, Debug)]
pub struct Allowed(CpuSet);

impl Allowed {
    /// Returns the CPUs of this thread.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub fn here() -> Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0));
        set.map(Self).map_err(|error| Error::system("look up the CPUs of", "this thread", error))
    }

    /// Returns their numbers.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..CpuSet::count()).filter(|&cpu| self.0.is_set(cpu).unwrap_or(false))
    }

    /// Returns the number of CPUs.
    pub fn count(&self) -> usize {
        self.cpus().count()
    }

    /// Makes this thread run on all of these CPUs except one. If none is left, or the kernel refuses, the
    /// thread keeps its CPUs.
    pub fn but(&self, cpu: usize) {
        let mut set = self.0;
        if self.count() > 1 && set.unset(cpu).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "\
cpu  300 0 30 1700 70 1 12 5 7 0
cpu0 100 0 10 800 50 1 4 5 7 0
cpu2 200 0 20 900 20 0 8 0 0 0
intr 1 2 3
ctxt 4
";
    const SOFTIRQS: &str = "                    CPU0       CPU2
          HI:          9          9
      NET_TX:          4          5
      NET_RX:       3774       4590
";

    #[test]
    fn a_cpu_is_put_together_from_three_files() {
        let softnet = "\
00000020 0000000a 00000001 0 0 0 0 0 0 0 0 00000000 00000000 00000000 00000000
00001ed6 00000002 00000003 0 0 0 0 0 0 0 0 00000000 00000002 00000000 00000000
";
        let cpus = parse(STAT, SOFTIRQS, softnet);
        let expected = CpuCounters {
            cpu: 2,
            total_ticks: 1148,
            idle_ticks: 920,
            softirq_ticks: 8,
            net_rx: 4590,
            net_tx: 5,
            processed: 0x1ed6,
            dropped: 2,
            time_squeeze: 3,
        };
        assert_eq!(cpus.len(), 2, "the line of all CPUs is not one");
        assert_eq!(cpus[1], expected, "a CPU that is off leaves a gap in the numbers");
        assert_eq!(cpus[0].total_ticks, 970, "the guests' time is not counted twice");
    }

    #[test]
    fn without_a_number_the_order_of_lines_names_the_cpu() {
        let softnet = "00000001 00000000 00000000 0 0 0 0 0 0 0 0\n\
                       00000002 00000000 00000000 0 0 0 0 0 0 0 0\n\
                       00000003 00000000 00000000 0 0 0 0 0 0 0 0\n";
        let cpus = parse(STAT, SOFTIRQS, softnet);
        assert_eq!(cpus.iter().map(|c| c.processed).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn this_machine_has_at_least_one_cpu_that_has_done_something() {
        let cpus = read().unwrap();
        assert!(cpus.iter().any(|cpu| cpu.total_ticks > cpu.idle_ticks), "{cpus:?}");
    }

    #[test]
    fn no_share_is_more_than_the_whole() {
        // The thread's earlier CPU time must not count.
        let before = time(ClockId::CLOCK_THREAD_CPUTIME_ID);
        while time(ClockId::CLOCK_THREAD_CPUTIME_ID) < before + Duration::from_millis(5) {}
        for _ in 0..1000 {
            let share = ThreadCpuUsage::begin().share();
            assert!((0.0..=1.0).contains(&share), "{share}");
        }
        let asleep = ThreadCpuUsage::begin();
        std::thread::sleep(Duration::from_millis(20));
        assert!(asleep.share() < 1.0);
    }
}
