//! Recording: the file that all recorders of a capture share, and the recorder of each queue.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::file::Format;
use sluicegate::file::write::{Chunk, Encoder, InterfaceStats, Output, OutputConfig, OutputCounts};
use sluicegate::port::{Interface, Queue};
use sluicegate::ring::{Packet, now_ns};

use super::chunks::{ChunkOptions, ChunkRoute, ChunkSender, ChunkSink, Quiet};
use super::keep::{Keeper, TriggerFilter};
use super::lines::Lines;
use crate::counters::Totals;
use crate::file_flags::PCAP_END_NS;
use crate::notice;
use crate::run::Visitor;
use crate::stats::Counter;

/// Interval between attempts to lock the output, and their maximum number.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
const LOCK_ATTEMPTS: u32 = 10;

/// The file of a capture, and how its interfaces are numbered there.
pub struct File {
    output: Mutex<Output>,
    counts: Arc<OutputCounts>,
    /// Writing has failed.
    failed: AtomicBool,
    /// The last file of `--max-files` is complete.
    complete: AtomicBool,
    /// Its name in messages.
    name: String,
    /// The last time that the format can hold.
    last_ns: u64,
    /// Packets that were not written because of their time.
    refused: AtomicU64,
    /// A live packet has such a time, and a message says so.
    warned: AtomicBool,
    /// Packets stay there until a file is asked for.
    pub keeper: Option<Keeper>,
}

impl File {
    /// Prepares a file, which is created later.
    ///
    /// # Errors
    /// Those of [`Output::prepare`].
    pub fn prepare(config: &OutputConfig, keeper: Option<Keeper>) -> Result<Self> {
        let output = Output::prepare(config.clone())?;
        Ok(Self {
            counts: Arc::clone(output.counts()),
            output: Mutex::new(output),
            failed: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            name: config.path.display().to_string(),
            last_ns: if config.format == Format::Pcap { PCAP_END_NS - 1 } else { u64::MAX },
            refused: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            keeper,
        })
    }

