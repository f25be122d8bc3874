//! The transmit path of a queue of an `xdp:` port: its socket, or live frames.

use std::time::{Duration, Instant};

use super::ClaimBuilder;
use super::config::Send;
use crate::error::Result;
use crate::port::QueueStats;
use crate::port::backend::Backend;
use crate::port::live::{self, LiveQueue};
use crate::xdp::live::leaves_by;
use crate::xdp::{Sender, XskSocket};
use sluicegate_base::ring::Ring;

/// The way out of a queue.
#[derive(Debug)]
pub(super) enum TxPath {
    /// The socket's transmit ring.
    Socket {
        sender: Sender,
        /// Packets that were still to be sent, or at the kernel, when sending was ended.
        unsent: u64,
    },
    /// A thread that runs a program, as of a `live:` port.
    Live(LiveQueue),
}

impl TxPath {
    pub fn by_socket(sender: Sender) -> Self {
        Self::Socket { sender, unsent: 0 }
    }

    #[inline]
    pub fn sync(&mut self, ring: &mut Ring) -> Result<u32> {
        match self {
            Self::Socket { sender, .. } => sender.send(ring),
            Self::Live(live) => live.sync_tx(ring),
        }
    }

    /// Returns true if packets wait for another sync.
    pub fn needs_sync(&mut self, ring: &Ring) -> bool {
        match self {
            Self::Socket { sender, .. } => sender.needs_send(ring),
            Self::Live(_) => ring.room() > 0,
        }
    }

    /// Sends what it can until `patience` is over, and nothing more.
    pub fn close(&mut self, ring: &mut Ring, patience: Duration, socket: &XskSocket) -> Result<()> {
        let (sender, unsent) = match self {
            Self::Socket { sender, unsent } => (sender, unsent),
            Self::Live(live) => return live.close_tx(ring, patience),
        };
        let end = Instant::now() + patience;
        loop {
            let synced = sender.send(ring);
            *unsent = sender.unsent(ring);
            synced?;
            if *unsent == 0 || Instant::now() >= end {
                return Ok(());
            }
            socket.wait_tx(Duration::from_millis(1))?;
        }
    }

    /// Returns its counts of packets to be sent.
    ///
    /// # Errors
    /// As [`Backend::stats`].
    pub fn stats(&mut self) -> Result<QueueStats> {
        match self {
            Self::Socket { sender, unsent } => {
                let counts = sender.stats();
                Ok(QueueStats {
                    sent: counts.sent - counts.dropped.min(counts.sent),
                    rejected: counts.dropped,
                    refused: counts.refused + counts.dropped + *unsent,
                    unsent: *unsent,
                    ..QueueStats::default()
                })
            }
            Self::Live(live) => live.stats(),
        }
    }
}

impl ClaimBuilder<'_> {
    /// Live frames for as many queues as the port has, where they are wanted.
    pub(super) fn by_live_frames(&self) -> Result<Option<Vec<LiveQueue>>> {
        if self.config.send == Send::Socket {
            return Ok(None);
        }
        leaves_by(self.interface, None)?;
        self.queues.clone().map(|_| live::outlet(self.interface)).collect::<Result<_>>().map(Some)
    }
}
