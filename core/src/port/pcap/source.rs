//! A capture file as a source.
//!
//! Slots point straight into the buffer into which the file is read: reading a packet copies nothing. The
//! buffer is refilled when the program has given all slots back. A packet of more than 65535 bytes takes
//! several slots, consecutive in memory.
#![allow(unsafe_code)]

use std::path::Path;

use crate::error::{Error, Result};
use crate::file::read::{Outcome, ParsedPacket, Reader};
use crate::filter::Filter;
use crate::port::backend::{Backend, WakeSource};
use crate::port::name::PortName;
use crate::port::options::OpenOptions;
use crate::port::queue::{Port, Queue};
use crate::port::rings::PoolRequirements;
use crate::port::stats::QueueStats;
use crate::port::wait::is_readable;
use sluicegate_base::ring::{Interface, Readiness, Ring, Wait};

/// Minimum number of slots, which hold any packet of an ordinary link type: 262144 bytes take five slots,
/// and one slot stays empty.
const MIN_SLOTS: u32 = 6;
/// The maximum of a slot's 16-bit length.
const SLOT_BYTES: usize = u16::MAX as usize;
/// Number of packets that a sync examines per slot of the ring before it returns, even if none matches the
/// filter.
const EXAMINED_PER_SLOT: u32 = 16;

/// The state of a file's one queue.
#[derive(Debug)]
pub(super) struct FileSource {
    name: String,
    reader: Reader,
    /// The filter expression; rejected packets take no slot.
    expression: Option<String>,
    /// The filter, compiled for the link type of each known interface.
    filters: Vec<Filter>,
    snaplen: usize,
    /// A packet that needs more slots than the ring had left.
    pending: Option<ParsedPacket>,
    /// The error that ended reading, reported after the packets before it.
    failure: Option<Error>,
    /// True if the last sync found nothing to read.
    starved: bool,
    taken: u64,
}

pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let slots = name.slots(MIN_SLOTS..=1 << 20)?;
    let snaplen = name.number("snaplen", 1..=u32::MAX)?;
    // No slot has a buffer.
    let pool = PoolRequirements::usual(1, 0).pool_of(options)?;
    let mut source = FileSource {
        name: name.to_string(),
        reader: Reader::open(Path::new(name.name()))?,
        expression: name.option("filter").map(str::to_owned),
        filters: Vec::new(),
        snaplen: snaplen.map_or(usize::MAX, |n| n as usize),
        pending: None,
        failure: None,
        starved: false,
        taken: 0,
    };
    let mut interfaces = Vec::new();
    source.add_interfaces(&mut interfaces);
    source.compile_filters()?;
    let rx = Ring::receive_indirect(&pool, slots)?;
    let tx = Ring::absent(&pool)?;
    let queue = Queue::new(0, rx, tx, source, interfaces);
    Ok(Port::plain(name, vec![queue]))
}

impl FileSource {
    fn fill(&mut self, ring: &mut Ring, used: &mut u32) -> Result<()> {
        let room = ring.backend_slots();
        let all_given_back = ring.available() == 0;
        self.starved = false;
        for _ in 0..EXAMINED_PER_SLOT.saturating_mul(ring.num_slots()) {
            if *used == room {
                break;
            }
            let placed = match self.pending.take() {
                Some(placed) => placed,
                None => match self.reader.advance(all_given_back && *used == 0, false)? {
                    Outcome::Packet(placed) if self.wants(&placed)? => placed,
                    Outcome::Packet(_) | Outcome::Skipped => continue,
                    Outcome::NotYet => {
                        self.starved = true;
                        return Ok(());
                    }
                    Outcome::NoRoom | Outcome::End => return Ok(()),
                },
            };
            let bytes = placed.data.len().min(self.snaplen);
            let slots = bytes.div_ceil(SLOT_BYTES).max(1) as u32;
            if slots >= ring.num_slots() {
                self.reader.finish();
                return Err(self.too_long(bytes, slots));
            }
            if slots > room - *used {
                self.pending = Some(placed);
                return Ok(());
            }
            self.hand_out(ring, ring.after(ring.tail(), *used), &placed, bytes);
            self.taken += 1;
            *used += slots;
        }
        Ok(())
    }

    /// Returns true if the filter accepts a packet.
    #[inline]
    fn wants(&mut self, placed: &ParsedPacket) -> Result<bool> {
        if self.expression.is_none() {
            return Ok(true);
        }
        let interface = placed.meta.interface as usize;
        if interface >= self.filters.len() {
            self.compile_filters()?;
        }
        let bytes = self.reader.bytes(placed.data.clone());
        Ok(self.filters[interface].matches(bytes, placed.meta.wire_bytes))
    }

    /// Compiles the filter for new interfaces.
    fn compile_filters(&mut self) -> Result<()> {
        let Some(expression) = &self.expression else { return Ok(()) };
        for interface in &self.reader.interfaces()[self.filters.len()..] {
            let known = self.filters.iter().find(|f| f.link_type() == interface.link_type);
            let filter = match known {
                Some(filter) => filter.clone(),
                None => Filter::compile_for_file(expression, interface.link_type)?,
            };
            self.filters.push(filter);
        }
        Ok(())
    }

