//! Pipes: two ends in one region, whose slots pass from one end's transmit ring to the other's receive ring.
//!
//! ```text
//!   master: transmit ring i   --slots, buffers-->   slave: receive ring i
//!                             <--released slots--
//! ```
//!
//! Both rings of a channel have the same number of slots, and a slot passes to the slot of the same number: so a
//! packet costs no copy, and both sides sync without a common lock, except while the receiver has a monitor. The two
//! tails are all that they share besides their rings.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;

use super::adapter::{Adapter, Geometry, NewRing, PortDriver, PortRings, RingId};
use super::kring::{Kring, RingDriver};
use super::region::RegionState;
use super::ring::{RingState, SLOTS, SharedRing, Way};
use crate::abi::bodies::Register;
use crate::abi::{PipeRole, flags};

/// The most rings of a pipe, in each direction.
const MAX_RINGS: u16 = 256;

/// A pipe, as long as one of its ends exists.
#[derive(Debug)]
pub(super) struct Pipe {
    /// From the master to the slave, and back; in a mutex until the first ring is opened.
    channels: Mutex<Option<[Vec<Arc<Channel>>; 2]>>,
    /// The rings of the master.
    geometry: Geometry,
    // Dropped last: the channels have memory of its region.
    pub(super) parent: Arc<Adapter>,
}

/// One direction of a ring pair.
#[derive(Debug)]
struct Channel {
    tx: PipeRing,
    rx: PipeRing,
}

impl Channel {
    fn ring(&self, way: Way) -> &PipeRing {
        if way == Way::Transmit { &self.tx } else { &self.rx }
    }
}

/// A ring of a channel.
#[derive(Debug)]
struct PipeRing {
    ring: SharedRing,
    /// The ring's tail, which the other side moves.
    tail: AtomicU32,
    /// The cursors while the end is closed.
    closed: Mutex<Option<RingState>>,
    /// The ring while the end is open.
    open: Mutex<Weak<Kring>>,
}

impl PipeRing {
    fn new(region: &Arc<RegionState>, way: Way, number: u16, slots: u32) -> Result<Self, Errno> {
        // Packets bring their buffers to the receive ring.
        let ring = SharedRing::new(region, (way, number), slots, way == Way::Transmit)?;
        let state = RingState::new(ring.clone(), way);
        let tail = AtomicU32::new(state.hwtail);
        let (closed, open) = (Mutex::new(Some(state)), Mutex::default());
        Ok(Self { ring, tail, closed, open })
    }

    /// Wakes the end that has the ring, if it is open.
    fn wake(&self) {
        if let Some(kring) = self.kring() {
            kring.wakers.wake();
        }
    }

    fn kring(&self) -> Option<Arc<Kring>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn closed(&self) -> std::sync::MutexGuard<'_, Option<RingState>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Slots between the receiver's first unreleased one and its tail are the receive ring's.
        let first = self.rx.closed().as_ref().map_or(0, |state| state.hwcur);
        let n = self.rx.ring.num_slots();
        let distance = |to: u32| (to + n - first) % n;
        let last = distance(self.rx.tail.load(Ordering::Acquire));
        self.rx.ring.free(|index| distance(index) < last);
        self.tx.ring.free(|index| distance(index) >= last);
    }
}

impl Pipe {
    /// Makes a pipe, with the rings that a program asked for at one end.
    pub(super) fn new(parent: &Arc<Adapter>, role: PipeRole, wanted: &Register) -> Arc<Self> {
        let of_parent = parent.port.geometry;
        let slots = |wanted: u32, default: u32| match wanted {
            0 => default.clamp(*SLOTS.start(), *SLOTS.end()),
            wanted => wanted.clamp(*SLOTS.start(), *SLOTS.end()),
        };
        let rings = |wanted: u16| u32::from(wanted.clamp(1, MAX_RINGS));
        let asked = Geometry {
            tx_rings: rings(wanted.tx_rings),
            rx_rings: rings(wanted.rx_rings),
            host_tx_rings: 1,
            host_rx_rings: 1,
            tx_slots: slots(wanted.tx_slots, of_parent.tx_slots),
            rx_slots: slots(wanted.rx_slots, of_parent.rx_slots),
            has_host: false,
        };
        let geometry = if role == PipeRole::Master { asked } else { crossed(asked) };
        Arc::new(Self { channels: Mutex::default(), geometry, parent: Arc::clone(parent) })
    }

    /// Returns the rings of an end.
    pub(super) fn geometry(&self, role: PipeRole) -> Geometry {
        if role == PipeRole::Master { self.geometry } else { crossed(self.geometry) }
    }

