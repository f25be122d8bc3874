//! The sign by which the programs of a port know whether it serves: a socket in a map, which the
//! kernel takes out when the port's process ends, however that happens.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::xdp::bpf::{self, Write};

/// The sign of one port.
#[derive(Debug)]
pub(super) struct Life {
    /// Its one entry is there as long as the port serves.
    pub alive: OwnedFd,
    /// One word: not 0 from the moment the port has begun to serve until it has ended by itself; of
    /// one that was killed it stays so.
    pub begun: OwnedFd,
    token: OwnedFd,
}

impl Life {
    /// Of a port that does not serve yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            alive: bpf::create_socket_map(c"sluice_alive", 1)?,
            begun: bpf::create_mapped_array(c"sluice_begun", 8, 1)?,
            token: bpf::token()?,
        })
    }

    /// From now on it serves.
    pub fn begin(&self) -> io::Result<()> {
        bpf::put(self.alive.as_fd(), 0, &self.token, Write::Any)?;
        bpf::write_entry(self.begun.as_fd(), 0, &1u64.to_ne_bytes(), Write::Any)
    }

    /// It ends by itself: nothing is to fall back. Who has given up its privileges cannot take
    /// filters away, but this it can (Linux 5.19).
    pub fn end(&self) {
        // Before that, it may be that the kernel says no: then nobody can do more.
        let _ = bpf::write_entry(self.begun.as_fd(), 0, &0u64.to_ne_bytes(), Write::Any);
    }
}
