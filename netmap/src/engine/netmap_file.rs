//! One open of `/dev/netmap`, with either host of the engine.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::{Region, WaitSources};
use crate::abi::bodies::Register;
use crate::abi::ioctls::{NIOCRXSYNC, NIOCTXSYNC};
use crate::abi::{CallerMemory, IncomingRequest, PortName, Request, read_request};

/// One open of `/dev/netmap`. Dropping it closes its port.
pub trait NetmapFile: Send + Sync {
    /// Performs a call of ioctl(2): only the low 32 bits of its number count. The syncs ignore the argument.
    ///
    /// # Errors
    /// Those of netmap.
    fn ioctl(&self, request: u32, memory: &dyn CallerMemory, argument: u64) -> Result<(), Errno> {
        match request {
            NIOCTXSYNC => self.txsync(),
            NIOCRXSYNC => self.rxsync(),
            _ => {
                let mut incoming = read_request(request, memory, argument)?;
                let IncomingRequest { port, request, options, .. } = &mut incoming;
                let result = match options.is_empty() {
                    true => self.request(port, request),
                    false => Err(Errno::EOPNOTSUPP),
                };
                incoming.answer(memory, result)
            }
        }
    }

    /// Performs a request without options. Its body becomes the answer; listing also changes the name.
    ///
    /// # Errors
    /// Those of netmap; EOPNOTSUPP for a request that is not supported.
    fn request(&self, port: &mut PortName, request: &mut Request) -> Result<(), Errno>;

    /// Registers a port: binds rings of it to the file. The body becomes the answer.
    ///
    /// # Errors
    /// EBUSY: the file has a port already, or the rings are in exclusive use. ENXIO: no such interface. EINVAL: a
    /// mode, ring, region or name that is not valid. EPERM: a privilege is missing, or the interface carries the
    /// default route. ENOMEM: the region is full.
    fn register(&self, port: &PortName, body: &mut Register) -> Result<(), Errno> {
        let mut request = Request::Register(*body);
        self.request(&mut port.clone(), &mut request)?;
        if let Request::Register(answer) = request {
            *body = answer;
        }
        Ok(())
    }

    /// Returns the memory of the registered port.
    ///
    /// # Errors
    /// EINVAL before a port is registered.
    fn region(&self) -> Result<Region, Errno>;

    /// Syncs the rings as netmap's poll does, and returns the events of these that are ready. Never sleeps for an
    /// event.
    fn poll(&self, events: PollFlags) -> PollFlags;

    /// Arms and returns the events that end a sleep of this thread. [`poll`](Self::poll) again after this call and
    /// before the sleep.
    fn wait(&self, events: PollFlags) -> WaitSources;

    /// NIOCTXSYNC: sends the packets that the program has released, and hands out room.
    ///
    /// # Errors
    /// ENXIO before a port is registered.
    fn txsync(&self) -> Result<(), Errno>;

    /// NIOCRXSYNC: takes back released slots, and hands out received packets.
    ///
    /// # Errors
    /// ENXIO before a port is registered.
    fn rxsync(&self) -> Result<(), Errno>;

    /// Returns true if threads of this process send for a ring of the file. A forked child does not have them, and
    /// must neither sync the rings nor drop the file.
    fn has_threads(&self) -> bool {
        false
    }

    /// Returns true if each process that inherits the file by fork(2) may use it, also at the same time.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the socket by which another process can join the file; none if it cannot.
    fn connection(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Calls a function while no other thread of this process has a request of the file, if these use a connection.
    fn between_requests(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Drops a file that is shared with other processes: the last of them closes it.
    fn leave(self: Box<Self>);
}
