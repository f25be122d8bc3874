//! Passes records from the queues to one output: directly, or through a thread that merges several queues
//! by time. Captured packets and printed lines take the same path.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluicegate::error::{Error, Result};
use sluicegate::file::write::{Chunk, Encoder, Merger};
use sluicegate::port::{PortName, RECORDING_LATENCY};
use sluicegate::ring::{Packet, now_ns};

/// Maximum of messages queued for the merging thread.
const IN_TRANSIT: usize = 256;
/// Interval between checks for expired records while nothing arrives.
const TICK: Duration = Duration::from_millis(10);
/// The longest time of a packet in the kernel, without the time to fill a block of a packet ring, or the
/// sleep of a reader of a cell ring. A packet that breaks a promise is late.
const MAX_DELIVERY_TIME: Duration = Duration::from_millis(40);

/// The output of all queues; it counts lost records.
pub trait ChunkSink: Send + Sync {
    /// Takes a chunk's records, and leaves an empty chunk.
    fn take(&self, chunk: &mut Chunk);

    /// Flushes buffered records.
    fn flush(&self);

    /// Returns true if writing has failed.
    fn has_failed(&self) -> bool;
}

/// The route of full chunks.
pub enum ChunkRoute {
    /// Straight to the output: this is the only queue.
    Straight,
    /// To the merging thread; empty chunks come back.
    Merged { source: usize, to: SyncSender<Message>, back: Receiver<Chunk>, made: usize },
}

/// A message to the merging thread.
pub enum Message {
    /// A full chunk of a source.
    Chunk(usize, Chunk),
    /// A source will send nothing older than this time.
    Silent(usize, u64),
    /// A live source has no room left: write all received records now.
    Hurry,
    /// A source has ended.
    End(usize),
}

/// The limits of a queue's chunks.
#[derive(Clone, Copy)]
pub struct ChunkOptions {
    pub bytes: usize,
    /// Maximum of one queue's chunks in transit.
    pub max_chunks: usize,
    /// How long a part of a chunk may be held back.
    pub hold_time: Duration,
    /// The promises of a live queue; none for a file or a pipe.
    pub quiet: Option<Quiet>,
    /// A live queue without room gives up the order, not packets.
    pub hurries: bool,
}

/// Sends one queue's records to the output.
pub struct ChunkSender<S> {
    pub encoder: Encoder,
    chunk: Chunk,
    route: ChunkRoute,
    pub sink: Arc<S>,
    options: ChunkOptions,
    passed_on: Instant,
}

impl<S: ChunkSink> ChunkSender<S> {
    pub fn new(encoder: Encoder, route: ChunkRoute, sink: Arc<S>, options: ChunkOptions) -> Self {
        let chunk = encoder.chunk_of(options.bytes);
        Self { encoder, chunk, route, sink, options, passed_on: Instant::now() }
    }

    /// Adds a packet's record; passes on a full chunk first.
    #[inline]
    pub fn append(&mut self, packet: &Packet<'_>) {
        if !self.encoder.append(&mut self.chunk, packet) {
            self.pass_on();
            // An empty chunk has room for a packet of any length.
            self.encoder.append(&mut self.chunk, packet);
        }
    }

    /// Returns the latest time of the records that have not been passed on, unless another queue may still
    /// send earlier ones.
    pub fn last_ns(&self) -> Option<u64> {
        self.chunk.last_ns().filter(|_| matches!(self.route, ChunkRoute::Straight))
    }

    /// Passes the chunk on and begins a new one.
    pub fn pass_on(&mut self) {
        self.passed_on = Instant::now();
        if self.chunk.is_empty() {
            return;
        }
        match &mut self.route {
            ChunkRoute::Straight => {
                self.sink.take(&mut self.chunk);
            }
            ChunkRoute::Merged { source, to, back, made } => {
                let next = back.try_recv().unwrap_or_else(|_| {
                    let (bytes, encoder) = (self.options.bytes, &self.encoder);
                    // With too little memory, the queue waits for a chunk in transit, if there is one.
                    let more = match *made {
                        ..=1 => Some(encoder.chunk_of(bytes)),
                        made if made < self.options.max_chunks => encoder.try_chunk_of(bytes),
                        _ => None,
                    };
                    if let Some(chunk) = more {
                        *made += 1;
                        return chunk;
                    }
                    if self.options.hurries && self.options.quiet.is_some() {
                        let _ = to.send(Message::Hurry);
                    }
                    // Backpressure: packets wait in the kernel's ring meanwhile.
                    back.recv().unwrap_or_else(|_| self.encoder.chunk_of(self.options.bytes))
                });
                let full = std::mem::replace(&mut self.chunk, next);
                // The merging thread lives until every queue has ended.
                let _ = to.send(Message::Chunk(*source, full));
            }
        }
    }

    /// Called when no packet has arrived for a moment: passes on records held back long enough, and promises
    /// that no older ones will follow.
    pub fn idle(&mut self) {
        let quiet_until_ns = self.options.quiet.as_mut().map(Quiet::empty_poll);
        if self.passed_on.elapsed() < self.options.hold_time {
            return;
        }
        let was_empty = self.chunk.is_empty();
        self.pass_on();
        match &self.route {
            ChunkRoute::Straight if !was_empty => self.sink.flush(),
            ChunkRoute::Straight => {}
            ChunkRoute::Merged { source, to, .. } => {
                if let Some(until_ns) = quiet_until_ns {
                    let _ = to.send(Message::Silent(*source, until_ns));
                }
            }
        }
    }

