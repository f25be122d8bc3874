//! `--keep`: packets stay in memory, and a file is written only when a signal or a packet triggers it.
//!
//! ```text
//!   chunks ─→ history ─(trigger)─→ saving thread ─→ file
//!                ↑                       │
//!                └──── empty chunks ─────┘
//! ```
//!
//! Live packets never wait for a file. What is read from a file waits, so that nothing asked for is dropped.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sluicegate::error::{Error, Result};
use sluicegate::file::write::{Chunk, History, HistoryConfig, HistoryPart, InMemory, Rotation};
use sluicegate::filter::Filter;
use sluicegate::port::Interface;
use sluicegate::ring::{Packet, now_ns};
use sluicegate::units;

use super::chunks::Quiet;
use super::options::Options;
use super::recorder::File;
use crate::ledger::Section;
use crate::notice;
use crate::report::{MemoryReport, Report};
use crate::units::{packets_word, show_bytes, show_count, show_duration};

/// Less memory holds too few chunks.
const MIN_BYTES: u64 = 1 << 20;
/// The longest sleep of a thread that receives.
const WAIT_TIME: Duration = Duration::from_millis(100);

/// The remedy of packets that had to leave memory before they were written.
const SLOW_DISK: &str = "write to a faster disk, compress (-w FILE.zst), or raise --keep-bytes and the \
                         process's limit of memory (ulimit -v)";

/// Flags of packets in memory.
#[derive(clap::Args)]
#[command(next_help_heading = "Keep packets in memory")]
pub struct KeepArgs {
    /// Keep the packets of the last TIME in memory; write them to the next numbered file at SIGUSR2, or at a
    /// --trigger: 30s
    #[arg(long, value_name = "TIME", requires = "write", value_parser = units::duration)]
    keep: Option<Duration>,

    /// Maximum of memory for --keep; as much again while a file is written
    #[arg(long, value_name = "BYTES", default_value = "256M", requires = "keep",
          value_parser = units::bytes)]
    keep_bytes: u64,

    /// Write also the packets of this time after the trigger [default: 0]
    #[arg(long, value_name = "TIME", requires = "keep", value_parser = units::duration)]
    keep_after: Option<Duration>,

    /// Write the packets in memory when a packet matches this pcap-filter expression
    #[arg(long, value_name = "EXPR", requires = "keep")]
    pub trigger: Option<String>,
}

impl KeepArgs {
    /// Returns the limits of the packets in memory, if they are kept there.
    ///
    /// # Errors
    /// The other flags of the file contradict `--keep`.
    pub fn history(&self, path: &Path, rotation: &Rotation) -> Result<Option<HistoryConfig>> {
        let Some(span) = self.keep else { return Ok(None) };
        let problem = if path == Path::new("-") {
            "--keep writes a file for each trigger; name it: -w trace.pcapng"
        } else if rotation.is_on() {
            "--keep begins a file for each trigger only; remove --rotate-size, --rotate-count and \
             --rotate-time (-C, -G), or --keep"
        } else if span.is_zero() {
            "--keep 0 keeps nothing; give a time, as --keep 30s"
        } else if self.keep_bytes < MIN_BYTES {
            "--keep-bytes is less than 1M; raise it"
        } else {
            return Ok(Some(HistoryConfig {
                span,
                after: self.keep_after.unwrap_or_default(),
                max_bytes: usize::try_from(self.keep_bytes).unwrap_or(usize::MAX),
            }));
        };
        Err(Error::Usage(problem.into()))
    }
}

/// The packets in memory, shared by the threads that receive them and the one that saves them.
pub struct Keeper {
    state: Mutex<KeeperState>,
    /// A copy of [`History::uncovered_from_ns`].
    uncovered_from_ns: AtomicU64,
    /// Of live packets: the longest time from a packet's arrival to the history.
    delivery: Option<Duration>,
}

struct KeeperState {
    history: History,
    /// The thread has a part.
    saving: bool,
    /// The thread provides spare chunks.
    providing: bool,
    saver: Option<(Sender<Job>, JoinHandle<()>)>,
    file: FileContents,
}

/// Work of the saving thread.
enum Job {
    Save(HistoryPart),
    /// Provide spare chunks: the kernel takes as long for new memory as a receiver for the packets in it.
    Provide,
}