    /// Returns the channels, and makes them for the first ring that is opened.
    fn channels(&self) -> Result<[Vec<Arc<Channel>>; 2], Errno> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channels) = &*channels {
            return Ok(channels.clone());
        }
        let Geometry { tx_rings, rx_rings, tx_slots, rx_slots, .. } = self.geometry;
        let region = &self.parent.port.region;
        let channel = |number: u32, slots: u32| {
            let tx = PipeRing::new(region, Way::Transmit, number as u16, slots)?;
            match PipeRing::new(region, Way::Receive, number as u16, slots) {
                Ok(rx) => Ok(Arc::new(Channel { tx, rx })),
                Err(errno) => {
                    tx.ring.free(|_| true);
                    Err(errno)
                }
            }
        };
        let forth = (0..tx_rings).map(|number| channel(number, tx_slots));
        let back = (0..rx_rings).map(|number| channel(number, rx_slots));
        let made = [forth.collect::<Result<Vec<_>, _>>()?, back.collect::<Result<Vec<_>, _>>()?];
        *channels = Some(made.clone());
        Ok(made)
    }
}

/// Returns the rings as the other end sees them.
fn crossed(geometry: Geometry) -> Geometry {
    let Geometry { tx_rings, rx_rings, tx_slots, rx_slots, .. } = geometry;
    Geometry {
        tx_rings: rx_rings,
        rx_rings: tx_rings,
        tx_slots: rx_slots,
        rx_slots: tx_slots,
        ..geometry
    }
}

/// One end of a pipe.
#[derive(Debug)]
pub(super) struct PipeEnd {
    pub(super) pipe: Arc<Pipe>,
    pub(super) role: PipeRole,
}

impl PipeEnd {
    /// Returns the channel behind a ring of this end.
    fn channel(&self, channels: &[Vec<Arc<Channel>>; 2], way: Way, number: u32) -> Arc<Channel> {
        let forth = (self.role == PipeRole::Master) == (way == Way::Transmit);
        Arc::clone(&channels[usize::from(!forth)][number as usize])
    }
}

impl PortDriver for PipeEnd {
    fn open(&self, _port: &PortRings, wanted: &[RingId]) -> Result<Vec<NewRing>, Errno> {
        let channels = self.pipe.channels()?;
        let channel = |id: &RingId| self.channel(&channels, id.way, id.number);
        // All or none, because another adapter of the same end may have some.
        if wanted.iter().any(|id| channel(id).ring(id.way).closed().is_none()) {
            return Err(Errno::EBUSY);
        }
        let open = |id: &RingId| -> Result<NewRing, Errno> {
            let channel = channel(id);
            let state = channel.ring(id.way).closed().take().ok_or(Errno::EBUSY)?;
            let driver: Box<dyn RingDriver> = match id.way {
                Way::Transmit => Box::new(PipeTx(channel)),
                Way::Receive => Box::new(PipeRx(channel)),
            };
            Ok((state, driver))
        };
        wanted.iter().map(open).collect()
    }

    fn opened(&self, _port: &PortRings, rings: &[Arc<Kring>]) {
        let Ok(channels) = self.pipe.channels() else { return };
        for kring in rings {
            let channel = self.channel(&channels, kring.way, kring.number);
            *channel.ring(kring.way).open.lock().unwrap_or_else(PoisonError::into_inner) =
                Arc::downgrade(kring);
        }
    }
}

/// A transmit ring of a pipe.
#[derive(Debug)]
struct PipeTx(Arc<Channel>);

impl RingDriver for PipeTx {
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        let Channel { tx, rx } = &*self.0;
        // Acquire: pairs with the receiver's store, and takes over the slots that it has released.
        ring.hwtail = tx.tail.load(Ordering::Acquire);
        let (mut index, mut complete) = (ring.hwcur, None);
        while index != ring.rhead {
            let slot = ring.shared.pass_slot(index, &rx.ring);
            ring.clear_marks(index, slot);
            index = ring.next(index);
            // A packet is published as a whole.
            if slot.flags & flags::MOREFRAG == 0 {
                complete = Some(index);
            }
        }
        ring.hwcur = index;
        if let Some(tail) = complete {
            // Release: pairs with the receiver's load.
            rx.tail.store(tail, Ordering::Release);
            if let Some(kring) = rx.kring() {
                kring.show_arrived();
                kring.wakers.wake();
            }
        }
        Ok(())
    }

    fn close(&mut self, ring: &RingState) {
        *self.0.tx.closed() = Some(ring.clone());
    }
}

/// A receive ring of a pipe.
#[derive(Debug)]
struct PipeRx(Arc<Channel>);

impl RingDriver for PipeRx {
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        let Channel { tx, rx } = &*self.0;
        // Acquire: pairs with the sender's store.
        ring.hwtail = rx.tail.load(Ordering::Acquire);
        let mut index = ring.hwcur;
        while index != ring.rhead {
            let slot = ring.shared.pass_slot(index, &tx.ring);
            ring.clear_marks(index, slot);
            index = ring.next(index);
        }
        if index != ring.hwcur {
            ring.hwcur = index;
            // Release: pairs with the sender's load.
            tx.tail.store(ring.before(index), Ordering::Release);
            tx.wake();
        }
        Ok(())
    }

    fn close(&mut self, ring: &RingState) {
        *self.0.rx.closed() = Some(ring.clone());
    }
}