    /// Passes on the last records.
    pub fn finish(&mut self) {
        self.pass_on();
        if let ChunkRoute::Merged { source, to, .. } = &self.route {
            let _ = to.send(Message::End(*source));
        }
    }
}

/// The order of time among several queues.
#[derive(Clone, Copy)]
pub struct MergeOrder {
    pub sources: usize,
    /// How long a record waits for earlier records of other queues.
    pub window: Duration,
    /// A silent source delays the others for the window only; files may take any time.
    pub live: bool,
}

/// The merging thread; it returns the number of records that arrived too late to be in order.
pub type Merging = Option<JoinHandle<u64>>;

/// Creates each queue's route to an output; starts the merging thread if there are several.
pub fn routes<S: ChunkSink + 'static>(
    order: MergeOrder,
    out: Chunk,
    sink: &Arc<S>,
) -> Result<(Merging, Vec<ChunkRoute>)> {
    if order.sources <= 1 {
        return Ok((None, vec![ChunkRoute::Straight]));
    }
    let (to, incoming) = sync_channel(IN_TRANSIT);
    let (back, empties): (Vec<_>, Vec<_>) = (0..order.sources).map(|_| channel()).unzip();
    let route = |(source, back)| ChunkRoute::Merged { source, to: to.clone(), back, made: 1 };
    let routes = empties.into_iter().enumerate().map(route).collect();
    let sink = Arc::clone(sink);
    let thread = std::thread::Builder::new()
        .name("merge".into())
        .spawn(move || merge(&incoming, &back, order, out, &*sink))
        .map_err(|e| Error::start("the merging thread", e))?;
    Ok((Some(thread), routes))
}

/// Merges until every source has ended. `back` returns empty chunks to their sources.
fn merge(
    incoming: &Receiver<Message>,
    back: &[Sender<Chunk>],
    order: MergeOrder,
    mut out: Chunk,
    sink: &impl ChunkSink,
) -> u64 {
    let mut merger = Merger::with_window(order.sources, order.window);
    let mut open = true;
    while open {
        let first = incoming.recv_timeout(TICK);
        // Messages sent before this moment are handled before any record counts as missing.
        let mut now = Instant::now();
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            (0..back.len()).for_each(|source| merger.close(source));
            open = false;
        }
        let mut hurries = false;
        for message in first.into_iter().chain(incoming.try_iter().take(IN_TRANSIT)) {
            match message {
                Message::Chunk(source, chunk) => merger.push(source, chunk, now),
                Message::Silent(source, until_ns) => merger.advance(source, until_ns),
                Message::Hurry => hurries = true,
                Message::End(source) => merger.close(source),
            }
        }
        if hurries {
            // Treats all records as having waited for the window.
            now += order.window;
        }
        loop {
            let more = merger.drain(order.live.then_some(now), &mut out);
            while let Some((source, chunk)) = merger.spent() {
                // A queue that has ended needs no chunks.
                let _ = back[source].send(chunk);
            }
            if !out.is_empty() {
                sink.take(&mut out);
            }
            if !more {
                break;
            }
        }
    }
    merger.late()
}

/// The promises of a queue whose polls are empty.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    delivery_ns: u64,
    /// A moment before the latest poll.
    polled_ns: u64,
}

impl Quiet {
    /// Computes the promise for the queues of a port.
    ///
    /// # Errors
    /// `block_timeout=` or `latency=` is not a valid time.
    pub fn of(port: &PortName) -> Result<Self> {
        let waits = port.duration("block_timeout")?.or(port.duration("latency")?);
        let delivery = MAX_DELIVERY_TIME + waits.unwrap_or(RECORDING_LATENCY);
        Ok(Self { delivery_ns: delivery.as_nanos() as u64, polled_ns: 0 })
    }

    /// Records an empty poll. Returns the time, in nanoseconds since 1970, before which no later packet lies.
    pub fn empty_poll(&mut self) -> u64 {
        // Not the current time: this thread may have been suspended since its poll.
        let polled_ns = std::mem::replace(&mut self.polled_ns, now_ns());
        polled_ns.saturating_sub(self.delivery_ns)
    }

    /// Returns the longest time of a packet in the kernel.
    pub fn delivery(&self) -> Duration {
        Duration::from_nanos(self.delivery_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_allow_for_packets_in_an_open_block() {
        for (port, delivery_ms) in [
            ("packet:eth0", 60),
            ("packet:eth0?block_timeout=1ms", 41),
            ("packet:eth0?block_timeout=60s", 60_040),
            ("mirror:eth0", 60),
            ("mirror:eth0?latency=1s", 1040),
        ] {
            let mut quiet = Quiet::of(&port.parse().unwrap()).unwrap();
            assert_eq!(quiet.empty_poll(), 0, "{port}: nothing is known before the first poll");
            quiet.polled_ns = 100_000_000_000;
            assert_eq!(quiet.empty_poll(), 100_000_000_000 - delivery_ms * 1_000_000, "{port}");
        }
    }
}