/// The packets of the file being written.
#[derive(Default)]
struct FileContents {
    packets: u64,
    times: Option<(u64, u64)>,
}

impl Keeper {
    /// Creates it, if packets are to be kept.
    ///
    /// # Errors
    /// A port's name has an invalid time; the process cannot have as much memory.
    pub fn of(options: &Options) -> Result<Option<Self>> {
        let Some(config) = options.history else { return Ok(None) };
        let history = History::new(config).map_err(|_| {
            let object = format!("{} of memory for --keep", show_bytes(config.max_bytes as u64));
            Error::system("reserve", object, Errno::ENOMEM)
                .remedy("lower --keep-bytes, or raise this process's limit: ulimit -v unlimited")
        })?;
        let delivery =
            super::are_live(&options.ports).then(|| delivery_time(options)).transpose()?;
        let state = KeeperState {
            history,
            saving: false,
            providing: false,
            saver: None,
            file: FileContents::default(),
        };
        let uncovered_from_ns = AtomicU64::new(0);
        Ok(Some(Self { state: Mutex::new(state), uncovered_from_ns, delivery }))
    }

    fn lock(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the history. All changes take this path, so that the copy is current.
    fn change<T>(&self, change: impl FnOnce(&mut KeeperState) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        // `Relaxed` suffices: the mutex publishes the rest.
        self.uncovered_from_ns.store(state.history.uncovered_from_ns(), Ordering::Relaxed);
        result
    }
}

/// Returns the longest time from a live packet's arrival to the history.
fn delivery_time(options: &Options) -> Result<Duration> {
    let of_port = |port| Ok(Quiet::of(port)?.delivery());
    let kernel = options.ports.iter().map(of_port).collect::<Result<Vec<Duration>>>()?;
    let kernel = kernel.into_iter().max().unwrap_or_default();
    Ok(kernel + options.args.reorder_window + options.hold_time + WAIT_TIME)
}

impl File {
    /// Starts the thread that saves live packets, which come in chunks like this one.
    pub fn start_saving(self: &Arc<Self>, chunk: Chunk) -> Result<()> {
        let Some(keeper) = self.keeper.as_ref().filter(|it| it.delivery.is_some()) else {
            return Ok(());
        };
        let (sender, jobs): (_, Receiver<Job>) = channel();
        let file = Arc::clone(self);
        let thread = Builder::new().name("save".into()).spawn(move || file.run_jobs(&jobs, &chunk));
        let thread = thread.map_err(|e| Error::start("the saving thread", e))?;
        keeper.lock().saver = Some((sender, thread));
        Ok(())
    }

    fn run_jobs(&self, jobs: &Receiver<Job>, chunk: &Chunk) {
        let Some(keeper) = &self.keeper else { return };
        for job in jobs {
            match job {
                Job::Save(part) => {
                    self.save(part);
                    keeper.lock().saving = false;
                }
                Job::Provide => {
                    while keeper.lock().history.lacks_spare(chunk) {
                        let Some(spare) = chunk.try_like() else { break };
                        keeper.lock().history.give_back(spare);
                    }
                    keeper.lock().providing = false;
                }
            }
        }
    }

    /// Keeps a chunk's records in memory, and leaves an empty chunk.
    pub fn keep(&self, keeper: &Keeper, chunk: &mut Chunk) {
        let arrived = keeper.delivery.map(|_| Instant::now());
        keeper.change(|state| {
            state.history.push(chunk, arrived);
            if let Some((saver, _)) = &state.saver
                && !state.providing
                && state.history.lacks_spare(chunk)
            {
                state.providing = true;
                // The thread lives until the sender is dropped.
                let _ = saver.send(Job::Provide);
            }
        });
        self.save_due(keeper, 0);
    }

    /// Asks for a file, at SIGUSR2.
    pub fn save_now(&self) {
        let Some(keeper) = &self.keeper else { return };
        let now_ns = keeper.delivery.map(|_| now_ns());
        keeper.change(|state| state.history.trigger_now(now_ns));
    }

    /// Accounts for packets that no file has, because none was asked for, memory was too small, or the disk too
    /// slow.
    pub fn account_for_memory(&self, report: &mut Report) {
        let Some(keeper) = &self.keeper else { return };
        let KeeperState { history, .. } = &*keeper.lock();
        let InMemory { packets, period, is_short: short } = history.in_memory();
        report.ledger.add(Section::Omitted, "unsaved", history.dropped() + packets);
        report.ledger.add(Section::Loss, "not_written", history.lost());
        if history.lost() > 0 {
            report.ledger.advise("not_written", SLOW_DISK);
        }
        report.memory = Some(MemoryReport { packets, period_s: period.as_secs_f64(), short });
    }

