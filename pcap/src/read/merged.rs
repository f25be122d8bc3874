//! Several capture files read as one, in the order of time.
//!
//! The packet with the earliest time among the files' next packets comes first; of packets with the same time,
//! that of the earlier file. Packets of a file keep their order. Interfaces with equal descriptions become
//! one.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use sluicegate_base::error::Result;
use sluicegate_base::ring::Interface;

use super::{Outcome, ParsedPacket, Reader, Record};

/// Reads several capture files as one.
#[derive(Debug)]
pub struct MergedReader {
    inputs: Vec<Input>,
    interfaces: Interfaces,
    /// The file of the packet that was found last.
    last: Option<usize>,
    /// The file that has nothing to read yet.
    awaited: Option<usize>,
}

/// The result of a search for the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    /// A packet: see [`MergedReader::record`].
    Packet,
    /// A file has nothing to read yet: see [`MergedReader::pollable`].
    NotYet,
    /// The end of all files.
    End,
}

#[derive(Debug)]
struct Input {
    reader: Reader,
    /// The next packet; it counts its interface among those of all files.
    next: Option<ParsedPacket>,
    /// The number of each of its interfaces among those of all files.
    numbers: Vec<u32>,
}

/// The interfaces of all files, and their numbers.
#[derive(Debug, Default)]
struct Interfaces {
    all: Vec<Interface>,
    numbers: HashMap<Interface, u32>,
}

impl MergedReader {
    /// Opens the files; `-` is standard input. Waits for their headers, as [`Reader::open`] does.
    ///
    /// # Errors
    /// The errors of [`Reader::open`].
    pub fn open<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self> {
        let open =
            |path| Ok(Input { reader: Reader::open(path)?, next: None, numbers: Vec::new() });
        let mut inputs = paths.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut interfaces = Interfaces::default();
        inputs.iter_mut().for_each(|input| input.number_interfaces(&mut interfaces));
        Ok(Self { inputs, interfaces, last: None, awaited: None })
    }

    /// Returns the interfaces read so far, of all files. Files may add interfaces later.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces.all
    }

    /// Searches for the next packet; never waits.
    ///
    /// # Errors
    /// A file is unreadable, damaged or truncated; all its packets before the fault have been returned. The
    /// next call continues with the other files.
    pub fn advance(&mut self) -> Result<MergeOutcome> {
        if let Some(last) = self.last.take() {
            self.inputs[last].next = None;
        }
        self.awaited = None;
        let mut first = None;
        for (number, input) in self.inputs.iter_mut().enumerate() {
            let Some(next) = input.next(&mut self.interfaces)? else {
                if !input.reader.is_finished() {
                    self.awaited = Some(number);
                    return Ok(MergeOutcome::NotYet);
                }
                continue;
            };
            let time_ns = next.meta.timestamp_ns;
            if first.is_none_or(|(earliest_ns, _)| time_ns < earliest_ns) {
                first = Some((time_ns, number));
            }
        }
        self.last = first.map(|(_, number)| number);
        Ok(if self.last.is_some() { MergeOutcome::Packet } else { MergeOutcome::End })
    }

    /// Returns the packet that [`advance`](Self::advance) found. Its interface is an index into
    /// [`interfaces`](Self::interfaces).
    pub fn record(&self) -> Option<Record<'_>> {
        let input = &self.inputs[self.last?];
        input.next.as_ref().map(|found| input.reader.record(found))
    }

    /// Returns the descriptor to poll for more bytes of the file that has nothing to read yet.
    pub fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.inputs[self.awaited?].reader.pollable()
    }
}

impl Input {
    /// Returns the next packet, if it has arrived.
    #[inline]
    fn next(&mut self, interfaces: &mut Interfaces) -> Result<Option<&ParsedPacket>> {
        while self.next.is_none() {
            match self.reader.advance(true, false)? {
                Outcome::Packet(mut found) => {
                    self.number_interfaces(interfaces);
                    found.meta.interface = self.numbers[found.meta.interface as usize];
                    self.next = Some(found);
                }
                Outcome::Skipped => {}
                Outcome::NotYet | Outcome::NoRoom | Outcome::End => return Ok(None),
            }
        }
        Ok(self.next.as_ref())
    }

    /// Numbers the interfaces that have appeared.
    fn number_interfaces(&mut self, interfaces: &mut Interfaces) {
        for interface in &self.reader.interfaces()[self.numbers.len()..] {
            let new = interfaces.all.len() as u32;
            let number = *interfaces.numbers.entry(interface.clone()).or_insert(new);
            if number == new {
                interfaces.all.push(interface.clone());
            }
            self.numbers.push(number);
        }
    }
}
