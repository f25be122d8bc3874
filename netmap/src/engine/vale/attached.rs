//! A card attached to a switch: a thread passes packets between the card's rings and a port of the switch.
//!
//! ```text
//!   card: receive ring i  --swap buffers-->  port: transmit ring i
//!         transmit ring i <--swap buffers--        receive ring i
//! ```
//!
//! The port has buffers of the card's region, so that they are swapped. With the host's rings, the host has a port
//! of its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::engine::WaitSources;
use crate::engine::adapter::{Adapter, Selection};
use crate::engine::kring::Kring;
use crate::engine::ring::Way;
use crate::engine::wake::Waker;

/// The longest sleep of the thread.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Rings of a port that a thread has alone. Dropping it closes them.
#[derive(Debug)]
struct Bound {
    adapter: Arc<Adapter>,
    selection: Selection,
    krings: Vec<Arc<Kring>>,
}

impl Bound {
    fn new(adapter: &Arc<Adapter>, selection: Selection) -> Result<Self, Errno> {
        let krings = adapter.bind(&selection, true)?;
        Ok(Self { adapter: Arc::clone(adapter), selection, krings })
    }

    fn rings(&self, way: Way) -> impl Iterator<Item = &Arc<Kring>> {
        self.krings.iter().filter(move |kring| kring.way == way)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.adapter.unbind(&self.selection);
    }
}

/// A card attached to a switch. Dropping it detaches the card.
#[derive(Debug)]
pub(in crate::engine) struct AttachedCard {
    /// The number of the card's port in the switch.
    pub(in crate::engine) port_index: u32,
    /// True between POLLING_ENABLE and POLLING_DISABLE, which change nothing else: the thread polls anyway.
    pub(in crate::engine) polls: bool,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    // After the thread.
    _rings: Vec<Bound>,
}

impl AttachedCard {
    /// Starts passing packets between a card and ports of the same region: one for the card's rings, and one for
    /// the host's, if there are two.
    ///
    /// # Errors
    /// EBUSY: a program has the card's rings. EAGAIN: no thread. As [`Adapter::bind`].
    pub(in crate::engine) fn start(
        card: &Arc<Adapter>,
        ports: &[Arc<Adapter>],
        port_index: u32,
    ) -> Result<Self, Errno> {
        let [tx, rx] = [Way::Transmit, Way::Receive].map(|way| card.port.geometry.rings(way));
        let of_card =
            [Selection { tx: 0..tx.0, rx: 0..rx.0 }, Selection { tx: tx.0..tx.1, rx: rx.0..rx.1 }];
        let (mut rings, mut pumps) = (Vec::new(), Vec::new());
        for (port, of_card) in ports.iter().zip(of_card) {
            let of_port = [Way::Transmit, Way::Receive].map(|way| port.port.geometry.rings(way).0);
            let card = Bound::new(card, of_card)?;
            let port = Bound::new(port, Selection { tx: 0..of_port[0], rx: 0..of_port[1] })?;
            for (from, to) in [(&card, &port), (&port, &card)] {
                let pairs = from.rings(Way::Receive).zip(to.rings(Way::Transmit));
                pumps.extend(pairs.map(|(from, to)| [Arc::clone(from), Arc::clone(to)]));
            }
            rings.extend([card, port]);
        }
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), Arc::new(Waker::new()?));
        pumps.iter().for_each(|[from, _]| from.wakers.add(&waker));
        let run = {
            let (stop, waker) = (Arc::clone(&stop), Arc::clone(&waker));
            // Relaxed: the flag publishes nothing.
            move || {
                while !stop.load(Ordering::Relaxed) {
                    if !pass(&pumps) {
                        sleep(&pumps, &waker, &stop);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("vale".into()).spawn(run);
        let thread = Some(thread.map_err(|_| Errno::EAGAIN)?);
        Ok(Self { port_index, polls: false, thread, stop, waker, _rings: rings })
    }
}

impl Drop for AttachedCard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake_anyway();
        // A panic there has ended the thread, too.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Passes the packets of each pair. Returns true if there were any.
fn pass(pumps: &[[Arc<Kring>; 2]]) -> bool {
    pumps.iter().fold(false, |any, [from, to]| {
        from.sync();
        let moved = from.swap_to(to);
        to.sync();
        any | (moved > 0)
    })
}

/// Sleeps until one of the pairs has packets.
fn sleep(pumps: &[[Arc<Kring>; 2]], waker: &Waker, stop: &AtomicBool) {
    let mut sources = WaitSources::default();
    sources.descriptors.push((waker.arm(), PollFlags::POLLIN));
    for [from, to] in pumps {
        from.arm(&mut sources);
        to.arm(&mut sources);
    }
    // Arming may have read the wake-up that came with the flag.
    if stop.load(Ordering::Relaxed) || pass(pumps) {
        return;
    }
    #[allow(unsafe_code, reason = "descriptors of rings that are open")]
    let mut fds: Vec<_> = (sources.descriptors.iter())
        // SAFETY: the rings stay open until this thread has ended, and with them the descriptors.
        .map(|&(fd, events)| PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, events))
        .collect();
    let longest = sources.longest.map_or(MAX_SLEEP, |longest| longest.min(MAX_SLEEP));
    // Interrupted or not: the next round looks.
    let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(longest)), None);
}
