//! An adapter: a port with its rings, which all files that registered the port share.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use serde_json::{Value, json};

use super::kring::{Kring, RingDriver};
use super::region::RegionState;
use super::ring::{RingState, SharedRing, Way};

/// The numbers and sizes of a port's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) tx_rings: u32,
    pub(super) rx_rings: u32,
    pub(super) host_tx_rings: u32,
    pub(super) host_rx_rings: u32,
    pub(super) tx_slots: u32,
    pub(super) rx_slots: u32,
    /// True if the host's rings exist. Programs see a number of them in any case.
    pub(super) has_host: bool,
}

impl Geometry {
    /// Returns the number of rings of the card, and of all rings.
    pub(super) fn rings(&self, way: Way) -> (u32, u32) {
        match way {
            Way::Transmit => (self.tx_rings, self.tx_rings + self.host_tx_rings),
            Way::Receive => (self.rx_rings, self.rx_rings + self.host_rx_rings),
        }
    }

    /// Returns the number of all rings, in both directions.
    pub(super) fn all_rings(&self) -> u32 {
        self.rings(Way::Transmit).1 + self.rings(Way::Receive).1
    }

    /// Returns the number of buffers that all rings need.
    pub(super) fn buffers(&self) -> usize {
        let of = |way| self.rings(way).1 as usize * self.slots(way) as usize;
        of(Way::Transmit) + of(Way::Receive)
    }

    /// Returns the rings for a region with `free` buffers. If it cannot hold them, they get half of it, because a
    /// program may open a second card; at least one of each kind stays.
    pub(super) fn reduced_to(mut self, free: usize) -> Self {
        if self.buffers() <= free {
            return self;
        }
        while self.buffers() > free / 2 && (self.tx_rings > 1 || self.rx_rings > 1) {
            let rings =
                if self.tx_rings > self.rx_rings { &mut self.tx_rings } else { &mut self.rx_rings };
            *rings -= 1;
        }
        self
    }

    /// Returns the number of slots in a ring.
    pub(super) fn slots(&self, way: Way) -> u32 {
        match way {
            Way::Transmit => self.tx_slots,
            Way::Receive => self.rx_slots,
        }
    }
}

/// One ring of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingId {
    pub(super) way: Way,
    pub(super) number: u32,
}

/// The rings that a file binds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) tx: Range<u32>,
    pub(super) rx: Range<u32>,
}

impl Selection {
    fn ids(&self) -> impl Iterator<Item = RingId> {
        let tx = self.tx.clone().map(|number| RingId { way: Way::Transmit, number });
        tx.chain(self.rx.clone().map(|number| RingId { way: Way::Receive, number }))
    }
}

/// A ring's state and driver, as a port opens them.
pub(super) type NewRing = (RingState, Box<dyn RingDriver>);

/// The port behind an adapter.
pub(super) trait PortDriver: Debug + Send + Sync {
    /// Opens rings that get their first user. Returns one for each wanted, in order.
    ///
    /// # Errors
    /// The port refuses, or its region has no room.
    fn open(&self, port: &PortRings, wanted: &[RingId]) -> Result<Vec<NewRing>, Errno>;

    /// Learns of rings that are open.
    fn opened(&self, _port: &PortRings, _rings: &[Arc<Kring>]) {}

    /// Learns of rings that are about to close.
    fn closing(&self, _port: &PortRings, _rings: &[Arc<Kring>]) {}
}

/// The region and the geometry of a port.
#[derive(Debug)]
pub(super) struct PortRings {
    pub(super) region: Arc<RegionState>,
    pub(super) geometry: Geometry,
}

impl PortRings {
    /// Makes a ring with a buffer in each slot.
    ///
    /// # Errors
    /// ENOMEM.
    fn ring(&self, id: RingId) -> Result<RingState, Errno> {
        let slots = self.geometry.slots(id.way);
        let shared = SharedRing::new(&self.region, (id.way, id.number as u16), slots, true)?;
        Ok(RingState::new(shared, id.way))
    }

    /// Makes rings with drivers, or none.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn rings(
        &self,
        wanted: &[RingId],
        mut driver: impl FnMut(RingId) -> Box<dyn RingDriver>,
    ) -> Result<Vec<NewRing>, Errno> {
        let mut rings: Vec<NewRing> = Vec::with_capacity(wanted.len());
        for &id in wanted {
            match self.ring(id) {
                Ok(state) => rings.push((state, driver(id))),
                Err(errno) => {
                    rings.iter().for_each(|(state, _)| state.shared.free(|_| true));
                    return Err(errno);
                }
            }
        }
        Ok(rings)
    }
}

/// A port with its rings.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) port: PortRings,
    /// None for memory alone.
    driver: Option<Box<dyn PortDriver>>,
    rings: Mutex<[Vec<RingUse>; 2]>,
}

