//! A file of the engine in this process.

use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::binding::Binding;
use super::control::Control;
use super::netmap_file::NetmapFile;
use super::sleepers::Sleeper;
use super::{Engine, Region, WaitSources, register};
use crate::abi::bodies::Register;
use crate::abi::{PortName, Request};

/// A file of the engine in this process. Dropping it closes its port.
#[derive(Debug)]
pub struct OpenFile {
    engine: Arc<Engine>,
    binding: OnceLock<Binding>,
}

impl OpenFile {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), binding: OnceLock::new() }
    }

    /// As [`wait`](NetmapFile::wait), for a sleeper that need not be this thread.
    pub fn wait_as(&self, sleeper: &Sleeper, events: PollFlags) -> WaitSources {
        self.wait_for(Some(sleeper), events)
    }

    fn wait_for(&self, sleeper: Option<&Sleeper>, events: PollFlags) -> WaitSources {
        self.binding.get().map_or_else(WaitSources::default, |it| it.wait(sleeper, events))
    }

    fn register_port(&self, port: &PortName, body: &mut Register) -> Result<(), Errno> {
        let control: &mut Control = &mut self.engine.control();
        if self.binding.get().is_some() {
            return Err(Errno::EBUSY);
        }
        let binding = register::register(control, port, body, &self.engine.options)?;
        self.binding.set(binding).map_err(|_| Errno::EBUSY)
    }
}

impl NetmapFile for OpenFile {
    fn request(&self, port: &mut PortName, request: &mut Request) -> Result<(), Errno> {
        if let Request::Register(body) = request {
            return self.register_port(port, body);
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

    fn region(&self) -> Result<Region, Errno> {
        let memory = &self.binding.get().ok_or(Errno::EINVAL)?.adapter.port.region.memory;
        Ok(Region { fd: Arc::clone(memory.fd()), bytes: memory.bytes() as u64 })
    }

    fn poll(&self, events: PollFlags) -> PollFlags {
        self.binding.get().map_or(PollFlags::POLLERR, |binding| binding.poll(events))
    }

    fn wait(&self, events: PollFlags) -> WaitSources {
        let wait = |sleeper: &Sleeper| self.wait_for(Some(sleeper), events);
        Sleeper::with_this_thread(wait).unwrap_or_else(|| self.wait_for(None, events))
    }

    fn txsync(&self) -> Result<(), Errno> {
        self.binding.get().ok_or(Errno::ENXIO)?.txsync();
        Ok(())
    }

    fn rxsync(&self) -> Result<(), Errno> {
        self.binding.get().ok_or(Errno::ENXIO)?.rxsync();
        Ok(())
    }

    fn has_threads(&self) -> bool {
        self.binding.get().is_some_and(Binding::has_threads)
    }

    fn leave(self: Box<Self>) {}
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Under the lock: a port that is registered meanwhile is open or closed, and nothing between.
        let _control = self.engine.control();
        self.binding.take();
    }
}
