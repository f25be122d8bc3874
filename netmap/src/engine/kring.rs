//! A ring of an adapter: its state, the driver that moves its packets, and the files that it wakes.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use serde_json::{Value, json};

use super::WaitSources;
use super::monitor::Monitors;
use super::ring::{RingState, Way};
use super::wake::Wakers;

/// The part of a ring that differs between kinds of ports.
pub(super) trait RingDriver: Debug + Send {
    /// Moves packets. On a transmit ring, sends the slots in [hwcur, rhead); on a receive ring, these are released
    /// and may be filled again. Sets hwcur and hwtail. Never waits.
    ///
    /// # Errors
    /// The port failed; poll(2) then returns POLLERR.
    fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno>;

    /// Adds the events that end a sleep to `sources`. The [`Wakers`] of the ring are armed already.
    fn arm(&mut self, _ring: &RingState, _sources: &mut WaitSources) {}

    /// Returns true if a sync itself receives packets: then nothing else wakes the files that sleep on the ring.
    fn receives(&self) -> bool {
        false
    }

    /// Returns true if a thread of this process moves the packets: a forked child does not have it.
    fn has_thread(&self) -> bool {
        false
    }

    /// Frees the memory of the ring when its last user has closed it.
    fn close(&mut self, ring: &RingState) {
        ring.shared.free(|_| true);
    }
}

/// The result of one sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Synced {
    /// The program has slots that it has not seen.
    Unseen,
    /// It has none.
    Nothing,
    /// It broke the ring's rules, or the port failed.
    Failed,
}

/// A ring of an adapter.
#[derive(Debug)]
pub(super) struct Kring {
    pub(super) way: Way,
    /// Its number in its adapter, where the host's rings follow the card's.
    pub(super) number: u32,
    /// Its offset in the region.
    pub(super) offset: usize,
    open: Mutex<Option<OpenRing>>,
    is_monitored: AtomicBool,
    pub(super) wakers: Wakers,
}

/// The ring of an adapter while it has users.
#[derive(Debug)]
pub(super) struct OpenRing {
    pub(super) state: RingState,
    driver: Box<dyn RingDriver>,
    /// The monitors that see its packets before they are sent, or received by the program.
    monitors: Monitors,
    /// The zero-copy monitors, which see its packets after the slots are free, or released by the program.
    late_monitors: Monitors,
}

impl Kring {
    pub(super) fn new(number: u32, state: RingState, driver: Box<dyn RingDriver>) -> Self {
        let (way, offset) = (state.way, state.shared.offset());
        let [monitors, late_monitors] = [Monitors::default(), Monitors::default()];
        let open = OpenRing { state, driver, monitors, late_monitors };
        let (open, is_monitored) = (Mutex::new(Some(open)), AtomicBool::new(false));
        Self { way, number, offset, open, is_monitored, wakers: Wakers::default() }
    }

    /// Returns the ring; None if its last user has closed it.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<OpenRing>> {
        // A sync that panicked leaves cursors that are valid, whichever they are.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs the ring with the program's cursors, and shows the program the new tail.
    #[inline]
    pub(super) fn sync(&self) -> Synced {
        let mut open = self.lock();
        let Some(ring) = open.as_mut() else { return Synced::Nothing };
        let tail = ring.state.rtail;
        let synced = ring.sync_with_program();
        // The syncing file wakes itself, too, if it has slept: that ends one later sleep early.
        if ring.state.rtail != tail && ring.driver.receives() {
            self.wakers.wake();
        }
        synced
    }

    /// Returns true if the program has slots that it has not seen, as the ring's memory says now.
    #[inline]
    pub(super) fn shows_unseen(&self) -> bool {
        self.lock().as_ref().is_some_and(|ring| ring.state.shows_unseen())
    }

    /// Returns true if the program has unseen slots and has released none.
    #[inline]
    pub(super) fn needs_no_sync(&self) -> bool {
        self.lock().as_ref().is_some_and(|ring| ring.state.shows_unseen() && !ring.state.is_moved())
    }

