//! The thread that brings several queues' chunks into the order of time and writes them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use sluicegate::file::write::{Chunk, Merger};

use super::IN_TRANSIT;
use super::file::File;

/// How often it looks at what may go although nothing arrives.
const TICK: Duration = Duration::from_millis(10);

/// A message from a recorder.
pub enum Message {
    /// A full chunk of a source.
    Chunk(usize, Chunk),
    /// Nothing older than this time will come from a source.
    Silent(usize, u64),
    /// Nothing more will come from a source.
    End(usize),
}

/// Merges until every recorder has ended. `back` returns empty chunks to their sources. With
/// `live`, a source that says nothing holds the others up no longer than the merger's window;
/// files have all the time in the world. Returns how many records came too late to be in order.
pub fn merge(
    incoming: &Receiver<Message>,
    back: &[Sender<Chunk>],
    mut merger: Merger,
    live: bool,
    mut out: Chunk,
    file: &Arc<File>,
) -> u64 {
    let mut open = true;
    while open {
        let first = incoming.recv_timeout(TICK);
        // What was sent before this moment has to be known before it counts as missing.
        let now = Instant::now();
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            (0..back.len()).for_each(|source| merger.close(source));
            open = false;
        }
        for message in first.into_iter().chain(incoming.try_iter().take(IN_TRANSIT)) {
            match message {
                Message::Chunk(source, chunk) => merger.push(source, chunk, now),
                Message::Silent(source, until_ns) => merger.advance(source, until_ns),
                Message::End(source) => merger.close(source),
            }
        }
        loop {
            let more = merger.drain(live.then_some(now), &mut out);
            while let Some((source, chunk)) = merger.spent() {
                // A recorder that has ended needs no chunks.
                let _ = back[source].send(chunk);
            }
            if !out.is_empty() {
                file.write(&out);
                out.clear();
            }
            if !more {
                break;
            }
        }
    }
    merger.late()
}
