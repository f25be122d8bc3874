//! One pool for the ports of a switch, so that packets swap.

use std::sync::Arc;

use sluicegate::error::Result;
use sluicegate::link;
use sluicegate::memory::{Pool, PoolConfig};
use sluicegate::port::{Kind, PortName};
use sluicegate::xdp::HEADROOM_BYTES;

/// What each port takes that says nothing: buffers of a queue, slots of a ring.
const FRAMES: u64 = 4096;
const SLOTS: u64 = 512;
/// More, for sending without copying.
const SLACK: u64 = 64;
/// An Ethernet header with a tag.
const HEADER_BYTES: u32 = 18;

/// A pool with room for ports by `xdp:`, and as much again for one that is added later. None if no
/// two ports gain by it.
///
/// # Errors
/// No such interface; no memory.
pub fn shared_pool(ports: &[PortName], netns: Option<&str>) -> Result<Option<Arc<Pool>>> {
    let (mut buffers, mut mtu, mut largest) = (0, 0, 0);
    for port in ports.iter().filter(|port| port.kind() == Kind::Xdp) {
        let interface = link::interface(netns, port.name())?;
        let queues = port.queues().map_or(u64::from(interface.rx_queues), |q| q.count() as u64);
        let frames = port.count("frames", 64..=65_536)?.unwrap_or(FRAMES);
        let slots = port.count("slots", 2..=16_384)?.unwrap_or(SLOTS);
        let wanted = queues.max(1) * (frames + slots + SLACK);
        (buffers, largest, mtu) = (buffers + wanted, largest.max(wanted), mtu.max(interface.mtu));
    }
    if buffers == 0 {
        return Ok(None);
    }
    // The others need them to send: packets swap into their slots.
    let others = ports.iter().filter(|port| port.kind() != Kind::Xdp).count() as u64;
    let buffers = buffers + largest + others * 4 * SLOTS;
    let fits = mtu.saturating_add(HEADER_BYTES) <= 2048 - HEADROOM_BYTES;
    let config = PoolConfig {
        buffers: u32::try_from(buffers).unwrap_or(u32::MAX),
        buffer_bytes: if fits { 2048 } else { 4096 },
        ring_area_bytes: buffers as usize * 64 + (1 << 16),
        ..PoolConfig::default()
    };
    Pool::new(config).map(Some)
}
