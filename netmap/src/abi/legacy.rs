//! Requests of NIOCREGIF and NIOCGINFO: a `struct nmreq`, translated into the request that replaces it.

use nix::errno::Errno;

use super::bodies::{
    Body, Polling, PortHeader, PortInfo, Register, ValeAttach, ValeDetach, ValeList,
    ValeNewInterface, body, modes, polling_modes, register_flags,
};
use super::ioctls::{MIN_API, NIOCGINFO};
use super::request::{IncomingRequest, ReplyTarget, Request};
use super::{CallerMemory, PortName};

body! {
    /// `struct nmreq`.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Nmreq, 60 {
        name: [u8; 16],
        version: u32,
        offset: u32,
        memsize: u32,
        tx_slots: u32,
        rx_slots: u32,
        tx_rings: u16,
        rx_rings: u16,
        ringid: u16,
        command: u16,
        arg1: u16,
        arg2: u16,
        arg3: u32,
        flags: u32,
        spare: u32,
    }
}

/// Values of `nr_cmd`.
mod commands {
    pub(super) const REGISTER: u16 = 0;
    pub(super) const ATTACH: u16 = 1;
    pub(super) const DETACH: u16 = 2;
    pub(super) const LIST: u16 = 4;
    pub(super) const VNET_HEADER_SET: u16 = 5;
    pub(super) const NEW_INTERFACE: u16 = 6;
    pub(super) const DELETE_INTERFACE: u16 = 7;
    pub(super) const POLLING_ON: u16 = 10;
    pub(super) const POLLING_OFF: u16 = 11;
    pub(super) const VNET_HEADER_GET: u16 = 12;
}

/// Bits of `nr_ringid`.
mod ringid_bits {
    pub(super) const RING: u16 = 0x0FFF;
    pub(super) const NO_TX_POLL: u16 = 0x1000;
    pub(super) const SW_RING: u16 = 0x2000;
    pub(super) const HW_RING: u16 = 0x4000;
    pub(super) const DO_RX_POLL: u16 = 0x8000;
}

/// The bits of `nr_flags` that are the mode.
const MODE_BITS: u32 = 0xF;
/// `nr_arg1` of an attachment that includes the host's rings.
const ATTACH_HOST: u16 = 1;

/// Reads and translates a legacy request.
///
/// # Errors
/// EINVAL for an old version or an unknown command, EFAULT.
pub(super) fn read(
    ioctl: u32,
    memory: &dyn CallerMemory,
    address: u64,
) -> Result<IncomingRequest, Errno> {
    let nmreq = Nmreq::read(memory, address)?;
    if nmreq.version < u32::from(MIN_API) {
        return Err(Errno::EINVAL);
    }
    let (port, request) = if ioctl == NIOCGINFO { nmreq.info() } else { nmreq.registration()? };
    Ok(IncomingRequest {
        port,
        request,
        options: Vec::new(),
        reply_target: ReplyTarget::Legacy { address, nmreq },
    })
}

impl Nmreq {
    fn port(&self) -> PortName {
        PortName::from_bytes(&self.name[..15])
    }

    /// Translates a request of NIOCGINFO.
    fn info(&self) -> (PortName, Request) {
        let request = if self.command == commands::LIST {
            Request::ValeList(ValeList {
                bridge_index: self.arg1,
                port_index: self.arg2.into(),
                ..ValeList::default()
            })
        } else {
            Request::PortInfo(PortInfo {
                memsize: self.memsize.into(),
                tx_slots: self.tx_slots,
                rx_slots: self.rx_slots,
                tx_rings: self.tx_rings,
                rx_rings: self.rx_rings,
                mem_id: self.arg2,
                ..PortInfo::default()
            })
        };
        (self.port(), request)
    }

    /// Translates a request of NIOCREGIF.
    fn registration(&self) -> Result<(PortName, Request), Errno> {
        let header = PortHeader { header_bytes: self.arg1.into(), ..PortHeader::default() };
        let request = match self.command {
            commands::REGISTER => {
                let (port, register) = self.register();
                return Ok((port, Request::Register(register)));
            }
            commands::ATTACH => {
                let (port, register) = self.register();
                return Ok((port, Request::ValeAttach(self.attachment(register))));
            }
            commands::DETACH => Request::ValeDetach(ValeDetach::default()),
            commands::VNET_HEADER_SET => Request::PortHeaderSet(header),
            commands::VNET_HEADER_GET => Request::PortHeaderGet(header),
            commands::NEW_INTERFACE => Request::ValeNewInterface(ValeNewInterface {
                tx_slots: self.tx_slots,
                rx_slots: self.rx_slots,
                tx_rings: self.tx_rings,
                rx_rings: self.rx_rings,
                mem_id: self.arg2,
                ..ValeNewInterface::default()
            }),
            commands::DELETE_INTERFACE => Request::ValeDeleteInterface,
            commands::POLLING_ON => Request::PollingEnable(self.polling()),
            commands::POLLING_OFF => Request::PollingDisable(self.polling()),
            _ => return Err(Errno::EINVAL),
        };
        Ok((self.port(), request))
    }

