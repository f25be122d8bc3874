//! One end of a ring: which entries it has, and how the other end learns that it has handed over.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::doorbell::Doorbell;
use super::message::Breach;
use super::region::Regions;
use super::ring::{Descriptor, Memory};
use crate::ring::cursor::Cursor;
use crate::ring::{AtomicU16, Ordering};

/// One end of a ring in either direction.
#[derive(Debug)]
pub(crate) struct End {
    memory: Memory,
    bell: Doorbell,
    cursor: Cursor<AtomicU16>,
    role: Role,
    /// By place: whether a packet that was sent ends there.
    ends: Vec<bool>,
    /// A client's, at its server.
    regions: Arc<Regions>,
}

/// Whose it is: the client stores the head, the server the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

impl End {
    /// The client's end of a new ring.
    pub(super) fn of_client(memory: Memory, bell: Doorbell) -> Self {
        let cursor = Cursor::producing(memory.entries(), 0);
        Self::new(memory, bell, cursor, Role::Client, Arc::default())
    }

    /// The server's end of a ring that a client has made, in one of these regions.
    pub(super) fn of_server(memory: Memory, bell: Doorbell, regions: &Arc<Regions>) -> Self {
        // Relaxed: our own index, which nobody else stores.
        let start = memory.tail().load(Ordering::Relaxed).into();
        let cursor = Cursor::consuming(memory.entries(), start);
        Self::new(memory, bell, cursor, Role::Server, Arc::clone(regions))
    }

    fn new(
        memory: Memory,
        bell: Doorbell,
        cursor: Cursor<AtomicU16>,
        role: Role,
        regions: Arc<Regions>,
    ) -> Self {
        let ends = vec![false; memory.entries() as usize];
        Self { memory, bell, cursor, role, ends, regions }
    }

    /// The client's memory, at its server.
    #[inline]
    pub(super) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Entries of the ring.
    #[inline]
    pub(super) fn entries(&self) -> u32 {
        self.memory.entries()
    }

    /// How many of `wanted` entries are this end's; looks only where fewer are known.
    #[inline]
    pub(super) fn look(&mut self, wanted: u32) -> u32 {
        let other = match self.role {
            Role::Client => self.memory.tail(),
            Role::Server => self.memory.head(),
        };
        self.cursor.look(other, wanted)
    }

    /// The same, to take them.
    ///
    /// # Errors
    /// The other side's index made no sense.
    #[inline]
    pub(super) fn claim(&mut self, wanted: u32) -> Result<u32, Breach> {
        let claimed = self.look(wanted);
        match (self.cursor.faults, self.role) {
            (0, _) => Ok(claimed),
            (_, Role::Client) => Err(Breach("a ring's tail that cannot be".into())),
            (_, Role::Server) => Err(Breach("a ring's head that cannot be".into())),
        }
    }

    /// The place in the ring of this end's entry `i`.
    #[inline]
    pub(super) fn place(&self, i: u32) -> usize {
        self.memory.place(self.cursor.index(i))
    }

    /// Reads this end's entry `i`, once.
    #[inline]
    pub(super) fn read(&self, i: u32) -> Descriptor {
        self.memory.read(self.cursor.index(i))
    }

    /// Writes this end's entry `i`.
    #[inline]
    pub(super) fn write(&mut self, i: u32, descriptor: Descriptor) {
        self.memory.write(self.cursor.index(i), descriptor);
    }

    /// Says that this end's entry `i`, where it lies, has been filled with a packet of so many bytes.
    #[inline]
    pub(super) fn fill(&mut self, i: u32, region: u16, bytes: u32) {
        self.memory.fill(self.cursor.index(i), region, bytes);
        self.note_end(i, true);
    }

    /// Remembers whether a packet that is sent ends in entry `i`.
    #[inline]
    pub(super) fn note_end(&mut self, i: u32, ends: bool) {
        let place = self.place(i);
        self.ends[place] = ends;
    }

    /// Hands over this end's first `n` entries.
    #[inline]
    pub(super) fn hand_over(&mut self, n: u32) {
        if n > 0 {
            let own = match self.role {
                Role::Client => self.memory.head(),
                Role::Server => self.memory.tail(),
            };
            self.cursor.hand_over(own, n);
        }
    }

    /// The same of packets, for whose receiver that is news.
    #[inline]
    pub(super) fn send(&mut self, n: u32) {
        if n > 0 {
            self.hand_over(n);
            self.bell.ring(&self.memory);
        }
    }

    /// Packets that were sent and whose entries the other end has not handed back. It may have taken
    /// them: a client hands entries back with the next empty buffers.
    pub(crate) fn in_flight(&mut self) -> u64 {
        let others = self.entries() - self.look(u32::MAX);
        let ends = |back: &u32| self.ends[self.place(back.wrapping_neg())];
        (1..=others).filter(ends).count() as u64
    }

    /// From now on senders wake who waits for what comes here. It may sleep only if it finds nothing
    /// after this.
    pub(crate) fn ask(&self) {
        self.bell.ask(&self.memory);
    }

    /// Who waited is awake, and forgets what woke it.
    pub(crate) fn hush(&self) {
        self.bell.hush(&self.memory);
    }

    /// Whether a sleeper would be woken now.
    pub(crate) fn rings(&self) -> bool {
        self.bell.rings()
    }
}

/// Readable where who waits for what comes here is woken.
impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