    /// Saves live packets if none has come for a while.
    pub fn save_silent(&self) {
        if let Some(keeper) = &self.keeper
            && let Some(delivery) = keeper.delivery
        {
            self.save_due(keeper, now_ns().saturating_sub(delivery.as_nanos() as u64));
        }
    }

    /// Saves what was asked for at the end of the capture.
    pub fn end_saving(&self) {
        let Some(keeper) = &self.keeper else { return };
        let saver = keeper.lock().saver.take();
        if let Some((sender, thread)) = saver {
            drop(sender);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.save_due(keeper, u64::MAX);
    }

    /// Passes the parts that are due to the saving thread, one at a time, or saves them.
    fn save_due(&self, keeper: &Keeper, silent_ns: u64) {
        loop {
            let part = keeper.change(|state| {
                if state.saving {
                    return None;
                }
                let part = state.history.take(silent_ns)?;
                match &state.saver {
                    Some((saver, _)) => {
                        state.saving = true;
                        let _ = saver.send(Job::Save(part));
                        None
                    }
                    None => Some(part),
                }
            });
            let Some(part) = part else { return };
            self.save(part);
        }
    }

    fn save(&self, part: HistoryPart) {
        let Some(keeper) = &self.keeper else { return };
        for chunk in part.chunks {
            self.write_chunk(&chunk);
            let mut state = keeper.lock();
            state.file.add(&chunk);
            state.history.give_back(chunk);
        }
        if part.completes_file {
            let path = self.end_file();
            let FileContents { packets, times } = std::mem::take(&mut keeper.lock().file);
            let (count, word) = (show_count(packets), packets_word(packets));
            let period = times.map_or(0, |(first_ns, last_ns)| last_ns - first_ns);
            let period = show_duration(Duration::from_nanos(period));
            match path {
                Some(path) => {
                    let path = path.display();
                    notice::say(format_args!("{path}: {count} {word} of {period}"));
                }
                None if packets == 0 => notice::say("no packets in memory: no file is written"),
                None => {}
            }
        }
    }
}

impl FileContents {
    fn add(&mut self, chunk: &Chunk) {
        let Some((first_ns, last_ns)) = chunk.first_ns().zip(chunk.last_ns()) else { return };
        let (first, last) = self.times.unwrap_or((first_ns, last_ns));
        self.packets += chunk.packets();
        self.times = Some((first.min(first_ns), last.max(last_ns)));
    }
}

/// The filter of `--trigger`, for the interfaces of one queue.
pub struct TriggerFilter {
    expression: String,
    /// Packets are those of a file.
    reads_file: bool,
    filters: Vec<Filter>,
    scratch: Vec<u8>,
}

impl TriggerFilter {
    pub fn new(expression: String, reads_file: bool) -> Self {
        Self { expression, reads_file, filters: Vec::new(), scratch: Vec::new() }
    }

    /// Compiles the expression for the interfaces that have appeared.
    pub fn meet(&mut self, interfaces: &[Interface]) -> Result<()> {
        let compile = if self.reads_file { Filter::compile_for_file } else { Filter::compile };
        for interface in interfaces.iter().skip(self.filters.len()) {
            self.filters.push(compile(&self.expression, interface.link_type)?);
        }
        Ok(())
    }

    /// Asks for a file if the packet matches, and no file that was asked for will have it.
    #[inline]
    pub fn look_at(&mut self, packet: &Packet<'_>, keeper: &Keeper) {
        let (at_ns, interface) = (packet.meta().timestamp_ns, packet.meta().interface);
        if at_ns < keeper.uncovered_from_ns.load(Ordering::Relaxed) {
            return;
        }
        if let Some(filter) = self.filters.get(interface as usize)
            && filter.matches_packet(packet, &mut self.scratch)
        {
            keeper.change(|state| {
                // Another queue's packet may have asked for the file meanwhile.
                if at_ns >= state.history.uncovered_from_ns() {
                    state.history.trigger_at(at_ns);
                }
            });
        }
    }
}