    /// Points slots at a packet, from `first` on.
    #[inline]
    fn hand_out(&self, ring: &mut Ring, first: u32, placed: &ParsedPacket, bytes: usize) {
        let mut index = first;
        let mut done = 0;
        loop {
            let now = (bytes - done).min(SLOT_BYTES);
            let meta = match done {
                0 => placed.meta,
                _ => Default::default(),
            };
            let start = self.reader.address(placed.data.start + done);
            let continues = done + now < bytes;
            // SAFETY: `advance` found the packet's bytes in the reader's private memory, in a record that
            // no other slot points into. They are neither moved nor overwritten before a call of `advance`
            // that may move them, which `fill` makes only when the program has given every slot back. The
            // queue that holds the ring holds the reader, too.
            unsafe { ring.point(index, start, now as u16, continues) };
            *ring.meta_mut(index) = meta;
            if !continues {
                return;
            }
            done += now;
            index = ring.next(index);
        }
    }

    fn too_long(&self, bytes: usize, slots: u32) -> Error {
        Error::Port {
            port: self.name.clone(),
            reason: format!(
                "a packet of {bytes} bytes takes {slots} slots: use slots={} or more, or snaplen=",
                slots + 1
            ),
        }
    }
}

impl Backend for FileSource {
    /// Fills the ring from the file. After the last packets, the next sync reports the error.
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let mut new_slots = 0;
        if self.failure.is_none() {
            match self.fill(ring, &mut new_slots) {
                Ok(()) => {}
                Err(error) => self.failure = Some(error),
            }
            ring.publish(ring.after(ring.tail(), new_slots));
        }
        match self.failure.take_if(|_| new_slots == 0) {
            Some(error) => Err(error),
            None => Ok(new_slots),
        }
    }

    fn add_interfaces(&self, known: &mut Vec<Interface>) {
        let limit = u32::try_from(self.snaplen).unwrap_or(0);
        for interface in &self.reader.interfaces()[known.len()..] {
            let mut interface = interface.clone();
            interface.snaplen = match (interface.snaplen, limit) {
                (0, limit) => limit,
                (snaplen, 0) => snaplen,
                (snaplen, limit) => snaplen.min(limit),
            };
            known.push(interface);
        }
    }

    fn reads_file(&self) -> bool {
        true
    }

    fn is_finished(&mut self) -> bool {
        self.reader.is_finished() && self.pending.is_none() && self.failure.is_none()
    }

    fn stop_rx(&mut self) -> Result<()> {
        self.reader.finish();
        self.pending = None;
        self.starved = false;
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        Ok(QueueStats { received: self.taken, ..QueueStats::default() })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        let Some(fd) = self.reader.pollable().filter(|_| self.starved) else {
            return Ok(Some(Readiness::Ready));
        };
        match is_readable(fd) {
            Ok(ready) => Ok(ready.then_some(Readiness::Ready)),
            Err(errno) => Err(Error::system("poll", &self.name, errno)),
        }
    }

    fn spins(&mut self, _wait: Wait) -> bool {
        true
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        self.reader.pollable().map_or(WakeSource::Never, WakeSource::Descriptor)
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        Ok(if ready { Readiness::Ready } else { Readiness::TimedOut })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use sluicegate_base::memory::{Pool, PoolConfig};

    /// Makes a pcap file of `packets` Ethernet packets, each filled with its number's lowest byte.
    fn capture(packets: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = Vec::new();
        let mut number = |n: u32| bytes.extend_from_slice(&n.to_ne_bytes());
        [0xa1b2_c3d4, if cfg!(target_endian = "big") { 0x0002_0004 } else { 0x0004_0002 }]
            .into_iter()
            .chain([0, 0, 0, 1])
            .for_each(&mut number);
        for i in 0..packets {
            [i, 0, 4, 1000, i].into_iter().for_each(&mut number);
        }
        file.write_all(&bytes).unwrap();
        file
    }

    fn source(file: &tempfile::NamedTempFile, expression: &str) -> (FileSource, Ring) {
        let source = FileSource {
            name: "pcap:test".into(),
            reader: Reader::open(file.path()).unwrap(),
            expression: Some(expression.to_owned()),
            filters: Vec::new(),
            snaplen: 2,
            pending: None,
            failure: None,
            starved: false,
            taken: 0,
        };
        let pool = Pool::new(PoolConfig::default()).unwrap();
        (source, Ring::receive_indirect(&pool, 6).unwrap())
    }

    #[test]
    fn what_the_filter_refuses_takes_no_slot() {
        let file = capture(100);
        // The lowest two bits of the packet's number, and its length on the wire.
        let (mut source, mut ring) = source(&file, "ether[0] & 3 = 0 and len = 1000");
        let mut seconds = Vec::new();
        while !source.is_finished() {
            source.sync_rx(&mut ring).unwrap();
            seconds.extend(ring.packets().map(|p| p.meta().timestamp_ns / 1_000_000_000));
            assert!(ring.packets().all(|p| p.head().len() == 2), "cut after the filter");
            ring.release(ring.available());
        }
        assert_eq!(seconds, (0..100).step_by(4).collect::<Vec<_>>());
        assert_eq!(source.stats().unwrap().received, 25);
    }

    #[test]
    fn a_sync_returns_though_the_filter_finds_nothing() {
        let file = capture(1000);
        let (mut source, mut ring) = source(&file, "less 999");
        let mut syncs = 0;
        while !source.is_finished() {
            assert_eq!(source.sync_rx(&mut ring).unwrap(), 0);
            assert_eq!(source.look().unwrap(), Some(Readiness::Ready), "there is more to look at");
            syncs += 1;
        }
        assert!(syncs > 1000 / (6 * EXAMINED_PER_SLOT), "{syncs} syncs");
    }
}
