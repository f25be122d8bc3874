//! How packets and interrupts are spread over CPUs: what the kernel counts for each.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::link::{Rates, Sample, Sampler};

use super::findings::Cpu;

/// Counters of all CPUs at one moment.
#[derive(Debug)]
pub struct SampledCounters {
    sample: Sample,
    /// By CPU.
    interrupts: HashMap<u32, u64>,
}

impl SampledCounters {
    /// Reads them now.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read() -> Result<Self> {
        let path = Path::new("/proc/interrupts");
        let text = fs::read_to_string(path).map_err(|error| Error::path("read", path, error))?;
        // Interfaces are not asked for: counters of CPUs come with any sample.
        let sample = Sampler::open(None, &["lo".into()])?.sample()?;
        Ok(Self { sample, interrupts: interrupts(&text) })
    }

    /// Seconds from an earlier reading to this one.
    pub fn seconds_since(&self, before: &Self) -> f64 {
        self.sample.at.saturating_duration_since(before.sample.at).as_secs_f64()
    }

    /// What each CPU has counted since an earlier reading.
    pub fn since(&self, before: &Self) -> Vec<Cpu> {
        let rates = Rates::between(&before.sample, &self.sample);
        let whole = |rate: f64| (rate * rates.seconds).round() as u64;
        let interrupts = |cpu| {
            let at = |counters: &Self| counters.interrupts.get(&cpu).copied().unwrap_or(0);
            at(self).saturating_sub(at(before))
        };
        let one = |cpu: &sluicegate::link::CpuRates| Cpu {
            cpu: cpu.cpu,
            processed: whole(cpu.processed),
            dropped: whole(cpu.dropped),
            squeezed: whole(cpu.time_squeeze),
            interrupts: interrupts(cpu.cpu),
            ..Cpu::default()
        };
        rates.cpus.iter().map(one).collect()
    }

    /// How long each CPU was not idle since an earlier reading, in ns.
    pub fn busy_ns_since(&self, before: &Self) -> HashMap<u32, f64> {
        let rates = Rates::between(&before.sample, &self.sample);
        rates.cpus.iter().map(|cpu| (cpu.cpu, cpu.busy * rates.seconds * 1e9)).collect()
    }
}

/// A table: CPUs across, interrupts down; those of the whole machine have no CPU's column.
fn interrupts(text: &str) -> HashMap<u32, u64> {
    let mut lines = text.lines();
    let number = |word: &str| word.strip_prefix("CPU").and_then(|number| number.parse().ok());
    let cpus: Vec<u32> =
        lines.next().unwrap_or_default().split_ascii_whitespace().filter_map(number).collect();
    let mut sums: HashMap<u32, u64> = cpus.iter().map(|cpu| (*cpu, 0)).collect();
    for line in lines {
        let counts: Vec<u64> = line
            .split_ascii_whitespace()
            .skip(1)
            .map_while(|word| word.parse().ok())
            .take(cpus.len())
            .collect();
        if counts.len() == cpus.len() {
            for (cpu, count) in cpus.iter().zip(counts) {
                *sums.entry(*cpu).or_default() += count;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_added_up_by_cpu() {
        let text = "           CPU0       CPU2
   1:          9          0   IO-APIC   1-edge      i8042
 LOC:     100000      50000   Local timer interrupts
 ERR:          3
";
        assert_eq!(interrupts(text), HashMap::from([(0, 100_009), (2, 50_000)]));
        assert!(interrupts("").is_empty());
    }

    #[test]
    fn counters_of_this_machine_only_grow() {
        let before = SampledCounters::read().unwrap();
        let after = SampledCounters::read().unwrap();
        let cpus = after.since(&before);
        assert!(!cpus.is_empty() && after.seconds_since(&before) >= 0.0);
    }
}
