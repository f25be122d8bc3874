//! Queues whose rings a program in another process has.
//!
//! A [`Region`] is the memory of one such program: images of rings, and buffers. The program maps
//! it and works on the images as on any ring; here, in the server's process, a [`Served`] has the
//! queue with its own rings, which are in no memory of the program's, and carries slots from these
//! to the images and back when the program asks for a sync.
//!
//! The program may write into its memory what it likes and when it likes. What it gives back is
//! copied once and checked: its cursors, and of each slot the buffer (one that it has, and gives
//! back once), where the packet starts, how long it is, its flags. What cannot be ends the queue
//! with an error; other queues, and programs with regions of their own, go on. No more than its own
//! packets can be wrong, and what is wrong in them goes to where it sends them.
//!
//! That rests on two rules. All ports of a region are served: none lends a slice of a buffer that the
//! program may be writing. And no backend lets the bytes of a packet decide where it reads or writes:
//! it copies them, or has the kernel do it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::queue::{Queue, QueueStats};
use super::{OpenOptions, Port, PortName};
use crate::error::{Error, Result};
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{ImageFault, Incoming, LentBuffers, Outgoing, Readiness, Wait};

/// The memory that one program in another process shares: its rings and its buffers.
#[derive(Clone, Debug)]
pub struct Region {
    shared: Arc<ServedState>,
}

#[derive(Debug)]
struct ServedState {
    pool: Arc<Pool>,
    held: Arc<LentBuffers>,
    /// Queues that the program has.
    queues: Mutex<usize>,
}

impl Region {
    /// Makes a region. A receive ring takes a buffer a slot besides those of its port; pages are
    /// ordinary ones, for of huge ones the program could take some away.
    ///
    /// # Errors
    /// No memory, or a size that cannot be.
    pub fn new(config: PoolConfig) -> Result<Self> {
        let pool = Pool::with_images(PoolConfig { huge_pages: false, ..config })?;
        let held = Arc::new(LentBuffers::none_of(pool.buffers()));
        Ok(Self { shared: Arc::new(ServedState { pool, held, queues: Mutex::new(0) }) })
    }

    /// Opens a port for the program: the port, and its queues. Whatever pool the options name, the
    /// port's is the region's. Packets swap between all ports of one region.
    ///
    /// # Errors
    /// As [`Port::open`]; a region without as many buffers, or as much room for rings.
    pub fn open(&self, name: &PortName, options: &OpenOptions) -> Result<(Port, Vec<Served>)> {
        let options = OpenOptions { pool: Some(Arc::clone(&self.shared.pool)), ..options.clone() };
        let mut port = Port::open(name, &options)?;
        let queues = std::mem::take(&mut port.queues).into_iter();
        let served = queues.map(|queue| Served::new(name, queue, self)).collect::<Result<_>>()?;
        Ok((port, served))
    }

    /// The memory file, to hand to the program. Its size is sealed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.pool.file()
    }

    /// Bytes that the program maps.
    pub fn bytes(&self) -> usize {
        self.shared.pool.bytes()
    }

    /// Buffers that nobody has: all of them, when no queue is served.
    pub fn free_buffers(&self) -> usize {
        self.shared.pool.free_buffers()
    }

    /// Queues that the program has. Who has the lock can be sure that none comes or goes.
    fn queues(&self) -> MutexGuard<'_, usize> {
        self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue that a program in another process has, as its server sees it. Calls are the program's, by
