//! All CPUs, sampled by the kernel: perf_event_open(2).
//!
//! Each CPU has two events that write into one ring: the time, sampled at a fixed rate
//! (cycles where the CPU counts them, otherwise a timer, `cpu-clock`), and context switches, of
//! which a sample stands for several when there are many. Linux 5.1; needs `CAP_PERFMON` (5.8),
//! or a low `kernel.perf_event_paranoid`.
//!
//! Where there is only the timer, what runs with interrupts off is seen where they are switched on
//! again: in the same function as a rule, or its caller.

use std::fs;
use std::io;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::units;

use super::perf_event::{self as event, Attr, Event, Ring, flag};

/// Pages of each CPU's ring: room for a thousand samples of deep calls.
const RING_PAGES: usize = 128;

/// Sampled context switches, a second and CPU. If switches are fewer, every one is sampled, so
/// that a thread that seldom sleeps shows beside threads that switch often.
const SWITCHES_PER_SECOND: u32 = 5000;

/// Clock that paces the samples of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleClock {
    /// Cycles of a CPU that counts them; it counts none while it is idle.
    Cycles,
    /// Nanoseconds.
    Timer,
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
    pub clock: SampleClock,
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
        let clock = if OnCpu::open(0, SampleClock::Cycles, per_second).is_ok() {
            SampleClock::Cycles
        } else {
            SampleClock::Timer
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
    fn open(number: u32, clock: SampleClock, per_second: u32) -> io::Result<Self> {
        let (kind, config) = match clock {
            SampleClock::Cycles => (event::TYPE_HARDWARE, event::HARDWARE_CYCLES),
            SampleClock::Timer => (event::TYPE_SOFTWARE, event::SOFTWARE_CPU_CLOCK),
        };
        let time = Attr {
            kind,
            config,
            sample_period: per_second.into(),
            sample_type: event::sample::ALL,
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

/// Reads the highest sample rate that the kernel allows.
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

/// One moment on one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The event it is of.
    pub event: u64,
    pub process: u32,
    pub cpu: u32,
    /// Its weight in ns, cycles or context switches.
    pub weight: u64,
    /// True if the CPU was in the kernel.
    pub kernel: bool,
    /// The sampled address, then its callers in the kernel.
    pub chain: Vec<u64>,
}

/// Record of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerfRecord {
    Sample(Sample),
    /// Number of records that found the ring full.
    Lost(u64),
    /// Code that got a name while it was watched: a BPF program.
    Symbol {
        address: u64,
        bytes: u32,
        name: String,
    },
}

/// Goes through records that stand one behind the other; those of other kinds are left out, and
/// all behind one that makes no sense.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = PerfRecord> {
    std::iter::from_fn(move || {
        loop {
            let mut header = Words(bytes);
            let kind = header.u32()?;
            let (misc, size) = (header.u16()?, usize::from(header.u16()?));
            let body = bytes.get(8..size)?;
            bytes = &bytes[size..];
            let found = match kind {
                event::record::SAMPLE => sample(Words(body), misc),
                event::record::LOST => lost(Words(body)),
                event::record::KERNEL_SYMBOL => symbol(Words(body)),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
    })
}

fn sample(mut words: Words<'_>, misc: u16) -> Option<PerfRecord> {
    let event = words.u64()?;
    let address = words.u64()?;
    let (process, _thread) = (words.u32()?, words.u32()?);
    let (cpu, _reserved) = (words.u32()?, words.u32()?);
    let weight = words.u64()?;
    let length = words.u64()?;
    let kernel = misc & event::MISC_CPU_MODE == event::MISC_KERNEL;
    let mut chain = Vec::new();
    let mut in_kernel = false;
    for _ in 0..length {
        let address = words.u64()?;
        if address >= event::CHAIN_MARKS {
            in_kernel = address == event::CHAIN_KERNEL;
        } else if in_kernel {
            chain.push(address);
        }
    }
    if chain.first() != Some(&address) {
        chain.insert(0, address);
    }
    Some(PerfRecord::Sample(Sample { event, process, cpu, weight, kernel, chain }))
}

fn lost(mut words: Words<'_>) -> Option<PerfRecord> {
    let _event = words.u64()?;
    words.u64().map(PerfRecord::Lost)
}

fn symbol(mut words: Words<'_>) -> Option<PerfRecord> {
    let address = words.u64()?;
    let bytes = words.u32()?;
    let (_kind, flags) = (words.u16()?, words.u16()?);
    const UNREGISTERED: u16 = 1;
    if flags & UNREGISTERED != 0 {
        return None;
    }
    let name = words.0.split(|byte| *byte == 0).next()?;
    Some(PerfRecord::Symbol { address, bytes, name: String::from_utf8_lossy(name).into_owned() })
}

/// Takes numbers off the front of bytes.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluicegate::error::Kind;

    use super::event::record as kind;
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

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((body.len() as u16 + 8).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn sample_of(chain: &[u64]) -> Vec<u8> {
        let mut body = Vec::new();
        for word in [7, 0xff10, 42 | 43 << 32, 1, 1_000_000, chain.len() as u64] {
            body.extend(u64::to_ne_bytes(word));
        }
        body.extend(chain.iter().flat_map(|address| address.to_ne_bytes()));
        record(kind::SAMPLE, event::MISC_KERNEL, &body)
    }

    #[test]
    fn a_sample_has_where_it_was_and_who_called_that() {
        let user = 512u64.wrapping_neg();
        for (sentence, chain, expected) in [
            (
                "with its own address",
                &[event::CHAIN_KERNEL, 0xff10, 0xff20][..],
                &[0xff10, 0xff20][..],
            ),
            ("without", &[event::CHAIN_KERNEL, 0xff20], &[0xff10, 0xff20]),
            ("callers in user space are left out", &[user, 0x400], &[0xff10]),
            ("no chain", &[], &[0xff10]),
        ] {
            let bytes = sample_of(chain);
            let Some(PerfRecord::Sample(sample)) = records(&bytes).next() else {
                panic!("{sentence}");
            };
            assert_eq!(sample.chain, expected, "{sentence}");
            assert_eq!((sample.event, sample.process, sample.cpu), (7, 42, 1));
            assert!(sample.kernel && sample.weight == 1_000_000);
        }
    }

    #[test]
    fn other_records_are_skipped_and_names_and_losses_are_read() {
        let mut body = 0xffu64.to_ne_bytes().to_vec();
        body.extend(64u32.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(b"bpf_prog_12_x\0\0\0");
        let mut bytes = record(3, 0, &[0; 24]);
        bytes.extend(record(kind::KERNEL_SYMBOL, 0, &body));
        let lost = [7u64, 30].map(u64::to_ne_bytes).concat();
        bytes.extend(record(kind::LOST, 0, &lost));
        let found: Vec<PerfRecord> = records(&bytes).collect();
        let name = "bpf_prog_12_x".into();
        let symbol = PerfRecord::Symbol { address: 0xff, bytes: 64, name };
        assert_eq!(found, [symbol, PerfRecord::Lost(30)]);
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = records(&bytes).count();
        }
    }
}
