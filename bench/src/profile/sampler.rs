//! Samples all CPUs by perf_event_open(2), in a thread that empties the rings while a step runs.
//!
//! Each CPU has two events that write into one ring: the time, sampled at a fixed rate (cycles if the CPU
//! counts them, otherwise a timer, `cpu-clock`), and context switches. Linux 5.1; needs `CAP_PERFMON` (5.8)
//! or a low `kernel.perf_event_paranoid`.
//!
//! If there is only the timer, the kernel samples code with interrupts off where it enables them again: as
//! a rule in the same function, or in its caller.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::units;

use super::perf_event::{self as event, Attr, Event, PerfRing, flag};
use super::symbols::{self, KernelSymbols, Mapping};

/// Samples per second and CPU. A round number might synchronize with periodic work.
const PER_SECOND: u32 = 997;
/// Maximum of sampled context switches per second and CPU. If there are fewer, every one is sampled, so that
/// a thread that rarely sleeps is visible beside threads that switch often.
const MAX_SWITCHES_PER_SECOND: u32 = 5000;
/// Pages of each CPU's ring: room for a thousand samples of deep calls.
const RING_PAGES: usize = 128;
/// Time between two reads of the rings: short, so that a process is looked up before it exits.
const INTERVAL: Duration = Duration::from_millis(50);

/// The event of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A CPU ran this.
    Time,
    /// A thread left a CPU here.
    Switch,
}

/// A sampled call chain, as addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    pub event: EventKind,
    pub cpu: u32,
    pub process: u32,
    /// True if the CPU was in the kernel.
    pub kernel: bool,
    /// The sampled address, then its callers in the kernel.
    pub chain: Vec<u64>,
}

/// A process that was sampled.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The kernel's name for it: at most 15 bytes.
    pub name: String,
    /// Its code, if it was sampled outside the kernel.
    pub mappings: Vec<Mapping>,
}

/// All samples, and the tables that name their addresses.
#[derive(Debug)]
pub struct Recording {
    /// True if weights are cycles, which a CPU does not count while it is idle; otherwise they are ns.
    pub in_cycles: bool,
    /// The time of each stack, or how often a thread left its CPU there.
    pub stacks: HashMap<Stack, u64>,
    pub processes: HashMap<u32, Process>,
    pub kernel: KernelSymbols,
    /// Samples that were read.
    pub samples: u64,
    /// Records that found a ring full.
    pub lost: u64,
    /// Context switches, by CPU.
    pub switches: HashMap<u32, u64>,
}

impl Recording {
    fn add(&mut self, record: PerfRecord, switch_events: &HashSet<u64>) {
        let (event, weight, mut stack) = match record {
            PerfRecord::Symbol(address, bytes, name) => {
                return self.kernel.add(address, bytes, name);
            }
            PerfRecord::Lost(records) => {
                self.lost += records;
                return;
            }
            PerfRecord::Sample(event, weight, stack) => (event, weight, stack),
        };
        self.samples += 1;
        if switch_events.contains(&event) {
            stack.event = EventKind::Switch;
        }
        let process = self
            .processes
            .entry(stack.process)
            .or_insert_with(|| Process { name: name_of(stack.process), mappings: Vec::new() });
        let is_known = |address| process.mappings.iter().any(|it| it.offset_of(address).is_some());
        if !stack.kernel && !is_known(stack.chain[0]) {
            process.mappings = symbols::mappings(stack.process);
        }
        *self.stacks.entry(stack).or_default() += weight;
    }
}

fn name_of(process: u32) -> String {
    match process {
        0 => "idle".into(),
        _ => fs::read_to_string(format!("/proc/{process}/comm"))
            .map_or_else(|_| "ended".into(), |name| name.trim_end().to_owned()),
    }
}

/// Sampling in progress.
#[derive(Debug)]
pub struct Sampling {
    /// Dropped to stop the thread.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<Recording>>,
}