    /// Returns true if the program has released slots, or earlier ones still wait.
    #[inline]
    pub(super) fn is_moved(&self) -> bool {
        let open = self.lock();
        open.as_ref()
            .is_some_and(|OpenRing { state, .. }| state.is_moved() || state.hwcur != state.rhead)
    }

    /// Writes the time of a sync.
    #[inline]
    pub(super) fn store_time(&self, now: [u64; 2]) {
        if let Some(ring) = self.lock().as_ref() {
            ring.state.shared.store_time(now);
        }
    }

    /// Calls `work` with the ring, if it is open. If it returns true, monitors see its packets, before the program
    /// syncs the ring, and the sleeping files wake.
    #[inline]
    pub(super) fn deliver(&self, work: impl FnOnce(&mut RingState) -> bool) {
        let changed = self.lock().as_mut().is_some_and(|ring| {
            let changed = work(&mut ring.state);
            if changed && ring.state.way == Way::Receive {
                ring.show_received();
            }
            changed
        });
        if changed {
            self.wakers.wake();
        }
    }

    /// Shows monitors what the other side has put into this receive ring, before the program syncs it. Takes no lock
    /// without monitors.
    #[inline]
    pub(super) fn show_arrived(&self) {
        // Relaxed: a monitor that begins now sees the packets at the program's sync at the latest.
        if self.is_monitored.load(Ordering::Relaxed)
            && let Some(ring) = self.lock().as_mut()
        {
            // The program gets the error at its own sync.
            let _ = ring.sync();
        }
    }

    /// Passes the packets of this receive ring to a transmit ring of the same region, as a program does that swaps
    /// buffers and releases both slots. Returns the number of slots.
    pub(super) fn swap_to(&self, to: &Self) -> u32 {
        let (mut to, mut from) = (to.lock(), self.lock());
        match (from.as_mut(), to.as_mut()) {
            (Some(from), Some(to)) => from.state.swap_to(&mut to.state),
            _ => 0,
        }
    }

    /// Makes a monitor's ring see the packets of this one from now on; a zero-copy one after the slots are free.
    pub(super) fn add_monitor(&self, monitor: &Arc<Kring>, is_zero_copy: bool) {
        if let Some(ring) = self.lock().as_mut() {
            let OpenRing { state, monitors, late_monitors, .. } = ring;
            match (is_zero_copy, state.way) {
                (false, Way::Transmit) => monitors.add(monitor, state, state.hwcur),
                (false, Way::Receive) => monitors.add(monitor, state, state.hwtail),
                (true, Way::Transmit) => {
                    late_monitors.add(monitor, state, state.next(state.hwtail))
                }
                (true, Way::Receive) => late_monitors.add(monitor, state, state.hwcur),
            }
            self.is_monitored.store(!monitors.is_empty(), Ordering::Relaxed);
        }
    }

    /// Ends a monitor's view of this ring.
    pub(super) fn remove_monitor(&self, monitor: &Arc<Kring>) {
        if let Some(ring) = self.lock().as_mut() {
            ring.monitors.remove(monitor);
            ring.late_monitors.remove(monitor);
            self.is_monitored.store(!ring.monitors.is_empty(), Ordering::Relaxed);
        }
    }

    /// Adds the events that end a sleep.
    pub(super) fn arm(&self, sources: &mut WaitSources) {
        if let Some(ring) = self.lock().as_mut() {
            ring.driver.arm(&ring.state, sources);
        }
    }

    pub(super) fn has_thread(&self) -> bool {
        self.lock().as_ref().is_some_and(|ring| ring.driver.has_thread())
    }

