//! A file's packets as they are read, round after round.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::port::{OpenOptions, Port, PortName, Queue};
use sluicegate::ring::Wait;

use super::link_type;
use super::place::{Place, Round};
use super::share::Share;
use super::{Hand, ReplayOptions};
use crate::rewrite::Rewrite;

/// One worker's reading of a file.
#[derive(Debug)]
pub(super) struct Streamed {
    file: PortName,
    /// None when all has been read.
    reader: Option<Queue>,
    share: Share,
    /// Rounds still to come after this one; none is for ever.
    rounds: Option<u64>,
    /// Packets of the file still to come, others' too; none is all there are.
    left: Option<u64>,
    /// Where this round began.
    base: Place,
    round: Round,
    /// Of the packets that are sent.
    link_type: u16,
    /// Whether one has been met that can be sent; without any the file is refused in the end.
    any: bool,
    rewrite: Option<Arc<Rewrite>>,
    failure: Option<Error>,
}

impl Streamed {
    pub(super) fn open(file: &PortName, share: Share, options: &ReplayOptions) -> Result<Self> {
        Ok(Self {
            reader: Some(open(file)?),
            file: file.clone(),
            share,
            rounds: (options.rounds > 0).then(|| options.rounds - 1),
            left: options.packets,
            base: Place::default(),
            round: Round::default(),
            link_type: options.link_type,
            any: false,
            rewrite: (!options.rewrite.is_empty()).then(|| options.rewrite.clone()),
            failure: None,
        })
    }

    /// Gives packets of this worker's to a hand, until that takes no more of those that have been
    /// read.
    pub(super) fn give(&mut self, hand: &mut Hand<'_, '_>) {
        if let Err(error) = self.read() {
            self.failure = Some(error);
            self.reader = None;
        }
        let Some(reader) = &mut self.reader else { return };
        let links = reader.interfaces();
        // Mostly there is one interface, and nothing to ask of each packet.
        let one = links.len() == 1 && links[0].link_type == self.link_type;
        let mut slots = 0;
        for packet in reader.rx().packets() {
            if self.left == Some(0) {
                break;
            }
            let meta = packet.meta();
            if !one && links[meta.interface as usize].link_type != self.link_type {
                hand.left_out.other_link_type += u64::from(self.share.is_first());
            } else if self.share.takes(packet.head()) {
                let place = self.base.plus(self.round.place(meta));
                // Who it is sent by has one interface.
                let mut meta = *meta;
                meta.interface = 0;
                if !hand.take(&packet.with_meta(&meta), place) {
                    break;
                }
                self.any = true;
            } else {
                self.any = true;
            }
            self.round.pass(meta, packet.captured_bytes());
            self.left = self.left.map(|left| left - 1);
            slots += packet.slots();
        }
        reader.rx_mut().release(slots);
        if self.left == Some(0) {
            self.reader = None;
        }
    }

    /// Has packets in the reader's ring, where there are any.
    fn read(&mut self) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        if reader.rx().available() > 0 {
            return Ok(());
        }
        if reader.sync_rx()? > 0 {
            if let Some(rewrite) = &self.rewrite {
                change_all(reader, rewrite, self.link_type);
            }
            return Ok(());
        }
        if !reader.is_finished() {
            return Ok(());
        }
        let passed = self.round.passed();
        if passed.packets > 0 && !self.any {
            return Err(link_type::refusal(&self.file, reader.interfaces(), self.link_type));
        }
        self.reader = None;
        // A round without packets would be followed by nothing else.
        if self.rounds != Some(0) && self.any {
            self.rounds = self.rounds.map(|rounds| rounds - 1);
            self.base = self.base.after_round(passed);
            self.round = Round::default();
            self.reader = Some(open(&self.file)?);
        }
        Ok(())
    }

    /// Waits until there may be more to read: for a pipe.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<()> {
        match &mut self.reader {
            Some(reader) if reader.rx().available() == 0 => {
                reader.wait_rx(Wait::Adaptive(Duration::from_micros(20)), timeout).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.reader.is_none()
    }

    /// What ended the reading before its time.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

fn open(file: &PortName) -> Result<Queue> {
    Ok(Port::open(file, &OpenOptions::default())?.queues.remove(0))
}

/// Gives all packets in a reader's ring their other addresses, where they lie.
fn change_all(reader: &mut Queue, rewrite: &Rewrite, link_type: u16) {
    let mut at = reader.rx().head();
    let mut begins = true;
    for _ in 0..reader.rx().available() {
        let interface = reader.rx().meta(at).interface as usize;
        let ours = reader.interfaces().get(interface).is_some_and(|it| it.link_type == link_type);
        if begins && ours {
            rewrite.apply(reader.rx_mut().bytes_mut(at));
        }
        begins = !reader.rx().slot(at).continues();
        at = reader.rx().next(at);
    }
}