impl Sampling {
    /// Starts to sample all CPUs.
    ///
    /// # Errors
    /// A missing privilege, or a kernel without the events; the error has the remedy.
    pub fn start() -> Result<Self> {
        let kernel = KernelSymbols::read()?;
        let in_cycles = CpuEvents::open(0, true).is_ok();
        let open = |cpu| CpuEvents::open(cpu, in_cycles).map_err(refused);
        let mut cpus = online()?.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let switch_events: HashSet<u64> = cpus.iter().map(|it| it.switches.id).collect();
        let mut recording = Recording {
            in_cycles,
            stacks: HashMap::new(),
            processes: HashMap::new(),
            kernel,
            samples: 0,
            lost: 0,
            switches: HashMap::new(),
        };
        let events = |cpus: &[CpuEvents], set: fn(&Event) -> io::Result<()>| {
            let mut both = cpus.iter().flat_map(|it| [&it.time, &it.switches]);
            both.try_for_each(set).map_err(refused)
        };
        events(&cpus, Event::enable)?;
        let (stop, stopped) = mpsc::channel();
        let collect = move || {
            let mut goes_on = true;
            while goes_on {
                goes_on = stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout);
                if !goes_on {
                    events(&cpus, Event::disable)?;
                }
                for cpu in &mut cpus {
                    let mut bytes = Vec::new();
                    cpu.ring.take(&mut bytes);
                    records(&bytes).for_each(|record| recording.add(record, &switch_events));
                }
            }
            let count = |it: &CpuEvents| (it.cpu, it.switches.count().unwrap_or(0));
            recording.switches = cpus.iter().map(count).collect();
            Ok(recording)
        };
        let thread = thread::Builder::new().name("profile".into()).spawn(collect);
        let thread = thread.map_err(|error| Error::system("start", "a thread", error))?;
        Ok(Self { stop, thread })
    }

    /// Stops, and returns the samples.
    ///
    /// # Errors
    /// The events could not be disabled.
    pub fn stop(self) -> Result<Recording> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The events of one CPU.
#[derive(Debug)]
struct CpuEvents {
    cpu: u32,
    time: Event,
    switches: Event,
    ring: PerfRing,
}

impl CpuEvents {
    /// Opens them, disabled.
    fn open(cpu: u32, in_cycles: bool) -> io::Result<Self> {
        let (kind, config) = match in_cycles {
            true => (event::TYPE_HARDWARE, event::HARDWARE_CYCLES),
            false => (event::TYPE_SOFTWARE, event::SOFTWARE_CPU_CLOCK),
        };
        let time = Attr {
            kind,
            config,
            sample_period: PER_SECOND.into(),
            sample_type: event::sample::ALL,
            flags: flag::DISABLED | flag::FREQUENCY | flag::NO_USER_CHAIN | flag::KERNEL_SYMBOLS,
            ..Attr::default()
        };
        let allowed = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
        let allowed = allowed.ok().and_then(|text| text.trim().parse().ok());
        let switches = Attr {
            kind: event::TYPE_SOFTWARE,
            config: event::SOFTWARE_CONTEXT_SWITCHES,
            sample_period: allowed.unwrap_or(u64::MAX).min(MAX_SWITCHES_PER_SECOND.into()),
            flags: time.flags & !flag::KERNEL_SYMBOLS,
            ..time
        };
        let time = Event::open(&time, cpu)?;
        let switches = Event::open(&switches, cpu)?;
        let ring = PerfRing::map(&time, RING_PAGES)?;
        switches.write_to(&time)?;
        Ok(Self { cpu, time, switches, ring })
    }
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
            remedy: "run it with sudo, or allow it to all users by \
                     `sysctl kernel.perf_event_paranoid=-1`"
                .into(),
        },
        Some(libc::ENOSYS) => Error::Unsupported {
            feature: "perf_event_open (CONFIG_PERF_EVENTS)".into(),
            remedy: "use a kernel that has it, or measure without the causes".into(),
        },
        Some(libc::EINVAL) => Error::Unsupported {
            feature: "names of BPF programs while sampling (Linux 5.1)".into(),
            remedy: "use a newer kernel, or measure without the causes".into(),
        },
        _ => Error::system("sample", "all CPUs", error),
    }
}

