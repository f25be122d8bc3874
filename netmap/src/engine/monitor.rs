//! Monitors: ports whose receive rings get copies of the packets of another port's rings.
//!
//! A monitor that is slow loses packets: the monitored port never waits for it.

use std::sync::Arc;

use nix::errno::Errno;

use super::adapter::{Adapter, Geometry, NewRing, PortDriver, PortRings, RingId};
use super::kring::{Kring, RingDriver};
use super::ring::{RingState, Way};
use crate::abi::bodies::Register;
use crate::abi::bodies::register_flags::{MONITOR_RX, MONITOR_TX};
use crate::abi::flags;

/// Copies the packets in the slots [first, last) to the monitors.
pub(super) fn copy(ring: &RingState, first: u32, last: u32, monitors: &[Arc<Kring>]) {
    if first == last {
        return;
    }
    let mark = if ring.way == Way::Transmit { flags::TXMON } else { 0 };
    for monitor in monitors {
        monitor.deliver(|to| {
            let (before, mut index) = (to.hwtail, first);
            // The end of the last whole packet, and true if a slot of this one is lost: then all its slots are.
            let (mut end, mut lost) = (before, false);
            while index != last {
                let more = ring.shared.slot(index).flags & flags::MOREFRAG;
                if !lost {
                    let packet = ring.packet(index).filter(|_| to.room() > 0);
                    let filled = packet.map(|(slot, from)| {
                        to.fill_slot(to.hwtail, (slot.len, more | mark), |region, at| {
                            let memory = &ring.shared.region().memory;
                            memory.copy_to(from, &region.memory, at, slot.len.into());
                        })
                    });
                    if filled == Some(true) {
                        to.hwtail = to.next(to.hwtail);
                    } else {
                        (to.hwtail, lost) = (end, true);
                        if filled == Some(false) {
                            to.skip_invalid();
                            end = to.hwtail;
                        }
                    }
                }
                if more == 0 {
                    (end, lost) = (to.hwtail, false);
                }
                index = ring.next(index);
            }
            to.hwtail != before
        });
    }
}

/// The driver of a receive ring that others fill: a monitor's, or that of a port of a VALE switch.
#[derive(Debug)]
pub(super) struct FilledByOthers;

impl RingDriver for FilledByOthers {
    #[inline]
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
        ring.hwcur = ring.rhead;
        Ok(())
    }
}

/// Makes the port of a monitor: a receive ring for each ring of its parent that it may see.
///
/// # Errors
/// EINVAL: nobody has the parent's rings.
pub(super) fn adapter(parent: &Arc<Adapter>, wanted: &Register) -> Result<Arc<Adapter>, Errno> {
    if !parent.is_bound() {
        return Err(Errno::EINVAL);
    }
    let of_parent = parent.port.geometry;
    let (transmit, receive) = (wanted.flags & MONITOR_TX != 0, wanted.flags & MONITOR_RX != 0);
    let rings = |tx: u32, rx: u32| {
        let tx = if transmit { tx } else { 0 };
        tx.max(if receive { rx } else { 0 })
    };
    let geometry = Geometry {
        tx_rings: 1,
        rx_rings: rings(of_parent.tx_rings, of_parent.rx_rings),
        host_rx_rings: rings(of_parent.host_tx_rings, of_parent.host_rx_rings),
        ..of_parent
    };
    let region = Arc::clone(&parent.port.region);
    let parent = Arc::clone(parent);
    let name = parent.name.clone();
    let driver = Monitor { parent, transmit, receive };
    Ok(Arc::new(Adapter::new(&name, PortRings { region, geometry }, Some(Box::new(driver)))))
}

/// The driver of a monitor's port.
#[derive(Debug)]
struct Monitor {
    parent: Arc<Adapter>,
    transmit: bool,
    receive: bool,
}

impl Monitor {
    /// Returns the parent's open rings that a monitor's ring sees.
    fn monitored(&self, port: &Geometry, number: u32) -> Vec<Arc<Kring>> {
        let of_parent = self.parent.port.geometry;
        let ways = [(Way::Transmit, self.transmit), (Way::Receive, self.receive)];
        let seen = ways.into_iter().filter(|(_, seen)| *seen).filter_map(|(way, _)| {
            let (card, all) = of_parent.rings(way);
            let number = match number.checked_sub(port.rx_rings) {
                None => Some(number).filter(|&number| number < card),
                Some(host) => Some(card + host).filter(|&number| number < all),
            };
            self.parent.kring(RingId { way, number: number? })
        });
        seen.collect()
    }
}

impl PortDriver for Monitor {
    fn open(&self, port: &PortRings, wanted: &[RingId]) -> Result<Vec<NewRing>, Errno> {
        port.rings(wanted, |_| Box::new(FilledByOthers))
    }

    fn opened(&self, port: &PortRings, rings: &[Arc<Kring>]) {
        for kring in rings {
            for monitored in self.monitored(&port.geometry, kring.number) {
                monitored.add_monitor(kring);
            }
        }
    }

    fn closing(&self, port: &PortRings, rings: &[Arc<Kring>]) {
        for kring in rings {
            for monitored in self.monitored(&port.geometry, kring.number) {
                monitored.remove_monitor(kring);
            }
        }
    }
}
