//! `null:`, an endless source and a discarding sink, to measure the framework's own cost.
//!
//! `size=`: bytes per packet (60). Their content is whatever the buffers hold.

use super::backend::Backend;
use super::interface::described;
use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::queue::Port;
use super::rings::{PoolRequirements, RingMaker};
use super::stats::QueueStats;
use crate::error::Result;
use sluicegate_base::ring::{Interface, Meta, Readiness, Ring};

/// The state of one queue: the length of its packets.
#[derive(Debug, Default)]
struct Null {
    size: u16,
    closed: bool,
    received: u64,
    sent: u64,
}

pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    let size = name.number("size", 1..=2048)?.unwrap_or(60) as u16;
    let slots = name.slots(2..=65536)?;
    let numbers = name.queue_numbers(options);
    let own = PoolRequirements::usual(numbers.clone().count() as u32, slots * 2);
    let pool = own.pool_of(options)?;
    if u32::from(size) > pool.buffer_bytes() {
        let advice = "more than a buffer of the given pool holds";
        return Err(name.bad_option("size", &size.to_string(), advice));
    }
    let rings = RingMaker { pool, usage: Directions::Both, slots };
    let backends = numbers.map(|number| (number, Null { size, ..Null::default() }));
    Ok(Port::plain(name, rings.queues(&described("null", ""), backends)?))
}

impl Backend for Null {
    /// Discards packets of any link type.
    fn describe_sent(&mut self, _: &[Interface], _: &mut Vec<Interface>) -> Result<()> {
        Ok(())
    }

    /// Fills every released slot with a packet.
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let room = if self.closed { 0 } else { ring.backend_slots() };
        self.received += u64::from(room);
        let meta = Meta { wire_bytes: self.size.into(), ..Meta::default() };
        let mut at = ring.tail();
        for _ in 0..room {
            ring.fill(at, self.size, false, meta);
            at = ring.next(at);
        }
        ring.publish(at);
        Ok(room)
    }

    /// Frees every slot with a packet to send.
    fn sync_tx(&mut self, ring: &mut Ring) -> Result<u32> {
        let slots = ring.backend_slots();
        let mut at = ring.tail();
        for _ in 0..slots {
            at = ring.next(at);
            self.sent += u64::from(!ring.slot(at).continues());
        }
        ring.publish(at);
        Ok(slots)
    }

    fn is_finished(&mut self) -> bool {
        self.closed
    }

    fn stop_rx(&mut self) -> Result<()> {
        self.closed = true;
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        Ok(QueueStats { received: self.received, sent: self.sent, ..QueueStats::default() })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        Ok(Some(Readiness::Ready))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::memory::{Pool, PoolConfig};
    use sluicegate_base::ring::Packet;

    #[test]
    fn it_never_runs_dry_and_never_fills_up() {
        let mut port =
            Port::open(&"null:?size=99".parse().unwrap(), &OpenOptions::default()).unwrap();
        let queue = &mut port.queues[0];
        for _ in 0..3 {
            assert_eq!(queue.sync_rx().unwrap(), 511);
            assert!(queue.rx().packets().all(|p| p.head().len() == 99));
            assert_eq!(queue.rx().packets().count(), 511);
            let (mut rx, mut tx) = queue.rings_mut();
            assert_eq!(rx.swap_packets(&mut tx, u32::MAX).slots, 511);
            assert_eq!(queue.sync_tx().unwrap(), 511);
        }
        assert_eq!(queue.stats().unwrap().sent, 3 * 511);
    }

    #[test]
    fn packets_longer_than_a_buffer_of_the_given_pool_are_rejected() {
        let config = PoolConfig { buffers: 2048, buffer_bytes: 64, ..PoolConfig::default() };
        let pool = Some(Pool::new(config).unwrap());
        let options = OpenOptions { pool, ..OpenOptions::default() };
        let error = Port::open(&"null:?size=65".parse().unwrap(), &options).unwrap_err();
        assert!(error.to_string().contains("more than a buffer"), "{error}");
        let mut port = Port::open(&"null:?size=64".parse().unwrap(), &options).unwrap();
        assert_eq!(port.queues[0].sync_rx().unwrap(), 511);
    }

    #[test]
    fn a_packet_of_several_slots_is_one() {
        let mut port = Port::open(&"null:".parse().unwrap(), &OpenOptions::default()).unwrap();
        let queue = &mut port.queues[0];
        for bytes in [5000, 60, 2048, 2049] {
            assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), &vec![0; bytes])));
        }
        assert_eq!(queue.sync_tx().unwrap(), 3 + 1 + 1 + 2);
        assert_eq!(queue.stats().unwrap().sent, 4);
    }
}
