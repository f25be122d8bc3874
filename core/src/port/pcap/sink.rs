//! A capture file as a sink.
//!
//! A sync turns the packets of the transmit ring into records and passes them to the file in large pieces.
//! A partial piece is written when no packet has arrived for a moment, and when the queue is closed or
//! dropped. A packet without a timestamp gets the time of its sync.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::file::write::{Chunk, Encoder, EncoderConfig, Output, OutputConfig};
use crate::port::backend::Backend;
use crate::port::interface::described;
use crate::port::name::PortName;
use crate::port::options::{Directions, OpenOptions};
use crate::port::queue::{Port, Queue};
use crate::port::rings::{PoolRequirements, RingMaker, TxProgress};
use crate::port::stats::QueueStats;
use sluicegate_base::ring::{Interface, Meta, Packet, Ring, now_ns};

/// Maximum number of bytes of a packet that a file keeps, and that every reader accepts.
const MAX_SNAPLEN: u32 = 262_144;
/// Maximum time that a packet is held back if no others follow.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);

/// The state of a file's one queue.
#[derive(Debug)]
pub(super) struct FileSink {
    /// None once the file is closed.
    recorder: Option<Recorder>,
    /// Packets written and lost, once the file is closed.
    summary: (u64, u64),
    /// The slots taken so far, and the packets that the file cannot hold.
    progress: TxProgress,
    snaplen: u32,
}

/// The state of an open file.
#[derive(Debug)]
struct Recorder {
    output: Output,
    encoder: Encoder,
    /// Records that were not written to the file yet.
    chunk: Chunk,
    /// When the last packet arrived that was not flushed yet.
    held_since: Option<Instant>,
    /// Number of interfaces in the file.
    interfaces: u32,
}

pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    if name.option("filter").is_some() {
        return Err(name.error("filter= is for reading a file: filter where the packets come from"));
    }
    let snaplen = name.number("snaplen", 1..=MAX_SNAPLEN)?.unwrap_or(MAX_SNAPLEN);
    let slots = name.slots(2..=65536)?;
    let pool = PoolRequirements::usual(1, slots).pool_of(options)?;
    let needed = MAX_SNAPLEN.div_ceil(pool.buffer_bytes()) + 1;
    if slots < needed {
        let advice = format!("the longest packet takes {} slots: use {needed} or more", needed - 1);
        return Err(name.bad_option("slots", &slots.to_string(), &advice));
    }
    let (rx, tx) = RingMaker { pool, usage: Directions::Send, slots }.make()?;
    let config = OutputConfig { access: options.access, snaplen, ..OutputConfig::new(name.name()) };
    let encoder =
        Encoder::new(&EncoderConfig { format: config.format, snaplen, ..EncoderConfig::default() });
    let recorder = Recorder {
        output: Output::create(config)?,
        chunk: encoder.chunk(),
        encoder,
        held_since: None,
        interfaces: 0,
    };
    let (recorder, progress) = (Some(recorder), TxProgress::default());
    let sink = FileSink { recorder, summary: (0, 0), progress, snaplen };
    let queue = Queue::new(0, rx, tx, sink, Vec::new());
    Ok(Port::plain(name, vec![queue]))
}

impl FileSink {
    fn finish(&mut self) -> Option<Error> {
        let Recorder { mut output, chunk, .. } = self.recorder.take()?;
        // The summary has the error, too.
        let _ = output.write(&chunk);
        let summary = output.finish();
        self.summary = (summary.packets, summary.lost);
        summary.failure
    }

    /// Counts packets that arrive after the end.
    fn refuse_the_rest(&mut self, ring: &Ring) {
        let progress = &mut self.progress;
        for packet in ring.pending_tx(progress.next) {
            progress.refuse(ring, packet.slots(), false);
        }
    }
}

