//! Sampled packets of the running program, and a ring of recent ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::PerfBuffer;
use sluicegate::error::Result;

use super::candidate::TimedFrame;
use crate::program::Program;

/// Maximum of recent packets.
const MAX_RECENT: usize = 1000;
/// Bytes of `struct scrub_sample`.
const HEAD_BYTES: usize = 24;
/// Pages of each CPU's buffer.
const PAGES: usize = 64;

/// A sampled packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The time, of CLOCK_MONOTONIC in ns.
    pub time_ns: u64,
    /// The length of its frame.
    pub frame_bytes: u32,
    /// The [counter](crate::counters) of the cause.
    pub counter: u16,
    /// The counter of the rule that it matched; 0 for none.
    pub rule: u16,
    /// The verdict is to drop.
    pub dropped: bool,
    /// The first bytes of the frame, at most 256.
    pub bytes: Vec<u8>,
}

impl Sample {
    /// Reads a record: `struct scrub_sample`, the bytes, and padding.
    fn parse(record: &[u8]) -> Option<Self> {
        let (head, bytes) = record.split_first_chunk::<HEAD_BYTES>()?;
        let time_ns = u64::from_ne_bytes(*head.first_chunk()?);
        let frame_bytes = u32::from_ne_bytes(*head[8..].first_chunk()?);
        let counter = u16::from_ne_bytes(*head[12..].first_chunk()?);
        let rule = u16::from_ne_bytes(*head[14..].first_chunk()?);
        let kept = bytes.len().min(frame_bytes as usize).min(256);
        let bytes = bytes[..kept].to_vec();
        Some(Self { time_ns, frame_bytes, counter, rule, dropped: head[16] != 0, bytes })
    }

    /// Returns the frame, with zeros for the bytes that were cut.
    fn frame(&self) -> TimedFrame {
        let mut frame = self.bytes.clone();
        frame.resize(self.frame_bytes as usize, 0);
        (self.time_ns, frame)
    }
}

/// Samples since the last reading, and those lost because a buffer was full.
#[derive(Debug, Default)]
pub struct NewSamples {
    /// The samples.
    pub samples: Vec<Sample>,
    /// The number of lost ones.
    pub lost: u64,
}

fn lock(new: &Mutex<NewSamples>) -> MutexGuard<'_, NewSamples> {
    new.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reader of a program's samples.
#[derive(Debug)]
pub(super) struct Samples {
    buffer: PerfBuffer<'static>,
    new: Arc<Mutex<NewSamples>>,
    recent: VecDeque<Sample>,
}

impl Samples {
    pub(super) fn open(program: &Program) -> Result<Self> {
        let new = Arc::new(Mutex::new(NewSamples::default()));
        let (for_samples, for_losses) = (Arc::clone(&new), Arc::clone(&new));
        let buffer = program.open_samples(
            PAGES,
            move |record| lock(&for_samples).samples.extend(Sample::parse(record)),
            move |count| lock(&for_losses).lost += count,
        )?;
        Ok(Self { buffer, new, recent: VecDeque::new() })
    }

    /// Returns the samples since the last call.
    pub(super) fn take(&mut self) -> NewSamples {
        // It fails only for an event that the kernel does not write: the others are read.
        let _ = self.buffer.consume();
        let new = std::mem::take(&mut *lock(&self.new));
        let excess = (self.recent.len() + new.samples.len()).saturating_sub(MAX_RECENT);
        self.recent.drain(..excess.min(self.recent.len()));
        let kept = new.samples.len().min(MAX_RECENT);
        self.recent.extend(new.samples[new.samples.len() - kept..].iter().cloned());
        new
    }

    /// Returns the frames of recent samples.
    pub(super) fn recent(&self) -> Vec<TimedFrame> {
        self.recent.iter().map(Sample::frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_without_its_padding() {
        let head: [&[u8]; 6] = [
            &5_u64.to_ne_bytes(),
            &3_u32.to_ne_bytes(),
            &32_u16.to_ne_bytes(),
            &1200_u16.to_ne_bytes(),
            &[1],
            &[0; 7],
        ];
        let record = [&head.concat()[..], &[1, 2, 3, 0, 0, 0, 0, 0]].concat();
        let sample = Sample::parse(&record).unwrap();
        let bytes = vec![1, 2, 3];
        let expected =
            Sample { time_ns: 5, frame_bytes: 3, counter: 32, rule: 1200, dropped: true, bytes };
        assert_eq!(sample, expected);
        assert_eq!(Sample::parse(&record[..20]), None);
        let cut = Sample { frame_bytes: 5, ..sample };
        assert_eq!(cut.frame(), (5, vec![1, 2, 3, 0, 0]));
    }
}
