//! The sign by which the programs of a port know whether it serves: a socket in a map, which the
//! kernel takes out when the port's process ends, however that happens.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::device::lacking;
use crate::error::Result;
use crate::xdp::bpf::{self, Write};
use crate::xdp::live::SharedCounters;

/// The sign of one port.
#[derive(Debug)]
pub(super) struct Life {
    /// Its one entry is there as long as the port serves.
    pub alive: OwnedFd,
    /// One word: not 0 from the moment the port has begun to serve until it has ended by itself; of
    /// one that was killed it stays so. In memory, so that no privilege is needed to write it.
    pub begun: SharedCounters,
    token: OwnedFd,
}

impl Life {
    /// Of a port that does not serve yet.
    pub fn new(interface: &str) -> Result<Self> {
        let failed = |error| lacking(error, "make a sign of life for the host: port of", interface);
        Ok(Self {
            alive: bpf::create_socket_map(c"sluice_alive", 1).map_err(failed)?,
            begun: SharedCounters::zeros(1, "the host: port")?,
            token: bpf::token().map_err(failed)?,
        })
    }

    /// From now on it serves.
    pub fn begin(&self) -> io::Result<()> {
        bpf::put(self.alive.as_fd(), 0, &self.token, Write::Any)?;
        self.begun.set(0, 1);
        Ok(())
    }

    /// It ends by itself: nothing is to fall back. Who has given up its privileges cannot take
    /// filters away, but this it can.
    pub fn end(&self) {
        self.begun.set(0, 0);
    }
}
