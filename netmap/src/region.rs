//! Queues whose rings are shared with a program in another process.
//!
//! A [`Region`] is the memory of one such program: images of rings, and buffers. The program maps it and uses
//! the images like any ring. In the server's process, a [`Served`] has the queue with its own rings, which
//! are not in shared memory. When the program requests a sync, [`Served`] copies packets between the two.
//!
//! The program may write anything into its memory at any time. The server copies returned values once and
//! checks the copies: the cursors, and for each slot the buffer (lent, and returned only once), the packet's
//! offset and length, and the flags. An invalid value ends the queue with an error; other queues and regions
//! continue.
//!
//! No slice exists over memory that the program may write: the ports have buffers in a private pool, and
//! packets are copied in both directions.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate::port::{OpenOptions, Port, PortName, Queue, QueueStats};
use sluicegate_base::memory::{Pool, PoolConfig};
use sluicegate_base::ring::{Readiness, Wait};
use sluicegate_base::{Error, Result};

use crate::image::{Image, ImageFault, RingArea};
use crate::transfer;

/// The size of a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    /// Buffers: one for each slot of the program's rings. The region's ports have as many of their own; an
    /// `xdp:` port takes more than one per slot.
    pub buffers: u32,
    /// The size of a buffer: a multiple of 64; 2048 or 4096 if a port uses AF_XDP.
    pub buffer_bytes: u32,
    /// Room for the images of rings, in bytes.
    pub ring_area_bytes: usize,
}

impl Default for RegionConfig {
    fn default() -> Self {
        let PoolConfig { buffers, buffer_bytes, .. } = PoolConfig::default();
        Self { buffers, buffer_bytes, ring_area_bytes: 1 << 20 }
    }
}

/// The memory shared with one program in another process: its rings and buffers.
#[derive(Clone, Debug)]
pub struct Region {
    shared: Arc<ServedState>,
}

#[derive(Debug)]
struct ServedState {
    area: Arc<RingArea>,
    /// The buffers of the ports, which the program cannot access.
    pool: Arc<Pool>,
    /// The number of queues that the program has.
    queues: Mutex<usize>,
}

impl Region {
    /// Creates a region of ordinary pages, because a program could remove huge ones.
    ///
    /// # Errors
    /// Not enough memory, or an invalid size.
    pub fn new(config: RegionConfig) -> Result<Self> {
        let RegionConfig { buffers, buffer_bytes, ring_area_bytes } = config;
        let config = PoolConfig { buffers, buffer_bytes, huge_pages: false };
        let area = Arc::new(RingArea::new(config, ring_area_bytes)?);
        let pool = Pool::new(config)?;
        Ok(Self { shared: Arc::new(ServedState { area, pool, queues: Mutex::new(0) }) })
    }

    /// Opens a port for the program. Returns the port and its queues. The pool of the options is not used: a
    /// port has buffers of the region's size.
    ///
    /// # Errors
    /// As [`Port::open`]; too few buffers in the region, or too little room for rings.
    pub fn open(&self, name: &PortName, options: &OpenOptions) -> Result<(Port, Vec<Served>)> {
        let options = OpenOptions { pool: Some(Arc::clone(&self.shared.pool)), ..options.clone() };
        let mut port = Port::open(name, &options)?;
        let queues = std::mem::take(&mut port.queues).into_iter();
        let served = queues.map(|queue| Served::new(name, queue, self)).collect::<Result<_>>()?;
        Ok((port, served))
    }

    /// Returns the memory file, to pass to the program. Its size is sealed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.area.pool().file()
    }

    /// Returns the number of bytes to map.
    pub fn bytes(&self) -> usize {
        self.shared.area.pool().bytes()
    }

    /// Returns the number of buffers that are free, in the region and among those of its ports: all if no
    /// queue is served.
    pub fn free_buffers(&self) -> usize {
        self.shared.area.pool().free_buffers().min(self.shared.pool.free_buffers())
    }

    /// The number of queues that the program has. None is opened or closed while the lock is held.
    fn queues(&self) -> MutexGuard<'_, usize> {
        self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's side of a queue of a program in another process. The server calls it when the program
/// requests a sync.
#[derive(Debug)]
pub struct Served {
    /// For messages: "xdp:eth0, queue 0".
    object: String,
    rx: Image,
    tx: Image,
    /// Packets that need more slots than `rx` has.
    too_long: u64,
    queue: Queue,
    /// The ring with the fault that ended the queue, and the fault.
    ended: Option<(&'static str, ImageFault)>,
    // The last field: the images return their buffers before the last queue takes back the program's.
    _hold: Hold,
}

/// A queue's hold on its region. The last one takes back the program's buffers.
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
        let area = &self.0.shared.area;
        let mut queues = self.0.queues();
        *queues -= 1;
        // Under the lock, because a queue opened now hands out buffers that must not be drained.
        if *queues == 0 {
            // SAFETY: `area.lent` has the buffers that the program was lent and has not given back; with the last
            // queue its images end, so it cannot give them back any more.
            #[allow(unsafe_code, reason = "buffers change hands by number")]
            unsafe {
                area.pool().give(area.lent.drain())
            };
        }
    }
}