    pub fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The output, unless a thread writes to it for longer than a moment: a pipe's reader may sleep.
    pub fn idle_output(&self) -> Option<MutexGuard<'_, Output>> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.output.try_lock() {
                Ok(output) => return Some(output),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_INTERVAL),
            }
        }
        None
    }

    /// Counts of the packets written and of those that failed.
    pub fn counts(&self) -> &OutputCounts {
        &self.counts
    }

    /// Returns the number of packets that were not written because the format cannot hold their times.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that were not written, for any reason.
    pub fn lost(&self) -> u64 {
        self.counts.lost() + self.refused()
    }

    /// Writes a chunk's records.
    pub fn write_chunk(&self, chunk: &Chunk) {
        let mut output = self.output();
        if output.write(chunk).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.note_complete(&output);
    }

    /// Ends the file, and returns its path once it is complete; `None` if there is none, or writing failed.
    pub fn end_file(&self) -> Option<PathBuf> {
        let mut output = self.output();
        let path = output.end_file();
        if output.flush().is_err() {
            self.failed.store(true, Ordering::Relaxed);
            return None;
        }
        self.note_complete(&output);
        path
    }

    fn note_complete(&self, output: &Output) {
        if output.is_complete() {
            self.complete.store(true, Ordering::Relaxed);
        }
    }

    pub fn into_output(self) -> Output {
        self.output.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChunkSink for File {
    fn take(&self, chunk: &mut Chunk) {
        match &self.keeper {
            Some(keeper) => self.keep(keeper, chunk),
            None => {
                self.write_chunk(chunk);
                chunk.clear();
            }
        }
    }

    fn flush(&self) {
        if self.keeper.is_none() && self.output().flush().is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// The numbers that one port's interfaces have in the file; shared by its queues.
pub struct Numbers {
    in_file: Mutex<Vec<u32>>,
    filter: Option<String>,
    /// Devices appear while the port is open: its counts are of several.
    pub several: bool,
}

impl Numbers {
    pub fn new(filter: Option<String>, several: bool) -> Self {
        Self { in_file: Mutex::new(Vec::new()), filter, several }
    }

    /// The numbers of the interfaces met so far, unless a thread is adding one.
    pub fn known(&self) -> Option<Vec<u32>> {
        self.in_file.try_lock().ok().map(|in_file| in_file.clone())
    }

    /// The numbers of all these interfaces; those not met before are added to the file.
    pub fn of(&self, interfaces: &[Interface], file: &File) -> Result<Vec<u32>> {
        let mut in_file = self.in_file.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(interface) = interfaces.get(in_file.len()) {
            let number = file.output().add_interface(interface, self.filter.as_deref())?;
            in_file.push(number);
        }
        Ok(in_file.clone())
    }
}

/// Bytes of a chunk, and chunks of one recorder that may be on their way at most: 32 MiB.
const CHUNK_BYTES: usize = 128 << 10;
const MAX_CHUNKS: usize = 256;

/// Writes one queue's packets to the file.
pub struct Recorder {
    sender: ChunkSender<File>,
    numbers: Arc<Numbers>,
    known: usize,
    is_live: bool,
    /// The last time that the file's format can hold.
    last_ns: u64,
    pub trigger: Option<TriggerFilter>,
    error: Option<Error>,
}

impl Recorder {
    /// Creates the recorder of a queue, `quiet` if that receives live packets; `hold_time` says how long a
    /// part of a chunk may be held back.
    pub fn new(
        encoder: Encoder,
        route: ChunkRoute,
        file: Arc<File>,
        numbers: Arc<Numbers>,
        hold_time: Duration,
        quiet: Option<Quiet>,
    ) -> Self {
        let (bytes, max_chunks) = (CHUNK_BYTES, MAX_CHUNKS);
        let options = ChunkOptions { bytes, max_chunks, hold_time, quiet, hurries: false };
        let (is_live, last_ns) = (quiet.is_some(), file.last_ns);
        let sender = ChunkSender::new(encoder, route, file, options);
        Self { sender, numbers, known: 0, is_live, last_ns, trigger: None, error: None }
    }

    /// Takes the recorder's error; errors of the file are separate.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Numbers the interfaces that have appeared.
    pub fn meet(&mut self, interfaces: &[Interface]) -> Result<()> {
        if interfaces.len() > self.known {
            let in_file = self.numbers.of(interfaces, &self.sender.sink)?;
            let new = in_file.iter().skip(self.known);
            new.for_each(|&number| self.sender.encoder.map_interface(number));
            self.known = in_file.len();
            return self.trigger.as_mut().map_or(Ok(()), |trigger| trigger.meet(interfaces));
        }
        Ok(())
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        if let Some(trigger) = &mut self.trigger
            && let Some(keeper) = &self.sender.sink.keeper
        {
            trigger.look_at(packet, keeper);
        }
        if packet.meta().timestamp_ns <= self.last_ns {
            self.sender.append(packet);
        } else {
            self.late_packet(packet);
        }
    }

    /// Handles a packet whose time the format cannot hold. A live capture keeps it with the format's last
    /// second, because it cannot be received again.
    #[cold]
    fn late_packet(&mut self, packet: &Packet<'_>) {
        let file = &self.sender.sink;
        let problem = || {
            let name = &file.name;
            format!(
                "{name}: a packet has a time after 2106-02-07, which pcap cannot hold; write pcapng"
            )
        };
        if !self.is_live {
            file.refused.fetch_add(1, Ordering::Relaxed);
            self.error.get_or_insert_with(|| Error::Usage(problem()));
            return;
        }
        if !file.warned.swap(true, Ordering::Relaxed) {
            notice::say(problem());
        }
        self.sender.append(packet);
    }

    fn has_ended(&self) -> bool {
        let file = &self.sender.sink;
        let is_after_end = |last_ns| file.counts.is_after_end(last_ns);
        self.error.is_some()
            || file.has_failed()
            || file.complete.load(Ordering::Relaxed)
            || self.sender.last_ns().is_some_and(is_after_end)
    }
}

/// A capture of one queue: records its packets, prints them, counts them.
pub struct Capture {
    pub recorder: Option<Recorder>,
    pub lines: Option<Lines>,
    pub counter: Option<Counter>,
}

impl Capture {
    fn flow(&self) -> ControlFlow<()> {
        let ended = self.lines.as_ref().is_some_and(|lines| lines.sender.sink.has_failed())
            || self.recorder.as_ref().is_some_and(Recorder::has_ended);
        if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Visitor for Capture {
    fn prepare(&mut self, queue: &Queue) {
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.meet(queue.interfaces())
        {
            recorder.error = Some(error);
        }
        if let Some(lines) = &mut self.lines {
            lines.meet(queue.interfaces());
        }
        if let Some(counter) = &mut self.counter {
            counter.meet(queue.interfaces());
        }
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.packet(packet);
        }
        if let Some(lines) = &mut self.lines {
            lines.packet(packet);
        }
        if let Some(counter) = &mut self.counter {
            counter.packet(packet);
        }
    }

    fn batch_done(&mut self) -> ControlFlow<()> {
        if let Some(lines) = &mut self.lines {
            lines.sender.pass_on();
        }
        if let Some(counter) = &mut self.counter {
            counter.answer();
        }
        self.flow()
    }

    fn idle(&mut self) -> ControlFlow<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.sender.idle();
        }
        if let Some(lines) = &mut self.lines {
            lines.sender.idle();
        }
        if let Some(counter) = &mut self.counter {
            counter.answer();
        }
        self.flow()
    }

    fn finish(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.sender.finish();
        }
        if let Some(lines) = &mut self.lines {
            lines.sender.finish();
        }
        if let Some(counter) = &mut self.counter {
            counter.publish();
        }
    }
}

/// Sets a port's statistics: those of its only interface. Several interfaces of a port have none.
pub fn set_statistics(output: &mut Output, numbers: &Numbers, totals: Totals, started_ns: u64) {
    let known = numbers.known().filter(|_| !numbers.several);
    let Some(&[number]) = known.as_deref() else { return };
    let taken_ns = now_ns();
    let stats = InterfaceStats {
        taken_ns,
        start_ns: Some(started_ns),
        end_ns: Some(taken_ns),
        received: Some(totals.received),
        dropped: None,
        filter_accepted: Some(totals.received),
        os_dropped: Some(totals.lost),
        delivered: Some(totals.packets),
        losses: match totals.lost {
            0 => Vec::new(),
            lost => vec![("ring full".into(), lost)],
        },
    };
    // The number came from the same output.
    let _ = output.set_statistics(number, stats);
}

#[cfg(test)]
mod tests {
    use sluicegate::file::write::EncoderConfig;
    use sluicegate::port::LINKTYPE_ETHERNET;
    use sluicegate::ring::Meta;

    use super::*;

    /// Records packets of these times in a file of this format. Returns the counts of those written and lost,
    /// whether the recorder has ended, and whether it has an error.
    fn record(format: Format, quiet: Option<Quiet>, times: [u64; 2]) -> (u64, u64, bool, bool) {
        let folder = tempfile::tempdir().unwrap();
        let config = OutputConfig { format, ..OutputConfig::new(folder.path().join("a")) };
        let file = Arc::new(File::prepare(&config, None).unwrap());
        file.output().begin().unwrap();
        let encoder = Encoder::new(&EncoderConfig { format, ..EncoderConfig::default() });
        let numbers = Arc::new(Numbers::new(None, false));
        let (route, hold_time) = (ChunkRoute::Straight, Duration::ZERO);
        let mut recorder =
            Recorder::new(encoder, route, Arc::clone(&file), numbers, hold_time, quiet);
        let (name, comment) = (String::new(), String::new());
        let interface = Interface { name, link_type: LINKTYPE_ETHERNET, snaplen: 0, comment };
        recorder.meet(&[interface]).unwrap();
        for timestamp_ns in times {
            let meta = Meta { timestamp_ns, ..Meta::default() };
            recorder.packet(&Packet::new(&meta, &[0; 60]));
        }
        let has_ended = recorder.has_ended();
        recorder.sender.finish();
        let (written, lost) = (file.counts().written(), file.lost());
        (written, lost, has_ended, recorder.take_error().is_some())
    }

    #[test]
    fn packets_after_the_end_of_pcaps_times_are_kept_if_live_and_refused_of_a_file() {
        let times = [PCAP_END_NS - 1, PCAP_END_NS];
        let quiet = Quiet::of(&"packet:eth0".parse().unwrap()).unwrap();
        assert_eq!(record(Format::Pcap, Some(quiet), times), (2, 0, false, false));
        assert_eq!(record(Format::Pcap, None, times), (1, 1, true, true));
    }

    #[test]
    fn pcapng_holds_the_last_of_all_times_and_goes_on() {
        assert_eq!(record(Format::Pcapng, None, [u64::MAX, 5]), (2, 0, false, false));
    }
}
