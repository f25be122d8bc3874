//! A packet socket and its options: safe wrappers of the system calls.
//!
//! Sources: packet(7), linux/if_packet.h, net/packet/af_packet.c.
#![allow(unsafe_code)]

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::poll::PollFlags;

use super::name::PortName;
use crate::error::{Error, Result};
use crate::filter::{Instruction, cbpf};
use crate::raw_socket::{Pod, RawSocket};
use crate::xdp::resident::CAPABILITIES;
use sluicegate_base::memory::Mmap;

/// A packet socket. Closing it restores its interface.
#[derive(Debug)]
pub(super) struct Socket {
    fd: RawSocket,
    /// Name of its port for error messages: "packet:eth0".
    object: String,
}

impl Socket {
    /// Opens a socket that receives nothing until it is bound (protocol 0).
    pub(super) fn open(object: &str) -> Result<Self> {
        let fd = RawSocket::open(libc::AF_PACKET).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Error::Privilege {
                operation: format!("opening {object}"),
                capability: "CAP_NET_RAW",
                remedy: format!(
                    "run it with sudo, or give the program the capability: \
                         sudo setcap cap_net_raw+ep {}",
                    std::env::current_exe().unwrap_or_default().display()
                ),
            },
            Some(libc::EAFNOSUPPORT) => Error::Unsupported {
                feature: "AF_PACKET".into(),
                remedy: "load the module (modprobe af_packet) or use a kernel with \
                             CONFIG_PACKET"
                    .into(),
            },
            _ => Error::system("open", object, error),
        });
        Ok(Self { fd: fd?, object: object.to_owned() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn object(&self) -> &str {
        &self.object
    }

    /// Sets an option to a plain value (setsockopt(2)).
    pub(super) fn set<T: Pod>(
        &self,
        level: i32,
        option: i32,
        value: T,
        operation: &'static str,
    ) -> Result<()> {
        let result = self.fd.set(level, option, value);
        result.map_err(|error| Error::system(operation, &self.object, error))
    }

    /// Reads the plain value of an option (getsockopt(2)).
    pub(super) fn get<T: Pod>(
        &self,
        level: i32,
        option: i32,
        operation: &'static str,
    ) -> Result<T> {
        let value = self.fd.get(level, option).map(|(value, _)| value);
        value.map_err(|error| Error::system(operation, &self.object, error))
    }

    /// Replaces the socket's filter, atomically for arriving packets.
    pub(super) fn attach_filter(&self, program: &[Instruction]) -> Result<()> {
        self.set_program(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, "attach a filter to")
    }

    /// Rejects all packets: until everything is set up, and after receiving has stopped.
    pub(super) fn reject_all(&self) -> Result<()> {
        self.attach_filter(&[Instruction { code: 0x06, jt: 0, jf: 0, k: 0 }])
    }

    /// Passes a classic BPF program to an option that takes a `struct sock_fprog`.
    pub(super) fn set_program(
        &self,
        level: i32,
        option: i32,
        program: &[Instruction],
        operation: &'static str,
    ) -> Result<()> {
        cbpf::attach_by_option(self.fd.as_fd(), level, option, program)
            .map_err(|error| Error::system(operation, self.object.clone(), error))
    }

    /// Sets up a receive ring of `bytes` bytes, and maps it. The socket must not be bound yet.
    pub(super) fn map_rx_ring<T: Pod>(
        &self,
        version: libc::tpacket_versions,
        request: T,
        bytes: usize,
    ) -> Result<Mmap> {
        let ring = (libc::PACKET_RX_RING, "set up a receive ring on", "use fewer blocks=");
        self.map_ring(version, ring, request, bytes)
    }

    /// Sets up a send ring of `bytes` bytes, and maps it.
    pub(super) fn map_tx_ring(&self, request: libc::tpacket_req, bytes: usize) -> Result<Mmap> {
        let ring = (libc::PACKET_TX_RING, "set up a transmit ring on", "use fewer slots=");
        self.map_ring(libc::tpacket_versions::TPACKET_V2, ring, request, bytes)
    }

    fn map_ring<T: Pod>(
        &self,
        version: libc::tpacket_versions,
        (option, operation, remedy): (i32, &'static str, &str),
        request: T,
        bytes: usize,
    ) -> Result<Mmap> {
        let set_version = match version {
            libc::tpacket_versions::TPACKET_V3 => "set TPACKET_V3 on",
            _ => "set TPACKET_V2 on",
        };
        self.set(libc::SOL_PACKET, libc::PACKET_VERSION, version as i32, set_version)?;
        self.set(libc::SOL_PACKET, option, request, operation).map_err(|error| {
            match error.errno() {
                Some(libc::ENOMEM) => {
                    error.remedy(format!("{} MiB are needed: {remedy}", bytes >> 20))
                }
                _ => error,
            }
        })?;
        Mmap::shared(self.fd(), bytes)
            .map_err(|error| Error::system("map the ring of", self.object(), error))
    }

    /// Removes the filter: all packets pass.
    pub(super) fn detach_filter(&self) -> Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0i32, "detach the filter of")
    }

    /// Binds to an interface and starts to receive an Ethernet protocol: ETH_P_ALL for all protocols, 0 for
    /// none.
    pub(super) fn bind(&self, ifindex: u32, protocol: u16) -> Result<()> {
        // SAFETY: sockaddr_ll is integers; zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = ifindex.cast_signed();
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` is a live sockaddr_ll of `size` bytes.
        let status =
            unsafe { libc::bind(self.fd().as_raw_fd(), (&raw const address).cast(), size) };
        self.check(status, "bind")
    }

    /// Returns the interface that the socket is bound to; None if it has been removed.
    pub(super) fn bound_to(&self) -> Result<Option<u32>> {
        // SAFETY: as in `bind`.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let fd = self.fd().as_raw_fd();
        // SAFETY: the kernel writes at most `size` bytes into `address`.
        let status = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &mut size) };
        self.check(status, "look up")?;
        Ok(u32::try_from(address.sll_ifindex).ok())
    }

    /// Returns the name of a device in the socket's network namespace; None if it was removed.
    pub(super) fn device_name(&self, index: i32) -> Option<String> {
        let mut request = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_ifindex: index },
        };
        // SAFETY: the request reads and writes the structure and nothing else.
        let status = unsafe { libc::ioctl(self.fd().as_raw_fd(), libc::SIOCGIFNAME, &mut request) };
        let bytes = request.ifr_name.map(libc::c_char::cast_unsigned);
        let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        (status == 0).then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Receives packets for other hosts, too, until the socket is closed.
    pub(super) fn be_promiscuous(&self, ifindex: u32) -> Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: ifindex.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let operation = "set promiscuous mode for";
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request, operation)
    }

    /// Returns the counts since the last call: packets received (including lost ones), packets lost, and
    /// buffer-full events.
    pub(super) fn take_statistics(&self) -> Result<libc::tpacket_stats_v3> {
        // A socket without a V3 ring fills in only the first two fields.
        self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS, "read the statistics of")
    }

    /// Returns and clears the pending error of the socket.
    pub(super) fn take_error(&self) -> Result<i32> {
        self.get(libc::SOL_SOCKET, libc::SO_ERROR, "read the state of")
    }

    /// Waits for packets or an error. Returns true if one occurred.
    pub(super) fn poll(&self, timeout: Duration) -> Result<bool> {
        self.poll_for(PollFlags::POLLIN | PollFlags::POLLERR, timeout)
    }

    /// Waits for one of these events, or an error. Returns true if one occurred.
    pub(super) fn poll_for(&self, events: PollFlags, timeout: Duration) -> Result<bool> {
        let ready = self.fd.poll(events, timeout);
        ready.map_err(|error| Error::system("wait for", &self.object, error))
    }

    /// Makes the error for a removed interface.
    pub(super) fn interface_removed(&self) -> Error {
        Error::removed(&self.object)
    }

    fn check(&self, status: i32, operation: &'static str) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(Error::last_os(operation, &self.object)) }
    }
}

/// Keeps an interface of this thread's network namespace promiscuous as long as this value exists. Receives
/// nothing.
#[derive(Debug)]
pub(super) struct Promiscuous {
    _membership: Socket,
}

impl Promiscuous {
    pub(super) fn new(name: &PortName, ifindex: u32) -> Result<Self> {
        let socket = Socket::open(&name.short());
        let socket = socket.map_err(|error| error.with_capabilities(CAPABILITIES))?;
        socket.be_promiscuous(ifindex)?;
        Ok(Self { _membership: socket })
    }
}