impl Served {
    fn new(name: &PortName, queue: Queue, region: &Region) -> Result<Self> {
        let hold = Hold::new(region);
        let (area, number) = (&region.shared.area, queue.number());
        let rx = Image::new(area, queue.rx().num_slots(), (number, false))?;
        let mut tx = Image::new(area, queue.tx().num_slots(), (number, true))?;
        assert!(queue.tx().is_absent() || queue.tx().buffer_bytes() >= tx.buffer_bytes());
        transfer::hand_out_room(&mut tx, queue.tx());
        Ok(Self {
            object: format!("{}, queue {number}", name.short()),
            rx,
            tx,
            too_long: 0,
            queue,
            ended: None,
            _hold: hold,
        })
    }

    /// Returns the offset in the region of the receive ring's image: an
    /// [`abi::RingHeader`](crate::abi::RingHeader) with `dir` 1 and the offset of the buffers, then slots.
    pub fn rx_offset(&self) -> usize {
        self.rx.offset()
    }

    /// Returns the offset in the region of the transmit ring's image.
    pub fn tx_offset(&self) -> usize {
        self.tx.offset()
    }

    /// Takes back the receive slots that the program has released, and hands out received packets. Never
    /// waits. Returns the number of new slots.
    ///
    /// # Errors
    /// As [`Queue::sync_rx`]; [`Error::Corrupt`] if the program has written an invalid value, now or before.
    pub fn sync_rx(&mut self) -> Result<u32> {
        self.check_alive()?;
        transfer::take_back_room(&mut self.rx).map_err(|fault| self.end("receive", fault))?;
        let synced = self.queue.sync_rx();
        let ring = &mut self.queue.rx_mut();
        let new = transfer::hand_out_packets(&mut self.rx, ring, &mut self.too_long);
        synced.map(|_| new)
    }

    /// Sends the slots that the program has released, and hands out the room in the ring. Never waits, except
    /// for a disk. Returns the number of new slots.
    ///
    /// # Errors
    /// As [`Queue::sync_tx`]; [`Error::Corrupt`] if the program has written an invalid value, now or before:
    /// then nothing that it has released since the last call is sent.
    pub fn sync_tx(&mut self) -> Result<u32> {
        self.check_alive()?;
        let taken = transfer::take_back_packets(&mut self.tx, &mut self.queue.tx_mut());
        taken.map_err(|fault| self.end("transmit", fault))?;
        let synced = self.queue.sync_tx();
        let new = transfer::hand_out_room(&mut self.tx, self.queue.tx());
        synced.map(|_| new)
    }

    /// Waits until a packet can be received, like [`Queue::wait_rx`].
    ///
    /// # Errors
    /// As [`Queue::wait_rx`].
    pub fn wait_rx(&mut self, wait: Wait, timeout: Duration) -> Result<Readiness> {
        self.queue.wait_rx(wait, timeout)
    }

    /// Checks the state of the source, like [`Queue::check`].
    ///
    /// # Errors
    /// As [`Queue::check`].
    pub fn check(&mut self) -> Result<()> {
        self.queue.check()
    }

    /// Stops receiving, like [`Queue::stop_rx`].
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stop_rx(&mut self) -> Result<()> {
        self.queue.stop_rx()
    }

    /// Returns the counters of the backend.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn stats(&mut self) -> Result<QueueStats> {
        self.queue.stats()
    }

    /// Returns the number of packets dropped because they need more slots than the receive ring has.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    fn check_alive(&self) -> Result<()> {
        match &self.ended {
            Some((ring, fault)) => Err(self.corrupt(ring, fault)),
            None => Ok(()),
        }
    }

    /// Ends the queue, which then takes no more packets from the host.
    fn end(&mut self, ring: &'static str, fault: ImageFault) -> Error {
        let error = self.corrupt(ring, &fault);
        self.ended = Some((ring, fault));
        // If this fails, the host gets the packets once the queue is dropped.
        let _ = self.queue.stop_rx();
        error
    }

    fn corrupt(&self, ring: &str, fault: &ImageFault) -> Error {
        Error::Corrupt { ring: format!("{}, {ring} ring", self.object), fault: fault.to_string() }
    }
}
