//! Replays a file's packets as they are read, in each round or in the first only.

use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::port::PortName;

use super::kept::{Keeping, Kept};
use super::position::{Position, Round};
use super::reading::{self, More, Reading};
use super::share::Share;
use super::{Hand, ReplayOptions};

/// One worker's reading of a file.
#[derive(Debug)]
pub(super) struct Streamed {
    file: PortName,
    options: ReplayOptions,
    /// `None` at the end of the file.
    reading: Option<Reading>,
    share: Share,
    /// Rounds after this one; `None` means endless.
    rounds: Option<u64>,
    /// Packets still to come, other workers' included; `None` means all of the file.
    left: Option<u64>,
    /// Where this round began.
    base: Position,
    round: Round,
    /// A packet of the right link type was read; a file without one is refused at its end.
    any: bool,
    /// The packets of the first round, where there are more rounds and memory for it.
    keeping: Option<Keeping>,
    /// The kept packets, which replace this source.
    kept: Option<Kept>,
    failure: Option<Error>,
}

impl Streamed {
    pub(super) fn open(file: &PortName, share: Share, options: &ReplayOptions) -> Result<Self> {
        Ok(Self {
            reading: Some(Reading::open(file, options)?),
            keeping: Keeping::of(file, options),
            kept: None,
            file: file.clone(),
            options: options.clone(),
            share,
            rounds: options.further_rounds(),
            left: options.packets,
            base: Position::default(),
            round: Round::default(),
            any: false,
            failure: None,
        })
    }

    /// Gives this worker's packets to a hand, until the hand takes no more or all packets read are
    /// used.
    pub(super) fn give(&mut self, hand: &mut Hand<'_, '_>) {
        if let Err(error) = self.read() {
            self.failure = Some(error);
            self.reading = None;
        }
        let Some(reading) = &mut self.reading else { return };
        let all_fit = reading.all_fit();
        let mut slots = 0;
        for packet in reading.ring().packets() {
            if self.left == Some(0) {
                break;
            }
            let meta = packet.meta();
            let position = self.round.position(meta);
            let fits = all_fit || reading.fits(meta);
            self.any |= fits;
            // The first worker counts packets that no worker sends.
            let own = if fits { self.share.takes(packet.head()) } else { self.share.is_first() };
            if !fits {
                hand.left_out.other_link_type += u64::from(own);
            } else if own && !hand.take(&packet, self.base.plus(position)) {
                break;
            }
            if let Some(keeping) = &mut self.keeping
                && !keeping.take(&packet, fits, own, position)
            {
                self.keeping = None;
            }
            self.round.pass(position, meta, packet.captured_bytes());
            self.left = self.left.map(|left| left - 1);
            slots += packet.slots();
        }
        reading.release(slots);
        if self.left == Some(0) {
            self.reading = None;
        }
    }

    /// Reads packets into the reader's ring.
    fn read(&mut self) -> Result<()> {
        let Some(reading) = &mut self.reading else { return Ok(()) };
        if reading.go_on()? != More::Never {
            return Ok(());
        }
        let passed = self.round.passed();
        if passed.packets > 0 && !self.any {
            let met = reading.interfaces();
            return Err(reading::refusal(&self.file, met, self.options.link_type));
        }
        self.reading = None;
        // A round without packets would repeat for ever.
        if self.rounds != Some(0) && self.any {
            self.rounds = self.rounds.map(|rounds| rounds - 1);
            self.base = self.base.after_round(passed);
            if let Some(keeping) = self.keeping.take() {
                let (rounds, most) = (self.rounds, self.options.packets);
                self.kept = Some(Kept::new(keeping, passed, self.base, rounds, most));
                return Ok(());
            }
            self.round = Round::default();
            self.reading = Some(Reading::open(&self.file, &self.options)?);
        }
        Ok(())
    }

    /// Waits until there may be more to read: for a pipe.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<()> {
        match &mut self.reading {
            Some(reading) if reading.ring().available() == 0 => reading.wait(timeout),
            _ => Ok(()),
        }
    }

    /// Takes the source of the rounds after the first.
    pub(super) fn take_kept(&mut self) -> Option<Kept> {
        self.kept.take()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.reading.is_none()
    }

    /// Takes the error that ended the file early.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}