/// whatever way it asks for them.
#[derive(Debug)]
pub struct Served {
    /// For messages: "xdp:eth0, queue 0".
    object: String,
    rx: Incoming,
    tx: Outgoing,
    queue: Queue,
    /// What has ended it: in which ring, and what.
    ended: Option<(&'static str, ImageFault)>,
    // Last: buffers come home before it is looked who is left.
    _hold: Hold,
}

/// A queue's hold of its region. The last one takes back what the program has of buffers.
#[derive(Debug)]
struct Hold(Region);

impl Hold {
    fn new(region: &Region) -> Self {
        *region.queues() += 1;
        Self(region.clone())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let ServedState { pool, held, .. } = &*self.0.shared;
        let mut queues = self.0.queues();
        *queues -= 1;
        // Under the lock: a queue that is opened now hands out buffers that are not to be drained.
        if *queues == 0 {
            // SAFETY: `held` has the buffers that the program was lent and has not given back; with the
            // last queue its images end, by which it could.
            #[allow(unsafe_code, reason = "buffers change hands by number")]
            unsafe {
                pool.give(held.drain())
            };
        }
    }
}

impl Served {
    fn new(name: &PortName, mut queue: Queue, region: &Region) -> Result<Self> {
        let hold = Hold::new(region);
        let ServedState { pool, held, .. } = &*region.shared;
        let number = queue.number();
        let (rx, tx) = queue.own_rings();
        Ok(Self {
            object: format!("{}, queue {number}", name.short()),
            rx: Incoming::new(rx, number, pool, held)?,
            tx: Outgoing::new(tx, number, pool, held)?,
            queue,
            ended: None,
            _hold: hold,
        })
    }

    /// Where the receive ring's image begins in the region: a [`RingHeader`](sluicegate_base::ring::RingHeader),
    /// which says where the buffers are, and slots. Of the two it is the one with `dir` 1.
    pub fn rx_offset(&self) -> usize {
        self.rx.offset()
    }

    /// Where the transmit ring's image begins in the region.
    pub fn tx_offset(&self) -> usize {
        self.tx.offset()
    }

    /// Takes back the receive slots that the program has released, and hands out what has arrived.
    /// Never waits. Returns how many slots are new.
    ///
    /// # Errors
    /// As [`Queue::sync_rx`]; [`Error::Corrupt`] where the program has written what cannot be,
    /// now or before.
    pub fn sync_rx(&mut self) -> Result<u32> {
        self.check_alive()?;
        self.rx.take_back().map_err(|fault| self.end("receive", fault))?;
        let synced = self.queue.sync_rx();
        let new = self.rx.hand_out(self.queue.own_rings().0);
        synced.map(|_| new)
    }

    /// Sends what the program has released, and hands out the room that has come of it. Never waits,
    /// except for a disk. Returns how many slots are new.
    ///
    /// # Errors
    /// As [`Queue::sync_tx`]; [`Error::Corrupt`] where the program has written what cannot be, now
    /// or before: then nothing is sent of what it has released since the last call.
    pub fn sync_tx(&mut self) -> Result<u32> {
        self.check_alive()?;
        let taken = self.tx.take_back(self.queue.own_rings().1);
        taken.map_err(|fault| self.end("transmit", fault))?;
        let synced = self.queue.sync_tx();
        let new = self.tx.hand_out(self.queue.own_rings().1);
        synced.map(|_| new)
    }

    /// Waits until there is something to receive, as [`Queue::wait_rx`].
    ///
    /// # Errors
    /// As [`Queue::wait_rx`].
    pub fn wait_rx(&mut self, wait: Wait, timeout: Duration) -> Result<Readiness> {
        self.queue.wait_rx(wait, timeout)
    }

    /// Looks at what has become of the source, as [`Queue::check`].
    ///
    /// # Errors
    /// As [`Queue::check`].
    pub fn check(&mut self) -> Result<()> {
        self.queue.check()
    }

    /// Lets nothing more in, as [`Queue::stop_rx`].
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stop_rx(&mut self) -> Result<()> {
        self.queue.stop_rx()
    }

    /// What the backend has counted so far.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stats(&mut self) -> Result<QueueStats> {
        self.queue.stats()
    }

    /// Packets that were left out, because they need more slots than the receive ring has.
    pub fn too_long(&self) -> u64 {
        self.rx.too_long
    }

    fn check_alive(&self) -> Result<()> {
        match &self.ended {
            Some((ring, fault)) => Err(self.corrupt(ring, fault)),
            None => Ok(()),
        }
    }

    /// Ends the queue: it takes nothing more from the host.
    fn end(&mut self, ring: &'static str, fault: ImageFault) -> Error {
        let error = self.corrupt(ring, &fault);
        self.ended = Some((ring, fault));
        // Its packets fall to the host at the latest when it is dropped.
        let _ = self.queue.stop_rx();
        error
    }

    fn corrupt(&self, ring: &str, fault: &ImageFault) -> Error {
        Error::Corrupt { ring: format!("{}, {ring} ring", self.object), fault: fault.to_string() }
    }
}
