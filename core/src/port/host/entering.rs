//! What was written to the device and did not enter the host, because the interface was down or had
//! no carrier: nobody tells who wrote it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::link::Netlink;

/// The kernel's count of it, of one device's queues together. What is redirected to an interface
/// that is down the device's discipline drops (net/sched/act_mirred.c, net/core/dev.c); it drops
/// nothing else, for the gate consumes what it holds back.
#[derive(Debug)]
struct Refused {
    netlink: Netlink,
    device: u32,
    /// The kernel's count, of 32 bits, when it was last asked.
    seen: u32,
    /// Of no queue yet.
    unclaimed: u64,
}

/// The part of it that is one queue's.
#[derive(Debug)]
pub(super) struct Share {
    refused: Arc<Mutex<Refused>>,
    claimed: u64,
}

impl Share {
    /// For each of a new device's queues, which is in this thread's network namespace.
    pub fn of_each(device: u32, queues: usize) -> Result<Vec<Self>> {
        let refused = Refused { netlink: Netlink::open(None)?, device, seen: 0, unclaimed: 0 };
        let refused = Arc::new(Mutex::new(refused));
        let share = || Self { refused: Arc::clone(&refused), claimed: 0 };
        Ok(std::iter::repeat_with(share).take(queues).collect())
    }

    /// Of all that this queue has written, the packets that did not enter. Whose they are is known of
    /// all together only: no queue takes more than it has written.
    pub fn of(&mut self, written: u64) -> u64 {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.look();
        let mine = refused.unclaimed.min(written.saturating_sub(self.claimed));
        refused.unclaimed -= mine;
        self.claimed += mine;
        self.claimed
    }
}

impl Refused {
    /// Of a device that is gone what it had counted when it was last asked.
    fn look(&mut self) {
        if let Ok(Some(drops)) = self.netlink.clsact_drops(self.device) {
            self.unclaimed += u64::from(drops.wrapping_sub(self.seen));
            self.seen = drops;
        }
    }
}
