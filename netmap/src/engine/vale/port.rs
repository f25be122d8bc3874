//! A port of a VALE switch, attached to one or not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use nix::errno::Errno;

use super::switch::{Source, Switch, SyncBatch};
use crate::engine::EngineOptions;
use crate::engine::adapter::{NewRing, PortDriver, PortRings, RingId};
use crate::engine::kring::{Kring, RingDriver};
use crate::engine::monitor::FilledByOthers;
use crate::engine::ring::{RingState, Way};

/// A port, as its switch and its rings know it.
#[derive(Debug)]
pub(in crate::engine) struct ValePort {
    /// Its name without the switch.
    pub(in crate::engine) name: String,
    /// Bytes of the virtio-net header in front of its packets.
    pub(in crate::engine) header_bytes: AtomicU32,
    attachment: RwLock<Option<Attachment>>,
    /// The receive rings that are open.
    receivers: RwLock<Vec<Option<Arc<Kring>>>>,
}

/// The place of a port in a switch.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Attachment {
    pub(in crate::engine) switch: Arc<Switch>,
    pub(in crate::engine) number: u32,
}

impl ValePort {
    pub(in crate::engine) fn new(name: &str, rx_rings: u32) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            header_bytes: AtomicU32::new(0),
            attachment: RwLock::default(),
            receivers: RwLock::new(vec![None; rx_rings as usize]),
        })
    }

    /// Attaches the port to a switch. Returns its number there.
    ///
    /// # Errors
    /// EBUSY: it is attached to one. ENOMEM: the switch has no room.
    pub(in crate::engine) fn attach(self: &Arc<Self>, switch: &Arc<Switch>) -> Result<u32, Errno> {
        let mut attachment = self.attachment.write().unwrap_or_else(PoisonError::into_inner);
        if attachment.is_some() {
            return Err(Errno::EBUSY);
        }
        let number = switch.add(self)?;
        *attachment = Some(Attachment { switch: Arc::clone(switch), number });
        Ok(number)
    }

    /// Detaches the port. Returns its former place.
    pub(in crate::engine) fn detach(&self) -> Option<Attachment> {
        let attachment = self.attachment.write().unwrap_or_else(PoisonError::into_inner).take()?;
        attachment.switch.remove(attachment.number);
        Some(attachment)
    }

    /// Returns the place of the port in its switch.
    pub(in crate::engine) fn attachment(&self) -> RwLockReadGuard<'_, Option<Attachment>> {
        self.attachment.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of the header in front of its packets.
    #[inline]
    pub(super) fn header(&self) -> u16 {
        // Relaxed: a number that publishes nothing.
        self.header_bytes.load(Ordering::Relaxed) as u16
    }

    /// Returns the receive ring for the packets of a sender's ring of this number, if it is open.
    pub(super) fn receiver(&self, number: u32) -> Option<Arc<Kring>> {
        let receivers = self.receivers.read().unwrap_or_else(PoisonError::into_inner);
        receivers[number as usize % receivers.len()].clone()
    }

    fn set_receivers(&self, rings: &[Arc<Kring>], open: bool) {
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        for kring in rings.iter().filter(|kring| kring.way == Way::Receive) {
            receivers[kring.number as usize] = open.then(|| Arc::clone(kring));
        }
    }
}

/// The driver of a port. Dropping it detaches the port.
#[derive(Debug)]
pub(in crate::engine) struct ValeDriver {
    pub(in crate::engine) port: Arc<ValePort>,
    pub(in crate::engine) options: EngineOptions,
}

impl PortDriver for ValeDriver {
    fn open(&self, port: &PortRings, wanted: &[RingId]) -> Result<Vec<NewRing>, Errno> {
        port.rings(wanted, |id| match id.way {
            Way::Transmit => {
                let port = Arc::clone(&self.port);
                Box::new(ValeTx { port, ring: id.number, batch: SyncBatch::new(&self.options) })
            }
            Way::Receive => Box::new(FilledByOthers),
        })
    }

    fn opened(&self, _port: &PortRings, rings: &[Arc<Kring>]) {
        self.port.set_receivers(rings, true);
    }

    fn closing(&self, _port: &PortRings, rings: &[Arc<Kring>]) {
        self.port.set_receivers(rings, false);
    }
}

impl Drop for ValeDriver {
    fn drop(&mut self) {
        self.port.detach();
    }
}

/// A transmit ring of a port.
#[derive(Debug)]
struct ValeTx {
    port: Arc<ValePort>,
    ring: u32,
    batch: SyncBatch,
}

impl RingDriver for ValeTx {
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        let from = ring.hwcur;
        let sent = match &*self.port.attachment() {
            Some(Attachment { switch, number }) => {
                let source =
                    Source { number: *number, ring: self.ring, header: self.port.header() };
                switch.forward(source, ring, &mut self.batch)
            }
            // Nobody receives from a port without a switch.
            None => {
                ring.hwcur = ring.rhead;
                Ok(())
            }
        };
        let mut index = from;
        while index != ring.hwcur {
            ring.clear_marks(index, ring.shared.slot(index));
            index = ring.next(index);
        }
        ring.hwtail = ring.before(ring.hwcur);
        sent
    }
}