    /// Describes the ring and its cursors at the last sync; None if it is closed.
    pub(super) fn describe(&self) -> Option<Value> {
        let open = self.lock();
        let RingState { shared, way, rhead, rcur, rtail, .. } = &open.as_ref()?.state;
        Some(json!({
            "direction": if *way == Way::Transmit { "tx" } else { "rx" },
            "number": self.number,
            "slots": shared.num_slots(),
            "head": rhead,
            "cur": rcur,
            "tail": rtail,
        }))
    }

    /// Closes the ring: its driver ends, and its memory is free.
    pub(super) fn close(&self) {
        // Ends the driver without the lock, because a driver may take others.
        let open = self.lock().take();
        if let Some(mut ring) = open {
            ring.driver.close(&ring.state);
        }
    }
}

impl OpenRing {
    /// Syncs with the program's cursors, and shows the program the new tail.
    #[inline]
    fn sync_with_program(&mut self) -> Synced {
        if !self.state.prologue() {
            self.repair();
            return Synced::Failed;
        }
        match self.sync() {
            Ok(()) => {}
            // A slot is invalid.
            Err(Errno::EINVAL) => {
                self.state.skip_invalid();
                if self.state.way == Way::Receive {
                    // Monitors have seen the packets. The slots that follow them are empty.
                    self.monitors.skip_to(&self.state, self.state.hwtail);
                }
                self.state.finalize();
                self.repair();
                return Synced::Failed;
            }
            Err(_) => return Synced::Failed,
        }
        self.state.finalize();
        if self.state.has_unseen() { Synced::Unseen } else { Synced::Nothing }
    }

    /// Repairs the ring, which may take packets back from what is to be sent, or show received ones.
    fn repair(&mut self) {
        if self.state.way == Way::Receive {
            self.show_received();
        }
        self.state.reinit();
        let state = &self.state;
        let (unseen, unreleased) = match state.way {
            Way::Transmit => (state.rhead, state.next(state.hwtail)),
            Way::Receive => (state.hwtail, state.rhead),
        };
        self.monitors.skip_to(state, unseen);
        self.late_monitors.skip_to(state, unreleased);
    }

    /// Shows monitors the packets of a receive ring, before the program can change them.
    fn show_received(&mut self) {
        self.monitors.show(&self.state, self.state.hwtail);
    }