/// A record of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PerfRecord {
    /// The event's identifier, the weight in ns, cycles or context switches, and the stack.
    Sample(u64, u64, Stack),
    /// The number of records that found the ring full.
    Lost(u64),
    /// Address, bytes and name of code that was loaded during sampling: a BPF program.
    Symbol(u64, u32, String),
}

/// Parses consecutive records. It skips records of other kinds, and stops at a malformed one.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = PerfRecord> {
    std::iter::from_fn(move || {
        loop {
            // struct perf_event_header: type, misc, size.
            let [a, b, c, d, misc @ .., e, f] = *bytes.first_chunk::<8>()?;
            let (kind, size) = (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
            let body = bytes.get(8..size.into())?;
            bytes = &bytes[size.into()..];
            let record = match kind {
                event::record::SAMPLE => sample(body, u16::from_ne_bytes(misc)),
                event::record::LOST => words(body).nth(1).map(PerfRecord::Lost),
                event::record::KERNEL_SYMBOL => symbol(body),
                _ => None,
            };
            if record.is_some() {
                return record;
            }
        }
    })
}

/// The whole words of 64 bits in a record.
fn words(body: &[u8]) -> impl Iterator<Item = u64> {
    body.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

/// Identifier, address, process and thread, CPU, weight, length of the chain, the chain.
fn sample(body: &[u8], misc: u16) -> Option<PerfRecord> {
    let words: Vec<u64> = words(body).collect();
    let [id, address, process, cpu, weight, length, ref rest @ ..] = words[..] else { return None };
    let mut chain = Vec::new();
    let mut in_kernel = false;
    for &address in rest.get(..usize::try_from(length).ok()?)? {
        if address >= event::CHAIN_MARKS {
            in_kernel = address == event::CHAIN_KERNEL;
        } else if in_kernel {
            chain.push(address);
        }
    }
    if chain.first() != Some(&address) {
        chain.insert(0, address);
    }
    let kernel = misc & event::MISC_CPU_MODE == event::MISC_KERNEL;
    let (process, cpu) = (first_half(process), first_half(cpu));
    let stack = Stack { event: EventKind::Time, cpu, process, kernel, chain };
    Some(PerfRecord::Sample(id, weight, stack))
}

/// The 32 bits that come first in a word.
fn first_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Address, length, type, flags, name.
fn symbol(body: &[u8]) -> Option<PerfRecord> {
    const UNREGISTERED: u16 = 1;
    let mut words = words(body);
    let (address, second) = (words.next()?, words.next()?);
    let [.., low, high] = second.to_ne_bytes();
    let is_loaded = u16::from_ne_bytes([low, high]) & UNREGISTERED == 0;
    let name = body.get(16..)?.split(|byte| *byte == 0).next()?;
    let name = String::from_utf8_lossy(name).into_owned();
    is_loaded.then_some(PerfRecord::Symbol(address, first_half(second), name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluicegate::error::Kind;

    use super::event::record as kind;
    use super::*;

    #[test]
    fn an_error_of_sampling_has_its_remedy() {
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
    fn a_sample_has_its_address_and_the_callers() {
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
            let Some(PerfRecord::Sample(event, weight, stack)) = records(&bytes).next() else {
                panic!("{sentence}");
            };
            assert_eq!(stack.chain, expected, "{sentence}");
            assert_eq!((event, stack.process, stack.cpu), (7, 42, 1));
            assert!(stack.kernel && weight == 1_000_000);
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
        let symbol = PerfRecord::Symbol(0xff, 64, name);
        assert_eq!(found, [symbol, PerfRecord::Lost(30)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = records(&bytes).count();
        }
    }
}