/// The use of a ring. It exists while it has users.
#[derive(Clone, Debug, Default)]
struct RingUse {
    kring: Option<Arc<Kring>>,
    users: u32,
    exclusive: bool,
}

impl Adapter {
    pub(super) fn new(name: &str, port: PortRings, driver: Option<Box<dyn PortDriver>>) -> Self {
        let unused = |way| vec![RingUse::default(); port.geometry.rings(way).1 as usize];
        let rings = Mutex::new([unused(Way::Transmit), unused(Way::Receive)]);
        port.region.join();
        Self { name: name.into(), port, driver, rings }
    }

    /// Binds rings for a file. Opens those that have no user yet.
    ///
    /// # Errors
    /// EBUSY if another file has one of them and either wants it alone; or the port refuses.
    pub(super) fn bind(
        &self,
        selection: &Selection,
        exclusive: bool,
    ) -> Result<Vec<Arc<Kring>>, Errno> {
        let rings = &mut *self.rings();
        let used = |id: RingId| -> &RingUse { &rings[id.way as usize][id.number as usize] };
        if selection.ids().map(used).any(|it| it.exclusive || exclusive && it.users > 0) {
            return Err(Errno::EBUSY);
        }
        let wanted: Vec<_> = selection.ids().filter(|&id| used(id).users == 0).collect();
        let opened = match &self.driver {
            Some(driver) if !wanted.is_empty() => driver.open(&self.port, &wanted)?,
            _ => Vec::new(),
        };
        let mut krings = Vec::with_capacity(opened.len());
        for (id, (state, driver)) in wanted.into_iter().zip(opened) {
            let kring = Arc::new(Kring::new(id.number, state, driver));
            rings[id.way as usize][id.number as usize].kring = Some(Arc::clone(&kring));
            krings.push(kring);
        }
        if let Some(driver) = &self.driver {
            driver.opened(&self.port, &krings);
        }
        let bound = selection.ids().filter_map(|id| {
            let ring = &mut rings[id.way as usize][id.number as usize];
            ring.users += 1;
            ring.exclusive = exclusive;
            ring.kring.clone()
        });
        Ok(bound.collect())
    }

    /// Ends a file's use of rings. Closes those that have no other user.
    pub(super) fn unbind(&self, selection: &Selection) {
        let rings = &mut *self.rings();
        let mut closed = Vec::new();
        for id in selection.ids() {
            let ring = &mut rings[id.way as usize][id.number as usize];
            ring.users -= 1;
            if ring.users == 0 {
                ring.exclusive = false;
                closed.extend(ring.kring.take());
            }
        }
        if let Some(driver) = &self.driver {
            driver.closing(&self.port, &closed);
        }
        closed.iter().for_each(|kring| kring.close());
    }

    /// Describes the port and its rings that have users.
    pub(super) fn describe(&self) -> Value {
        let rings = self.rings().concat();
        let used = rings.iter().filter_map(|ring| {
            let mut kring = ring.kring.as_ref()?.describe()?;
            kring["files"] = ring.users.into();
            kring["exclusive"] = ring.exclusive.into();
            Some(kring)
        });
        json!({"name": self.name, "region": self.port.region.id, "rings": used.collect::<Vec<_>>()})
    }

    /// Returns a ring that is open.
    pub(super) fn kring(&self, id: RingId) -> Option<Arc<Kring>> {
        self.rings()[id.way as usize].get(id.number as usize)?.kring.clone()
    }

    /// Returns true if a file has bound one of the rings.
    pub(super) fn is_bound(&self) -> bool {
        self.rings().iter().flatten().any(|ring| ring.users > 0)
    }

    fn rings(&self) -> MutexGuard<'_, [Vec<RingUse>; 2]> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // The port may have memory of the region.
        self.driver = None;
        self.port.region.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_reduced_to_what_a_region_holds() {
        let geometry = |tx_rings, rx_rings| Geometry {
            tx_rings,
            rx_rings,
            host_tx_rings: 1,
            host_rx_rings: 1,
            tx_slots: 1024,
            rx_slots: 1024,
            has_host: true,
        };
        for (rings, free, expected, why) in [
            ((79, 79), 163_840, (79, 79), "all fit"),
            ((80, 79), 163_840, (39, 39), "half of the region for each of two cards"),
            ((2, 256), 163_840, (2, 76), "the larger number is reduced"),
            ((64, 64), 81_920, (19, 19), "the second card"),
            ((4, 4), 0, (1, 1), "registering it fails"),
        ] {
            let found = geometry(rings.0, rings.1).reduced_to(free);
            assert_eq!((found.tx_rings, found.rx_rings), expected, "{why}");
        }
        assert_eq!(geometry(2, 3).buffers(), 7 * 1024);
    }
}
