//! Requests of NIOCCTRL: a header, a body of the request's type, and options.

use nix::errno::Errno;

use super::bodies::{
    self, Body, Field, KloopStart, Polling, PoolsInfo, PortHeader, PortInfo, Register, ValeAttach,
    ValeDetach, ValeList, ValeNewInterface, body,
};
use super::ioctls::{MAX_API, MIN_API, NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF, NM_IFREQ_BYTES};
use super::legacy::{self, Nmreq};
use super::options::{self, OptionInHand};
use super::port_name::NAME_BYTES;
use super::{CallerMemory, PortName};

/// The offset of `nr_name` in a header.
const NAME_OFFSET: u64 = 8;

body! {
    /// `struct nmreq_header`.
    struct Header, 88 {
        version: u16,
        reqtype: u16,
        reserved: u32,
        name: [u8; NAME_BYTES],
        options: u64,
        body: u64,
    }
}

/// A request, with its body; the engine writes its answer into the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Registers a port with the file.
    Register(Register),
    /// Asks for facts about a port or a region.
    PortInfo(PortInfo),
    /// Attaches a port to a VALE switch.
    ValeAttach(ValeAttach),
    /// Detaches a port from a VALE switch.
    ValeDetach(ValeDetach),
    /// Finds a port of a VALE switch.
    ValeList(ValeList),
    /// Sets the size of the virtio-net header.
    PortHeaderSet(PortHeader),
    /// Asks for the size of the virtio-net header.
    PortHeaderGet(PortHeader),
    /// Creates a persistent VALE port.
    ValeNewInterface(ValeNewInterface),
    /// Deletes a persistent VALE port.
    ValeDeleteInterface,
    /// Polls an attached port from kernel threads.
    PollingEnable(Polling),
    /// Ends polling from kernel threads.
    PollingDisable(Polling),
    /// Asks for the layout of a region.
    PoolsInfo(PoolsInfo),
    /// Syncs the rings in a loop of the kernel.
    KloopStart(KloopStart),
    /// Ends the kernel's loop.
    KloopStop,
    /// Moves the ring cursors out of the rings.
    CsbEnable,
}

impl Request {
    /// Reads the body that a header points to.
    ///
    /// # Errors
    /// EINVAL if the type is unknown, or a body exists where the type has none, or is null where the type has one;
    /// EFAULT.
    fn read(reqtype: u16, memory: &dyn CallerMemory, address: u64) -> Result<Self, Errno> {
        let bodiless = |request| if address == 0 { Ok(request) } else { Err(Errno::EINVAL) };
        match reqtype {
            1 => Body::read(memory, address).map(Self::Register),
            2 => Body::read(memory, address).map(Self::PortInfo),
            3 => Body::read(memory, address).map(Self::ValeAttach),
            4 => Body::read(memory, address).map(Self::ValeDetach),
            5 => Body::read(memory, address).map(Self::ValeList),
            6 => Body::read(memory, address).map(Self::PortHeaderSet),
            7 => Body::read(memory, address).map(Self::PortHeaderGet),
            8 => Body::read(memory, address).map(Self::ValeNewInterface),
            9 => bodiless(Self::ValeDeleteInterface),
            10 => Body::read(memory, address).map(Self::PollingEnable),
            11 => Body::read(memory, address).map(Self::PollingDisable),
            12 => Body::read(memory, address).map(Self::PoolsInfo),
            13 => Body::read(memory, address).map(Self::KloopStart),
            14 => bodiless(Self::KloopStop),
            15 => bodiless(Self::CsbEnable),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the type, as in a header.
    pub fn kind(&self) -> u16 {
        match self {
            Self::Register(_) => 1,
            Self::PortInfo(_) => 2,
            Self::ValeAttach(_) => 3,
            Self::ValeDetach(_) => 4,
            Self::ValeList(_) => 5,
            Self::PortHeaderSet(_) => 6,
            Self::PortHeaderGet(_) => 7,
            Self::ValeNewInterface(_) => 8,
            Self::ValeDeleteInterface => 9,
            Self::PollingEnable(_) => 10,
            Self::PollingDisable(_) => 11,
            Self::PoolsInfo(_) => 12,
            Self::KloopStart(_) => 13,
            Self::KloopStop => 14,
            Self::CsbEnable => 15,
        }
    }

    /// Returns the bytes of the body; none if the type has none.
    pub fn encode(&self) -> Vec<u8> {
        self.body().map(bodies::encode).unwrap_or_default()
    }

    /// Makes a request of the bytes of its body.
    ///
    /// # Errors
    /// EINVAL: the type is unknown, or has another number of bytes.
    pub fn decode(kind: u16, bytes: &[u8]) -> Result<Self, Errno> {
        /// The body at address 1, because a body at 0 is missing.
        struct Bytes<'a>(&'a [u8]);
        impl CallerMemory for Bytes<'_> {
            fn read(&self, _address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
                if bytes.len() != self.0.len() {
                    return Err(Errno::EINVAL);
                }
                bytes.copy_from_slice(self.0);
                Ok(())
            }

            fn write(&self, _address: u64, _bytes: &[u8]) -> Result<(), Errno> {
                Err(Errno::EFAULT)
            }
        }
        Self::read(kind, &Bytes(bytes), u64::from(!bytes.is_empty()))
    }

