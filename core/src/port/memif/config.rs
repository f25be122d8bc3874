//! The options of a `memif:` port.

use crate::error::Result;
use crate::port::{OpenOptions, PortName};
use sluicegate_memif::Settings;

/// Entries of each ring, where nothing is said.
const DEFAULT_RING: u64 = 1024;
/// Bytes of each buffer, where nothing is said: what others have, and a line of the cache. Buffers a
/// power of two apart would all begin in the same few sets of it, and push each other out.
const DEFAULT_BUFFER: u64 = 2048 + 64;
const DEFAULT_SLOTS: u64 = 512;
/// Most queues of a port.
const MAX_QUEUES: u64 = 64;
/// Most bytes of a secret.
const SECRET_BYTES: usize = 24;

/// Which end of the socket a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It has the socket.
    Server,
    /// It connects, and has the memory.
    Client,
}

/// The options of a port.
#[derive(Clone, Debug)]
pub(super) struct MemifConfig {
    /// Whatever goes if it is not said.
    pub role: Option<Role>,
    pub settings: Settings,
    pub slots: u32,
    /// Sleepers are woken; else they look now and then.
    pub interrupts: bool,
}

impl MemifConfig {
    pub(super) fn of(name: &PortName, options: &OpenOptions) -> Result<Self> {
        let roles = [("server", Role::Server), ("client", Role::Client)];
        let queues = name.count("queues", 1..=MAX_QUEUES)?;
        let queues = queues.map_or(options.queues.max(1).min(MAX_QUEUES as u32), |n| n as u32);
        let entries = name.count("ring_size", 32..=16_384)?.unwrap_or(DEFAULT_RING);
        if !entries.is_power_of_two() {
            return Err(name.bad_option("ring_size", &entries.to_string(), "use a power of two"));
        }
        let buffer_bytes = name.number("buffer", 64..=65_472)?.unwrap_or(DEFAULT_BUFFER) as u32;
        let said = name.option("secret").unwrap_or_default().as_bytes();
        let mut secret = [0; SECRET_BYTES];
        match secret.get_mut(..said.len()) {
            Some(start) => start.copy_from_slice(said),
            None => return Err(name.error("secret=: 24 bytes at most")),
        }
        Ok(Self {
            role: name.choice("role", &roles)?,
            settings: Settings {
                id: name.count("id", 0..=u32::MAX.into())?.unwrap_or(0) as u32,
                secret,
                queues: queues as u16,
                log2_entries: entries.trailing_zeros() as u8,
                buffer_bytes: buffer_bytes.next_multiple_of(64),
                trusts: !name.switch("sealed")?.unwrap_or(true),
            },
            slots: name.count("slots", 2..=16_384)?.unwrap_or(DEFAULT_SLOTS) as u32,
            interrupts: name.switch("interrupt")?.unwrap_or(true),
        })
    }
}
