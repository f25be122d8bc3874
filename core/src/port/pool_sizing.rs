//! Several ports in one pool: packets move between them by swapping buffers.

use std::sync::Arc;

use super::{Kind, OpenOptions, Port, PortName, Use, memif, xdp};
use crate::error::Result;
use sluicegate_base::memory::{Pool, PoolConfig};

/// Slots of a ring without `slots=`.
const DEFAULT_SLOTS: u64 = 512;

/// The buffers that a port takes from a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolRequirements {
    pub buffers: u32,
    /// The least size of a buffer.
    pub buffer_bytes: u32,
}

impl PoolRequirements {
    /// The requirements of `queues` queues of `buffers` buffers each.
    pub fn of_queues(queues: u32, buffers: u32, buffer_bytes: u32) -> Self {
        Self { buffers: buffers.saturating_mul(queues), buffer_bytes }
    }

    /// The requirements of queues with buffers of the usual size.
    pub fn usual(queues: u32, buffers: u32) -> Self {
        Self::of_queues(queues, buffers, PoolConfig::default().buffer_bytes)
    }

    /// The requirements of a port that is not open yet.
    fn of(name: &PortName, options: &OpenOptions) -> Result<Self> {
        if name.kind() == Kind::Xdp {
            return xdp::needs(name, options);
        }
        if name.kind() == Kind::Memif {
            return memif::needs(name, options);
        }
        let slots = name.count("slots", 1..=1 << 20)?.unwrap_or(DEFAULT_SLOTS) as u32;
        let queues = name.queues().map_or(options.queues.max(1), |queues| queues.count() as u32);
        Ok(Self::usual(queues, slots * 2))
    }

    fn and(self, other: Self) -> Self {
        Self {
            buffers: self.buffers.saturating_add(other.buffers),
            buffer_bytes: self.buffer_bytes.max(other.buffer_bytes),
        }
    }

    /// Makes a pool of this size.
    pub fn pool(self) -> Result<Arc<Pool>> {
        let Self { buffers, buffer_bytes } = self;
        Pool::new(PoolConfig { buffers, buffer_bytes, ..PoolConfig::default() })
    }
}

impl Port {
    /// A pool that is large enough for these ports, to open them in one after the other.
    ///
    /// # Errors
    /// No such interface; no memory.
    pub fn pool_for(ports: &[(PortName, Use)], options: &OpenOptions) -> Result<Arc<Pool>> {
        let with = |usage| OpenOptions { usage, ..options.clone() };
        let needs = ports.iter().map(|(name, usage)| PoolRequirements::of(name, &with(*usage)));
        let sum = needs.reduce(|sum, more| Ok(sum?.and(more?))).transpose()?;
        sum.unwrap_or_default().pool()
    }

    /// Opens several ports, each for its use, in one pool that is large enough for all, unless the
    /// options name one. An `xdp:` port in a pool has AF_XDP sockets, also where it only receives.
    ///
    /// # Errors
    /// As [`open`](Self::open); those that were opened are closed again.
    pub fn open_all(ports: &[(PortName, Use)], options: &OpenOptions) -> Result<Vec<Self>> {
        let with = |usage| OpenOptions { usage, ..options.clone() };
        let pool = match &options.pool {
            Some(pool) => pool.clone(),
            None => Self::pool_for(ports, options)?,
        };
        let open = |(name, usage): &(PortName, Use)| {
            Self::open(name, &OpenOptions { pool: Some(pool.clone()), ..with(*usage) })
        };
        ports.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::forward;

    #[test]
    fn ports_that_are_opened_together_swap_and_leave_no_buffer_over() {
        let ports = ["null:/0-2?slots=64", "null:?slots=1000", "null:"];
        let ports = ports.map(|name| (name.parse().unwrap(), Use::Both));
        let mut ports = Port::open_all(&ports, &OpenOptions::default()).unwrap();
        assert_eq!(ports.iter().map(|port| port.queues.len()).collect::<Vec<_>>(), [3, 1, 1]);
        let [first, second, third] = &mut ports[..] else { unreachable!() };
        first.queues[2].sync_rx().unwrap();
        let moved = forward(first.queues[2].rx_mut(), second.queues[0].tx_mut());
        assert_eq!((moved.swapped_packets, moved.copied_packets), (63, 0));
        assert!(second.queues[0].rx().shares_pool(third.queues[0].rx()));
    }
}
