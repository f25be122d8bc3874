//! All CPUs, sampled by the kernel: perf_event_open(2).
//!
//! Each CPU has two events that write into one ring: the time, sampled so many times a second
//! (cycles where the CPU counts them, otherwise a timer, `cpu-clock`), and context switches, of
//! which a sample stands for several when there are many. Linux 5.1; needs `CAP_PERFMON` (5.8),
//! or a low `kernel.perf_event_paranoid`.
//!
//! Where there is only the timer, what runs with interrupts off is seen where they are switched on
//! again: in the same function as a rule, or its caller.

mod event;
mod records;

use std::fs;
use std::io;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::units;

use event::{Attr, flag, sample};
use event::{Event, Ring};
pub use records::{PerfRecord, Sample, records};

/// Pages of each CPU's ring: room for a thousand samples of deep calls.
const RING_PAGES: usize = 128;

/// Context switches that are looked at, a second and CPU: of a few every one, so that who sleeps some
/// times a second is seen beside others that switch a lot.
const SWITCHES_PER_SECOND: u32 = 5000;

/// What the time is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Cycles of a CPU that counts them; it counts none while it is idle.
    Cycles,
    /// Nanoseconds.
    Timer,
}

impl TimeUnit {
    /// As perf(1) calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Timer => "cpu-clock",
        }
    }
}

/// Which event a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A CPU ran this.
    Time,
    /// A thread left a CPU here.
    Switch,
}

/// The events of all CPUs.
#[derive(Debug)]
pub struct Events {
    pub clock: TimeUnit,
    cpus: Vec<OnCpu>,
}

#[derive(Debug)]
struct OnCpu {
    number: u32,
    time: Event,
    switches: Event,
    ring: Ring,
}

impl Events {
    /// Opens them, switched off, for `per_second` samples a second and CPU.
    ///
    /// # Errors
    /// No privilege, or a kernel without perf events; the remedy is said.
    pub fn open(per_second: u32) -> Result<Self> {
        let clock = if OnCpu::open(0, TimeUnit::Cycles, per_second).is_ok() {
            TimeUnit::Cycles
        } else {
            TimeUnit::Timer
        };
        let cpus = online()?
            .into_iter()
            .map(|cpu| OnCpu::open(cpu, clock, per_second).map_err(refused))
            .collect::<Result<_>>()?;
        Ok(Self { clock, cpus })
    }

    /// Samples from now on.
    pub fn enable(&self) -> Result<()> {
        let enable = |cpu: &OnCpu| cpu.time.enable().and_then(|()| cpu.switches.enable());
        self.cpus.iter().try_for_each(enable).map_err(refused)
    }

    /// Samples no more.
    pub fn disable(&self) -> Result<()> {
        let disable = |cpu: &OnCpu| cpu.time.disable().and_then(|()| cpu.switches.disable());
        self.cpus.iter().try_for_each(disable).map_err(refused)
    }

    /// Takes what all rings hold; `each` gets the records, in the order of each CPU's time.
    pub fn take(&mut self, mut each: impl FnMut(PerfRecord)) {
        let mut bytes = Vec::new();
        for cpu in &mut self.cpus {
            bytes.clear();
            cpu.ring.take(&mut bytes);
            records(&bytes).for_each(&mut each);
        }
    }

    /// Which event a sample is of.
    pub fn what(&self, sample: &Sample) -> Option<EventKind> {
        let cpu = self.cpus.iter().find(|cpu| cpu.number == sample.cpu)?;
        match sample.event {
            id if id == cpu.time.id => Some(EventKind::Time),
            id if id == cpu.switches.id => Some(EventKind::Switch),
            _ => None,
        }
    }

    /// Context switches of each CPU while it was switched on, by number.
    pub fn switches(&self) -> Vec<(u32, u64)> {
        let count = |cpu: &OnCpu| (cpu.number, cpu.switches.count().unwrap_or(0));
        self.cpus.iter().map(count).collect()
    }
}

impl OnCpu {
    fn open(number: u32, clock: TimeUnit, per_second: u32) -> io::Result<Self> {
        let (kind, config) = match clock {
            TimeUnit::Cycles => (event::TYPE_HARDWARE, event::HARDWARE_CYCLES),
            TimeUnit::Timer => (event::TYPE_SOFTWARE, event::SOFTWARE_CPU_CLOCK),
        };
        let time = Attr {
            kind,
            config,
            sample_period: per_second.into(),
            sample_type: sample::ALL,
            flags: flag::DISABLED | flag::FREQUENCY | flag::NO_USER_CHAIN | flag::KERNEL_SYMBOLS,
            ..Attr::default()
        };
        let switches = Attr {
            kind: event::TYPE_SOFTWARE,
            config: event::SOFTWARE_CONTEXT_SWITCHES,
            sample_period: most_samples().min(SWITCHES_PER_SECOND).into(),
            flags: time.flags & !flag::KERNEL_SYMBOLS,
            ..time
        };
        let time = Event::open(&time, number)?;
        let switches = Event::open(&switches, number)?;
        let ring = Ring::map(&time, RING_PAGES)?;
        switches.write_to(&time)?;
        Ok(Self { number, time, switches, ring })
    }
}

/// What the administrator, or the kernel where sampling has taken too long, allows a second.
fn most_samples() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(SWITCHES_PER_SECOND)
}

fn online() -> Result<Vec<u32>> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let text = fs::read_to_string(path).map_err(|error| Error::path("read", path, error))?;
    let cpus = units::cpus(text.trim()).map_err(|error| Error::Usage(error.to_string()))?;
    Ok(cpus.into_iter().map(u32::from).collect())
}

fn refused(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::Privilege {
            operation: "sampling all CPUs".into(),
            capability: "CAP_PERFMON",
            remedy: "run it with sudo, or allow it to everybody by \
                     `sysctl kernel.perf_event_paranoid=-1`"
                .into(),
        },
        Some(libc::ENOSYS) => Error::Unsupported {
            feature: "perf_event_open (CONFIG_PERF_EVENTS)".into(),
            remedy: "take a kernel that has it, or do without the causes".into(),
        },
        Some(libc::EINVAL) => Error::Unsupported {
            feature: "names of BPF programs while sampling (Linux 5.1)".into(),
            remedy: "take a newer kernel, or do without the causes".into(),
        },
        _ => Error::system("sample", "all CPUs", error),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::error::Kind;

    use super::*;

    #[test]
    fn what_cannot_be_sampled_is_said_with_a_remedy() {
        for (errno, kind, remedy) in [
            (libc::EACCES, Kind::Privilege, "kernel.perf_event_paranoid"),
            (libc::ENOSYS, Kind::Privilege, "without the causes"),
            (libc::EINVAL, Kind::Privilege, "newer kernel"),
            (libc::EMFILE, Kind::Runtime, "all CPUs"),
        ] {
            let error = refused(io::Error::from_raw_os_error(errno));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
