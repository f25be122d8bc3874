//! Both ends of a memif socket, written by hand: they keep to the protocol as far as one wants.

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU16;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag,
    SockType, UnixAddr, accept, bind, connect, listen, recvmsg, sendmsg, shutdown,
    socket as new_socket,
};
use nix::unistd::ftruncate;
use sluicegate_base::memory::Mmap;
use sluicegate_memif::{AddRing, Hello, Init, MESSAGE_BYTES, Message};

pub const RING_ENTRIES: usize = 32;
pub const RING_BYTES: usize = 128 + 16 * RING_ENTRIES;
pub const REGION_BYTES: usize = 65_536;
const COOKIE: u32 = 0x3e3_1f20;

/// One end of a control socket.
pub struct Wire(OwnedFd);

impl Wire {
    pub fn to(name: &str) -> Self {
        let wire = new_wire();
        let address = UnixAddr::new_abstract(name.trim_start_matches('@').as_bytes()).unwrap();
        connect(wire.as_raw_fd(), &address).unwrap();
        Self(wire)
    }

    pub fn send(&self, message: &Message, files: &[RawFd]) {
        self.send_bytes(&message.encode(), files);
    }

    pub fn send_bytes(&self, bytes: &[u8], files: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(files)];
        let rights = if files.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL;
        // A peer that was disconnected cannot send.
        let _ =
            sendmsg::<UnixAddr>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None);
    }

    /// The next message; None at the end.
    pub fn hear(&self) -> Option<(Message, Vec<OwnedFd>)> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::empty();
        let heard =
            recvmsg::<UnixAddr>(self.0.as_raw_fd(), &mut pieces, Some(&mut space), flags).ok()?;
        let mut files = Vec::new();
        for control in heard.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(fds) = control {
                #[allow(unsafe_code)]
                // SAFETY: just received, and nobody else's.
                files.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let length = heard.bytes;
        (length > 0).then(|| (Message::decode(&bytes).unwrap(), files))
    }

    /// Says something, and returns whether it was acknowledged.
    fn tell(&self, message: &Message, files: &[RawFd]) -> bool {
        self.send(message, files);
        matches!(self.hear(), Some((Message::Ack, _)))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Children of other tests, just forked, have the socket, too.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

fn new_wire() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    new_socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
}

/// Memory that both ends have, as one who writes anything there sees it.
pub struct SharedMemory(Mmap);

#[allow(unsafe_code)]
impl SharedMemory {
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.0.bytes());
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping; volatile, for the other end reads meanwhile.
            unsafe { self.0.base().add(at + i).write_volatile(*byte) };
        }
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.0.bytes());
        // SAFETY: within the mapping; volatile, for the other end writes meanwhile.
        unsafe { self.0.base().add(at).read_volatile() }
    }

    pub fn index(&self, at: usize) -> &AtomicU16 {
        assert!(at + 2 <= self.0.bytes() && at.is_multiple_of(2));
        // SAFETY: within the mapping and aligned; accessed atomically by both.
        unsafe { self.0.base().add(at).cast().as_ref() }
    }

    pub fn descriptor(&self, ring: usize, place: usize, fields: (u16, u16, u32, u32)) {
        let (flags, region, length, offset) = fields;
        let at = ring + 128 + place * 16;
        self.put(at, &flags.to_ne_bytes());
        self.put(at + 2, &region.to_ne_bytes());
        self.put(at + 4, &length.to_ne_bytes());
        self.put(at + 8, &offset.to_ne_bytes());
    }
}

pub fn memory(name: &CStr, seals: SealFlag) -> (OwnedFd, SharedMemory) {
    let file = memfd_create(name, MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&file, REGION_BYTES as i64).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    let map = Mmap::shared(file.as_fd(), REGION_BYTES).unwrap();
    (file, SharedMemory(map))
}

/// Where a client by hand has its rings.
pub const TO_SERVER: usize = 0;
pub const TO_CLIENT: usize = 1024;

pub fn init() -> Message {
    let name = "a test".to_owned();
    Message::Init(Init { version: 0x200, id: 0, mode: 0, secret: [0; 24], name })
}

pub fn ring(to_server: bool, offset: usize) -> AddRing {
    let log2_entries = RING_ENTRIES.trailing_zeros() as u8;
    let offset = offset as u32;
    AddRing { to_server, index: 0, region: 0, offset, log2_entries, private_header: 0 }
}

/// A client by hand that is connected to a server, and all is well so far: its memory, with one ring in
/// each direction, and the event of both.
pub fn connect_by_hand(name: &str) -> (Wire, SharedMemory, EventFd) {
    let (file, memory) = memory(c"client", SealFlag::F_SEAL_SHRINK);
    for start in [TO_SERVER, TO_CLIENT] {
        memory.put(start, &COOKIE.to_ne_bytes());
    }
    let event = EventFd::new().unwrap();
    let wire = Wire::to(name);
    assert!(matches!(wire.hear(), Some((Message::Hello(_), _))));
    assert!(wire.tell(&init(), &[]));
    let region = Message::AddRegion { index: 0, bytes: REGION_BYTES as u64 };
    assert!(wire.tell(&region, &[file.as_raw_fd()]));
    for (to_server, start) in [(true, TO_SERVER), (false, TO_CLIENT)] {
        let event = event.as_fd().as_raw_fd();
        assert!(wire.tell(&Message::AddRing(ring(to_server, start)), &[event]));
    }
    wire.send(&Message::Connect("by hand".into()), &[]);
    assert!(matches!(wire.hear(), Some((Message::Connected(_), _))));
    (wire, memory, event)
}

/// A server by hand.
pub struct Server {
    listener: OwnedFd,
}

impl Server {
    pub fn new(name: &str) -> Self {
        let listener = new_wire();
        let address = UnixAddr::new_abstract(name.trim_start_matches('@').as_bytes()).unwrap();
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(4).unwrap()).unwrap();
        Self { listener }
    }

    pub fn accept(&self) -> Wire {
        let fd = accept(self.listener.as_raw_fd()).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: just made, and nobody else's.
        let wire = Wire(unsafe { OwnedFd::from_raw_fd(fd) });
        wire
    }

    /// A client that is connected, and its memory.
    pub fn client(&self) -> (Wire, SharedMemory) {
        let wire = self.accept();
        wire.send(&hello(), &[]);
        let mut memory = None;
        loop {
            let (message, mut files) = wire.hear().unwrap();
            match message {
                Message::AddRegion { index: 0, bytes } => {
                    memory = Some(Mmap::shared(files.remove(0).as_fd(), bytes as usize).unwrap());
                }
                Message::Connect(_) => {
                    wire.send(&Message::Connected("by hand".into()), &[]);
                    return (wire, SharedMemory(memory.unwrap()));
                }
                _ => {}
            }
            wire.send(&Message::Ack, &[]);
        }
    }
}

pub fn hello() -> Message {
    Message::Hello(Hello {
        name: "by hand".into(),
        versions: (0x200, 0x200),
        last_region: 255,
        last_rings: (0, 0),
        most_log2_entries: 5,
    })
}