impl Backend for FileSink {
    /// Takes released packets, and flushes packets that have waited long enough. Packets that the file does
    /// not take count as refused; their slots become free in any case.
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        let first = self.progress.next;
        let recorded = match &mut self.recorder {
            Some(recorder) => {
                let (slots, refused, recorded) = recorder.take(ring, first, self.snaplen);
                self.progress.next = ring.after(first, slots);
                self.progress.refused += refused;
                recorded
            }
            None => {
                self.refuse_the_rest(ring);
                Ok(())
            }
        };
        let slots = self.progress.publish(ring, first);
        for i in 0..slots {
            // Old metadata must not be taken for that of the next packet.
            *ring.meta_mut(ring.after(first, i)) = Meta::default();
        }
        recorded.map(|()| slots)
    }

    /// Adds new interfaces to the file, and to `known`.
    fn describe_sent(
        &mut self,
        interfaces: &[Interface],
        known: &mut Vec<Interface>,
    ) -> Result<()> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        for interface in interfaces.iter().skip(recorder.interfaces as usize) {
            let snaplen = match interface.snaplen {
                0 => self.snaplen,
                bytes => bytes.min(self.snaplen),
            };
            let interface = Interface { snaplen, ..interface.clone() };
            recorder.add_interface(&interface)?;
            known.push(interface);
        }
        Ok(())
    }

    /// Completes the file and closes it.
    fn close_tx(&mut self, ring: &mut Ring, _: Duration) -> Result<()> {
        let failure = self.finish();
        self.refuse_the_rest(ring);
        if self.progress.next != ring.head() {
            // A packet whose last slot was never released.
            self.progress.refused += 1;
        }
        self.progress.give_up(ring);
        failure.map_or(Ok(()), Err)
    }

    fn stats(&mut self) -> Result<QueueStats> {
        let (sent, lost) = match &self.recorder {
            Some(recorder) => {
                let counts = recorder.output.counts();
                (counts.written(), counts.lost())
            }
            None => self.summary,
        };
        Ok(QueueStats { sent, refused: self.progress.refused + lost, ..QueueStats::default() })
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        // A caller that needs the error calls `close_tx`.
        self.finish();
    }
}

impl Recorder {
    fn add_interface(&mut self, interface: &Interface) -> Result<()> {
        let number = self.output.add_interface(interface, None)?;
        self.encoder.map_interface(number);
        self.interfaces += 1;
        Ok(())
    }

    /// Takes the packets from slot `first` on. Returns the number of slots taken, the number of packets
    /// refused, and the error; the file counts its own losses.
    fn take(&mut self, ring: &Ring, first: u32, snaplen: u32) -> (u32, u64, Result<()>) {
        let (mut slots, mut refused, mut result) = (0, 0, Ok(()));
        let mut packets = ring.pending_tx(first).peekable();
        if packets.peek().is_none() {
            return (0, 0, self.hand_on_when_idle());
        }
        if self.interfaces == 0 {
            result = self.add_interface(&Interface { snaplen, ..described("", "") });
        }
        let now_ns = now_ns();
        for packet in packets {
            slots += packet.slots();
            if packet.meta().interface >= self.interfaces {
                refused += 1;
            } else if let Err(error) = self.record(&packet, now_ns) {
                result = Err(error);
            }
        }
        self.held_since = Some(Instant::now());
        (slots, refused, result)
    }

    #[inline]
    fn record(&mut self, packet: &Packet<'_>, now_ns: u64) -> Result<()> {
        let timed;
        let mut packet = *packet;
        if packet.meta().timestamp_ns == 0 {
            timed = Meta { timestamp_ns: now_ns, ..*packet.meta() };
            packet = packet.with_meta(&timed);
        }
        if self.encoder.append(&mut self.chunk, &packet) {
            return Ok(());
        }
        let written = self.output.write(&self.chunk);
        self.chunk.clear();
        // An empty chunk accepts any packet.
        self.encoder.append(&mut self.chunk, &packet);
        written
    }

    fn hand_on_when_idle(&mut self) -> Result<()> {
        match self.held_since {
            Some(since) if since.elapsed() >= FLUSH_INTERVAL => {
                self.held_since = None;
                let written = self.output.write(&self.chunk);
                self.chunk.clear();
                written.and_then(|()| self.output.flush())
            }
            _ => Ok(()),
        }
    }
}
