//! Reads a file's packets into a ring, changes their addresses there, and replays them as they are
//! read: in each round, or in the first only.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::file::Format;
use sluicegate::file::read::Reader;
use sluicegate::port::{Interface, LINKTYPE_ETHERNET, OpenOptions, Port, PortName, Queue};
use sluicegate::ring::{Meta, Ring, Wait};

use super::kept::{Keeping, Kept};
use super::position::{Position, Round};
use super::share::Share;
use super::{Hand, ReplayOptions};
use crate::rewrite::Rewrite;

/// A file's reader.
#[derive(Debug)]
pub(super) struct Reading {
    queue: Queue,
    link_type: u16,
    rewrite: Option<Arc<Rewrite>>,
}

/// State of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// Packets are in the ring.
    Here,
    /// No packet yet.
    Later,
    /// The file has ended.
    Never,
}

impl Reading {
    pub(super) fn open(file: &PortName, options: &ReplayOptions) -> Result<Self> {
        let queue = Port::open(file, &OpenOptions::default())?.queues.remove(0);
        let rewrite = (!options.rewrite.is_empty()).then(|| Arc::clone(&options.rewrite));
        Ok(Self { queue, link_type: options.link_type, rewrite })
    }

    /// Reads on once all packets in the ring are released. Reports an error after the packets
    /// before it.
    pub(super) fn go_on(&mut self) -> Result<More> {
        if self.queue.rx().available() > 0 {
            return Ok(More::Here);
        }
        if self.queue.sync_rx()? > 0 {
            self.change_addresses();
            return Ok(More::Here);
        }
        Ok(if self.queue.is_finished() { More::Never } else { More::Later })
    }

    /// Waits until there may be more, in a pipe.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<()> {
        let policy = Wait::Adaptive(Duration::from_micros(20));
        self.queue.wait_rx(policy, timeout).map(|_| ())
    }

    /// The packets read and not released.
    #[inline]
    pub(super) fn ring(&self) -> &Ring {
        self.queue.rx()
    }

    /// Releases slots.
    pub(super) fn release(&mut self, slots: u32) {
        self.queue.rx_mut().release(slots);
    }

    pub(super) fn interfaces(&self) -> &[Interface] {
        self.queue.interfaces()
    }

    /// Reports whether all interfaces so far have the link type to send: then no packet needs a
    /// check.
    pub(super) fn all_fit(&self) -> bool {
        self.interfaces().iter().all(|interface| interface.link_type == self.link_type)
    }

    /// Reports whether a packet has the link type to send.
    #[inline]
    pub(super) fn fits(&self, meta: &Meta) -> bool {
        let interface = self.interfaces().get(meta.interface as usize);
        interface.is_some_and(|interface| interface.link_type == self.link_type)
    }

    /// Rewrites the addresses of the packets in the ring in place.
    fn change_addresses(&mut self) {
        let Some(rewrite) = self.rewrite.clone() else { return };
        let mut at = self.ring().head();
        let mut begins = true;
        for _ in 0..self.ring().available() {
            if begins && self.fits(self.ring().meta(at)) {
                rewrite.apply(self.queue.rx_mut().bytes_mut(at));
            }
            begins = !self.ring().slot(at).continues();
            at = self.ring().next(at);
        }
    }
}

/// Searches a file for an interface of a link type, reading as far as needed; without a link type,
/// checks that the file is a capture.
pub(super) fn check(file: &PortName, link_type: Option<u16>) -> Result<()> {
    let mut reader = Reader::open(Path::new(file.name()))?;
    let Some(link_type) = link_type else { return Ok(()) };
    loop {
        if reader.interfaces().iter().any(|interface| interface.link_type == link_type) {
            return Ok(());
        }
        // Where it is broken, sending will tell; nothing before that can be sent.
        if reader.format() == Format::Pcap || !matches!(reader.next_packet(), Ok(Some(_))) {
            return Err(refusal(file, reader.interfaces(), link_type));
        }
    }
}

/// Why nothing of a file can be sent.
pub(super) fn refusal(file: &PortName, interfaces: &[Interface], link_type: u16) -> Error {
    let mut others: Vec<u16> = interfaces.iter().map(|interface| interface.link_type).collect();
    others.sort_unstable();
    others.dedup();
    let others: Vec<String> = others.into_iter().map(named).collect();
    file.error(format!(
        "no packet of it can be sent here: they are of link type {}, and what is sent is of {}",
        others.join(", "),
        named(link_type)
    ))
}

/// A link type's number in tcpdump.org's list, and what it is where many know it.
fn named(link_type: u16) -> String {
    let name = match link_type {
        LINKTYPE_ETHERNET => "Ethernet",
        0 => "BSD loopback",
        101 | 12 | 228 | 229 => "raw IP",
        105 => "802.11",
        113 => "Linux cooked",
        127 => "802.11 with radiotap",
        276 => "Linux cooked v2",
        _ => return link_type.to_string(),
    };
    format!("{link_type} ({name})")
}

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
            return Err(refusal(&self.file, met, self.options.link_type));
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