    /// Translates mode, ring and flags. A pipe's end, which is a mode here, becomes a suffix of the name.
    fn register(&self) -> (PortName, Register) {
        let mut port = self.port();
        let mut register = Register {
            offset: self.offset.into(),
            memsize: self.memsize.into(),
            tx_slots: self.tx_slots,
            rx_slots: self.rx_slots,
            tx_rings: self.tx_rings,
            rx_rings: self.rx_rings,
            mem_id: self.arg2,
            ringid: self.ringid & ringid_bits::RING,
            mode: self.mode(),
            extra_bufs: self.arg3,
            flags: u64::from(self.flags & !MODE_BITS),
            ..Register::default()
        };
        let bracket = match register.mode {
            modes::PIPE_MASTER => Some('{'),
            modes::PIPE_SLAVE => Some('}'),
            _ => None,
        };
        if let Some(bracket) = bracket {
            port = PortName::from(&*format!("{port}{bracket}{}", register.ringid));
            register.mode = modes::ALL_NIC;
            register.ringid = 0;
        }
        for (bit, flag) in [
            (ringid_bits::NO_TX_POLL, register_flags::NO_TX_POLL),
            (ringid_bits::DO_RX_POLL, register_flags::DO_RX_POLL),
        ] {
            if self.ringid & bit != 0 {
                register.flags |= flag;
            }
        }
        (port, register)
    }

    /// Returns the mode: that of the flags or, in programs older than those, of the ring's number.
    fn mode(&self) -> u32 {
        match self.flags & MODE_BITS {
            0 if self.ringid & ringid_bits::SW_RING != 0 => modes::SW,
            0 if self.ringid & ringid_bits::HW_RING != 0 => modes::ONE_NIC,
            0 => modes::ALL_NIC,
            mode => mode,
        }
    }

    fn attachment(&self, register: Register) -> ValeAttach {
        let with_host = self.arg1 & ATTACH_HOST != 0;
        let mode = if with_host { modes::NIC_SW } else { modes::ALL_NIC };
        ValeAttach { register: Register { mode, ..register }, ..ValeAttach::default() }
    }

    fn polling(&self) -> Polling {
        Polling {
            mode: match self.flags & MODE_BITS {
                modes::ONE_NIC => polling_modes::MULTI_CPU,
                modes::ALL_NIC => polling_modes::SINGLE_CPU,
                _ => 0,
            },
            first_cpu: (self.ringid & ringid_bits::RING).into(),
            cpus: self.arg1.into(),
            ..Polling::default()
        }
    }

    /// Returns the request with the fields that programs of the legacy API read back, cut off to their size.
    pub(super) fn answered(&self, port: &PortName, request: &Request) -> Self {
        let mut answer = *self;
        match request {
            Request::Register(register) | Request::ValeAttach(ValeAttach { register, .. }) => {
                answer.set_register(register);
            }
            Request::PortInfo(info) => {
                answer.memsize = info.memsize as u32;
                answer.set_rings((info.tx_slots, info.rx_slots), (info.tx_rings, info.rx_rings));
                answer.arg2 = info.mem_id;
            }
            Request::ValeList(list) => {
                answer.name = port.to_bytes();
                answer.arg1 = list.bridge_index;
                answer.arg2 = list.port_index as u16;
            }
            Request::PortHeaderSet(header) | Request::PortHeaderGet(header) => {
                answer.arg1 = header.header_bytes as u16;
            }
            Request::ValeNewInterface(new) => {
                answer.set_rings((new.tx_slots, new.rx_slots), (new.tx_rings, new.rx_rings));
                answer.arg2 = new.mem_id;
            }
            _ => {}
        }
        answer
    }

    fn set_register(&mut self, register: &Register) {
        self.offset = register.offset as u32;
        self.memsize = register.memsize as u32;
        self.set_rings(
            (register.tx_slots, register.rx_slots),
            (register.tx_rings, register.rx_rings),
        );
        self.arg2 = register.mem_id;
        self.arg3 = register.extra_bufs;
    }

    fn set_rings(&mut self, (tx_slots, rx_slots): (u32, u32), (tx_rings, rx_rings): (u16, u16)) {
        self.tx_slots = tx_slots;
        self.rx_slots = rx_slots;
        self.tx_rings = tx_rings;
        self.rx_rings = rx_rings;
    }
}
