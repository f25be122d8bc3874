//! One open of `/dev/netmap`.

use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::binding::Binding;
use super::control::Control;
use super::{Engine, Region, WaitSources, register};
use crate::abi::bodies::Register;
use crate::abi::ioctls::{NIOCRXSYNC, NIOCTXSYNC};
use crate::abi::{CallerMemory, IncomingRequest, PortName, Request, read_request};

/// One open of `/dev/netmap`. Dropping it is its last close.
#[derive(Debug)]
pub struct OpenFile {
    engine: Arc<Engine>,
    binding: OnceLock<Binding>,
}

impl OpenFile {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), binding: OnceLock::new() }
    }

    /// Performs a call of ioctl(2): only the low 32 bits of its number count. The syncs ignore the argument.
    ///
    /// # Errors
    /// Those of netmap.
    pub fn ioctl(
        &self,
        request: u32,
        memory: &dyn CallerMemory,
        argument: u64,
    ) -> Result<(), Errno> {
        match request {
            NIOCTXSYNC => self.txsync(),
            NIOCRXSYNC => self.rxsync(),
            _ => {
                let mut incoming = read_request(request, memory, argument)?;
                let result = self.perform(&mut incoming);
                incoming.answer(memory, result)
            }
        }
    }

    fn perform(&self, incoming: &mut IncomingRequest) -> Result<(), Errno> {
        let IncomingRequest { port, request, options, .. } = incoming;
        if !options.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.request(port, request)
    }

    /// Performs a request without options. Its body becomes the answer; listing also changes the name.
    ///
    /// # Errors
    /// Those of netmap; EOPNOTSUPP for a request that is not supported.
    pub fn request(&self, port: &mut PortName, request: &mut Request) -> Result<(), Errno> {
        if let Request::Register(body) = request {
            return self.register(port, body);
        }
        let control = &mut *self.engine.control();
        let options = &self.engine.options;
        match request {
            Request::PortInfo(body) => control.port_info(port, body, options),
            Request::PoolsInfo(body) => control.pools_info(port, body, options),
            Request::PortHeaderGet(body) => control.port_header(port, body, options),
            Request::PortHeaderSet(body) => control.set_port_header(port, body),
            Request::ValeAttach(body) => control.vale_attach(port, body, options),
            Request::ValeDetach(body) => control.vale_detach(port, body),
            Request::ValeList(body) => control.vale_list(port, body),
            Request::ValeNewInterface(body) => control.new_interface(port, body, options),
            Request::PollingEnable(body) => control.set_polling(port, body, true),
            Request::PollingDisable(body) => control.set_polling(port, body, false),
            Request::ValeDeleteInterface => control.delete_interface(port),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Registers a port: binds rings of it to the file. The body becomes the answer.
    ///
    /// # Errors
    /// EBUSY: the file has a port already, or the rings are in exclusive use. ENXIO: no such interface. EINVAL: a
    /// mode, ring, region or name that is not valid. EPERM: a privilege is missing, or the interface carries the
    /// default route. ENOMEM: the region is full.
    pub fn register(&self, port: &PortName, body: &mut Register) -> Result<(), Errno> {
        let control: &mut Control = &mut self.engine.control();
        if self.binding.get().is_some() {
            return Err(Errno::EBUSY);
        }
        let binding = register::register(control, port, body, &self.engine.options)?;
        self.binding.set(binding).map_err(|_| Errno::EBUSY)
    }

    /// Returns the memory of the registered port.
    ///
    /// # Errors
    /// EINVAL before a port is registered.
    pub fn region(&self) -> Result<Region, Errno> {
        let memory = &self.binding.get().ok_or(Errno::EINVAL)?.adapter.port.region.memory;
        Ok(Region { fd: Arc::clone(memory.fd()), bytes: memory.bytes() as u64 })
    }

    /// Syncs the rings as netmap's poll does, and returns the events of these that are ready. Never sleeps.
    pub fn poll(&self, events: PollFlags) -> PollFlags {
        self.binding.get().map_or(PollFlags::POLLERR, |binding| binding.poll(events))
    }

    /// Arms and returns the events that end a sleep of this thread. [`poll`](Self::poll) again after this call and
    /// before the sleep.
    pub fn wait(&self, events: PollFlags) -> WaitSources {
        self.binding.get().map_or_else(WaitSources::default, |binding| binding.wait(events))
    }

    /// Returns true if threads of this process send for a ring of the file. A forked child does not have them, and
    /// must neither sync the rings nor drop the file.
    pub fn has_threads(&self) -> bool {
        self.binding.get().is_some_and(Binding::has_threads)
    }

    /// NIOCTXSYNC: sends the packets that the program has released, and hands out room.
    ///
    /// # Errors
    /// ENXIO before a port is registered.
    pub fn txsync(&self) -> Result<(), Errno> {
        self.binding.get().ok_or(Errno::ENXIO)?.txsync();
        Ok(())
    }

    /// NIOCRXSYNC: takes back released slots, and hands out received packets.
    ///
    /// # Errors
    /// ENXIO before a port is registered.
    pub fn rxsync(&self) -> Result<(), Errno> {
        self.binding.get().ok_or(Errno::ENXIO)?.rxsync();
        Ok(())
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Under the lock: a port that is registered meanwhile is open or closed, and nothing between.
        let _control = self.engine.control();
        self.binding.take();
    }
}