    /// Returns the body; None if the type has none.
    fn body(&self) -> Option<&dyn Field> {
        match self {
            Self::Register(body) => Some(body),
            Self::PortInfo(body) => Some(body),
            Self::ValeAttach(body) => Some(body),
            Self::ValeDetach(body) => Some(body),
            Self::ValeList(body) => Some(body),
            Self::PortHeaderSet(body) | Self::PortHeaderGet(body) => Some(body),
            Self::ValeNewInterface(body) => Some(body),
            Self::PollingEnable(body) | Self::PollingDisable(body) => Some(body),
            Self::PoolsInfo(body) => Some(body),
            Self::KloopStart(body) => Some(body),
            Self::ValeDeleteInterface | Self::KloopStop | Self::CsbEnable => None,
        }
    }
}

/// A request as the engine performs it: it changes the fields into the answer, then calls [`answer`](Self::answer).
#[derive(Clone, Debug)]
pub struct IncomingRequest {
    /// The port. [`Request::ValeList`] answers with the name that it found.
    pub port: PortName,
    /// The request and its body.
    pub request: Request,
    /// Its options.
    pub options: Vec<OptionInHand>,
    pub(super) reply_target: ReplyTarget,
}

/// The structures in the program's memory that take the answer.
#[derive(Clone, Debug)]
pub(super) enum ReplyTarget {
    /// A header and its body.
    Header { header: u64, body: u64 },
    /// A legacy request, as it was read.
    Legacy { address: u64, nmreq: Nmreq },
}

/// Reads the request of an ioctl.
///
/// # Errors
/// The errno to return from ioctl(2). EOPNOTSUPP if the ioctl's number is unknown. The two that sync have no
/// request.
pub fn read_request(
    ioctl: u32,
    memory: &dyn CallerMemory,
    argument: u64,
) -> Result<IncomingRequest, Errno> {
    match ioctl {
        NIOCCTRL => read_header(memory, argument),
        NIOCGINFO | NIOCREGIF => legacy::read(ioctl, memory, argument),
        NIOCCONFIG => Err(config_error(memory, argument)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn read_header(memory: &dyn CallerMemory, address: u64) -> Result<IncomingRequest, Errno> {
    let header = Header::read(memory, address)?;
    if !(MIN_API..=MAX_API).contains(&header.version) || header.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    let request = Request::read(header.reqtype, memory, header.body)?;
    let body_bytes = request.body().map_or(0, bodies::bytes);
    let options = options::read_options(memory, header.options, body_bytes)?;
    Ok(IncomingRequest {
        port: PortName::from_bytes(&header.name),
        request,
        options,
        reply_target: ReplyTarget::Header { header: address, body: header.body },
    })
}

/// Returns the error of NIOCCONFIG: only a kernel module that extends a switch makes it configurable.
fn config_error(memory: &dyn CallerMemory, address: u64) -> Errno {
    let readable = memory.read(address, &mut [0; NM_IFREQ_BYTES]);
    if address != 0 && readable.is_err() { Errno::EFAULT } else { Errno::EINVAL }
}

impl IncomingRequest {
    /// Writes the answer to the program's memory: the body and the found name if the request succeeded, and the
    /// options' statuses in any case. Returns what ioctl(2) shall return.
    ///
    /// # Errors
    /// `result`'s, or EFAULT.
    pub fn answer(
        &self,
        memory: &dyn CallerMemory,
        result: Result<(), Errno>,
    ) -> Result<(), Errno> {
        if result.is_ok() {
            self.write_body(memory)?;
        }
        options::write_statuses(memory, &self.options).and(result)
    }

    fn write_body(&self, memory: &dyn CallerMemory) -> Result<(), Errno> {
        match &self.reply_target {
            ReplyTarget::Header { header, body } => {
                if let Some(content) = self.request.body() {
                    bodies::write(memory, *body, content)?;
                }
                if matches!(self.request, Request::ValeList(_)) {
                    let name: [u8; NAME_BYTES] = self.port.to_bytes();
                    memory.write(header.wrapping_add(NAME_OFFSET), &name)?;
                }
                Ok(())
            }
            ReplyTarget::Legacy { address, nmreq } => {
                let answer = nmreq.answered(&self.port, &self.request);
                bodies::write(memory, *address, &answer)
            }
        }
    }
}