    #[inline]
    fn sync(&mut self) -> Result<(), Errno> {
        if self.monitors.is_empty() && self.late_monitors.is_empty() {
            return self.driver.sync(&mut self.state);
        }
        let state = &mut self.state;
        match state.way {
            Way::Transmit => {
                // Once, although a packet without room stays until a later sync.
                self.monitors.show(state, state.rhead);
                let synced = self.driver.sync(state);
                self.late_monitors.show(state, state.next(state.hwtail));
                synced
            }
            Way::Receive => {
                self.late_monitors.show(state, state.rhead);
                let synced = self.driver.sync(state);
                // Also if the sync failed: the program gets the packets before an invalid slot.
                self.show_received();
                synced
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::abi::structures::RingHeader;
    use crate::engine::monitor::FilledByOthers;
    use crate::engine::region::{RegionSize, RegionState};
    use crate::engine::ring::{SharedRing, SlotHead};

    /// Sends one packet a sync.
    #[derive(Debug)]
    struct Slow;

    impl RingDriver for Slow {
        fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
            if ring.hwcur != ring.rhead {
                ring.hwcur = ring.next(ring.hwcur);
                ring.hwtail = ring.before(ring.hwcur);
            }
            Ok(())
        }
    }

    /// Fills all room with packets of 60, 61, … bytes.
    #[derive(Debug)]
    struct Counting(u16);

    impl RingDriver for Counting {
        fn sync(&mut self, ring: &mut RingState) -> Result<(), Errno> {
            ring.hwcur = ring.rhead;
            while ring.room() > 0 {
                if !ring.fill_slot(ring.hwtail, (self.0, 0), |_, _| {}) {
                    return Err(Errno::EINVAL);
                }
                ring.hwtail = ring.next(ring.hwtail);
                self.0 += 1;
            }
            Ok(())
        }
    }

    /// Makes a ring of 8 slots with this driver, and a monitor of it with 32.
    fn monitored(way: Way, driver: Box<dyn RingDriver>) -> (Kring, Arc<Kring>) {
        let size = RegionSize { interfaces: 4096, rings: 8192, buffers: 100 };
        let region = Arc::new(RegionState::new(1, size, false).unwrap());
        let state = |way, slots| {
            RingState::new(SharedRing::new(&region, (way, 0), slots, true).unwrap(), way)
        };
        let kring = Kring::new(0, state(way, 8), driver);
        let receive = state(Way::Receive, 32);
        let monitor = Arc::new(Kring::new(0, receive, Box::new(FilledByOthers)));
        kring.add_monitor(&monitor, false);
        (kring, monitor)
    }

    /// Returns the lengths of the packets that a ring has received.
    fn seen(kring: &Kring) -> Vec<u16> {
        let open = kring.lock();
        let state = &open.as_ref().unwrap().state;
        (0..state.hwtail).map(|index| state.shared.slot(index).len).collect()
    }

    /// Writes slots as the program, and releases those before `head`.
    fn release(kring: &Kring, slots: impl IntoIterator<Item = (u32, SlotHead)>, head: u32) {
        let open = kring.lock();
        let shared = &open.as_ref().unwrap().state.shared;
        slots.into_iter().for_each(|(index, slot)| shared.set_slot(index, slot));
        shared.store(offset_of!(RingHeader, cur), head);
        shared.store(offset_of!(RingHeader, head), head);
    }

    fn slot(kring: &Kring, index: u32) -> SlotHead {
        kring.lock().as_ref().unwrap().state.shared.slot(index)
    }

    #[test]
    fn a_monitor_sees_each_received_packet_once_although_a_slot_is_invalid() {
        let (receiver, monitor) = monitored(Way::Receive, Box::new(Counting(60)));
        let valid = slot(&receiver, 5);
        release(&receiver, [(5, SlotHead::default())], 0);
        assert_eq!(receiver.sync(), Synced::Failed);
        assert_eq!(seen(&receiver), [60, 61, 62, 63, 64, 0], "the invalid slot is empty");
        assert_eq!(seen(&monitor), [60, 61, 62, 63, 64]);
        release(&receiver, [(5, valid)], 6);
        assert_eq!(receiver.sync(), Synced::Unseen);
        assert_eq!(seen(&monitor), (60..72).collect::<Vec<_>>());
    }

    #[test]
    fn a_monitor_sees_received_packets_that_a_reset_of_the_cursors_shows() {
        let (receiver, monitor) = monitored(Way::Receive, Box::new(FilledByOthers));
        receiver.deliver(|ring| Counting(60).sync(ring).is_ok());
        release(&receiver, [], 77);
        assert_eq!(receiver.sync(), Synced::Failed);
        assert_eq!(seen(&monitor), (60..67).collect::<Vec<_>>());
        release(&receiver, [(0, SlotHead { len: 1, ..slot(&receiver, 0) })], 7);
        receiver.sync();
        assert_eq!(seen(&monitor), (60..67).collect::<Vec<_>>());
    }

    #[test]
    fn a_monitor_sees_each_packet_once_although_it_waits_for_room() {
        let (sender, monitor) = monitored(Way::Transmit, Box::new(Slow));
        for head in [3, 3, 5, 5, 5] {
            let packets =
                (0..head).map(|i| (i, SlotHead { len: 60 + i as u16, ..slot(&sender, i) }));
            release(&sender, packets.collect::<Vec<_>>(), head);
            sender.sync();
            assert_eq!(seen(&monitor), (0..head as u16).map(|i| 60 + i).collect::<Vec<_>>());
        }
        assert_eq!(sender.lock().as_ref().unwrap().state.hwcur, 5, "all are sent");
    }
}
