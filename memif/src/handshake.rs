//! The handshake, which turns a connected socket into rings.
//!
//! ```text
//!   server                     client
//!   HELLO  ------------------>
//!          <------------------ INIT            each answered by ACK
//!          <------------------ ADD_REGION …
//!          <------------------ ADD_RING …
//!          <------------------ CONNECT
//!   CONNECTED --------------->
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::{Channel, ChannelEnd};
use super::end::RingEnd;
use super::message::{AddRing, Hello, Init, Message, ProtocolError, SECRET_BYTES, VERSION};
use super::notifier::Notifier;
use super::ring::{MAX_LOG2_ENTRIES, RingMemory, ring_bytes};
use super::ring::{MAX_REGIONS, Regions};
use sluicegate_base::error::{Error, Result};
use sluicegate_base::memory::PAGE_BYTES;

/// The limit of the whole handshake of a client, and of the time until it begins at a server. A busy peer needs
/// milliseconds.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The limit of a server for the messages after the first, during which it serves no other client.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The reason that a peer beyond the limit is told.
pub(super) const LATE: &str = "handshake took too long";
/// The mode in which packets are Ethernet frames.
const ETHERNET: u8 = 0;

/// The settings of this end.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The interface's number on the socket.
    pub id: u32,
    /// The shared secret; zeros if none is required.
    pub secret: [u8; SECRET_BYTES],
    /// Maximum of rings in each direction.
    pub queues: u16,
    /// Maximum of entries of a ring, as a power of two.
    pub log2_entries: u8,
    /// The size of a client's buffers.
    pub buffer_bytes: u32,
    /// Accepts memory that the peer can shrink.
    pub trusts: bool,
}

impl Settings {
    /// Returns the maximum size of a client's region.
    pub fn max_region_bytes(&self) -> u64 {
        let Self { queues, log2_entries, buffer_bytes, .. } = *self;
        Layout { rings: 2 * u32::from(queues), log2_entries, buffer_bytes }.bytes()
    }

    /// Sends a server's first message.
    pub(super) fn greet(&self, channel: &Channel) -> Result<(), ChannelEnd> {
        let last_ring = self.queues - 1;
        let hello = Message::Hello(Hello {
            name: own_name(),
            versions: (VERSION, VERSION),
            last_region: MAX_REGIONS - 1,
            last_rings: (last_ring, last_ring),
            most_log2_entries: MAX_LOG2_ENTRIES,
        });
        channel.send(&hello, None)
    }
}

/// The layout of a client's region: all rings, then the buffers of each.
struct Layout {
    rings: u32,
    log2_entries: u8,
    buffer_bytes: u32,
}

impl Layout {
    /// Returns the offset of a ring.
    fn ring_at(&self, ring: u32) -> u64 {
        u64::from(ring) * u64::from(ring_bytes(self.log2_entries))
    }

    /// Returns the offset of a ring's buffers.
    fn buffers_at(&self, ring: u32) -> u64 {
        let first = self.ring_at(self.rings).next_multiple_of(PAGE_BYTES as u64);
        first + (u64::from(ring) << self.log2_entries) * u64::from(self.buffer_bytes)
    }

    fn bytes(&self) -> u64 {
        self.buffers_at(self.rings).next_multiple_of(PAGE_BYTES as u64)
    }
}

/// The rings of one queue; the peer may have fewer.
#[derive(Debug, Default)]
pub struct Pair {
    /// The ring to receive from.
    pub rx: Option<RingEnd>,
    /// The ring to send to.
    pub tx: Option<RingEnd>,
}

/// An established connection.
#[derive(Debug)]
pub struct Connection {
    /// The peer's names of its program and its interface.
    pub peer: String,
    /// The rings of each queue.
    pub pairs: Vec<Pair>,
}

/// Returns this program's name.
fn own_name() -> String {
    format!("sluice {}", env!("CARGO_PKG_VERSION"))
}

/// Returns the name of this end's interface; the process ID makes it unique.
fn own_interface() -> String {
    format!("sluice/{}", std::process::id())
}

fn peer_name(program: &str, interface: &str) -> String {
    match (program, interface) {
        ("", "") => "a nameless peer".into(),
        (program, "") => program.into(),
        (program, interface) => format!("{program} ({interface})"),
    }
}

fn out_of_turn(message: &Message) -> ChannelEnd {
    ProtocolError(format!("unexpected message {}", message.what())).into()
}

/// Reports a failure on this side to both ends.
fn failed(error: Error) -> ChannelEnd {
    ProtocolError(error.to_string()).into()
}

/// The messages of one handshake, within its time limit.
pub(super) struct Talk<'a> {
    pub(super) channel: &'a Channel,
    pub(super) wake: BorrowedFd<'a>,
    pub(super) end: Instant,
}

impl<'a> Talk<'a> {
    fn new(channel: &'a Channel, wake: BorrowedFd<'a>) -> Self {
        Self { channel, wake, end: Instant::now() + HANDSHAKE_TIMEOUT }
    }

    fn say(&self, message: &Message) -> Result<(), ChannelEnd> {
        self.channel.send(message, None)
    }

    fn hear(&self) -> Result<(Message, Option<OwnedFd>), ChannelEnd> {
        self.channel.receive(self.wake, self.end)
    }

    /// Sends a message and waits for its acknowledgement.
    fn tell(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> Result<(), ChannelEnd> {
        self.channel.send(message, file)?;
        match self.hear()? {
            (Message::Ack, _) => Ok(()),
            (other, _) => Err(out_of_turn(&other)),
        }
    }

    /// Runs a handshake, and reports a protocol error to the peer.
    fn run<T>(&self, talk: impl FnOnce(&Self) -> Result<T, ChannelEnd>) -> Result<T, ChannelEnd> {
        talk(self).inspect_err(|ended| match ended {
            ChannelEnd::ProtocolError(breach) => self.channel.disconnect(&breach.0),
            ChannelEnd::Late => self.channel.disconnect(LATE),
            _ => {}
        })
    }
}

/// Runs the client's part: creates the memory with rings and buffers, and sends it to the server.
///
/// # Errors
/// The peer closed the connection, refused it, or broke the protocol; or memory ran out.
pub fn as_client(
    channel: &Channel,
    settings: &Settings,
    wake: BorrowedFd<'_>,
) -> Result<Connection, ChannelEnd> {
    Talk::new(channel, wake).run(|talk| {
        let hello = match talk.hear()? {
            (Message::Hello(hello), _) => hello,
            (other, _) => return Err(out_of_turn(&other)),
        };
        check_hello(&hello)?;
        talk.tell(
            &Message::Init(Init {
                version: VERSION,
                id: settings.id,
                mode: ETHERNET,
                secret: settings.secret,
                name: own_name(),
            }),
            None,
        )?;
        let log2_entries = settings.log2_entries.min(hello.most_log2_entries);
        let queues = |last: u16| settings.queues.min(last.saturating_add(1));
        let (to_client, to_server) = (queues(hello.last_rings.0), queues(hello.last_rings.1));
        let rings = (to_client + to_server).into();
        let layout = Layout { rings, log2_entries, buffer_bytes: settings.buffer_bytes };
        let (file, regions) = Regions::own(layout.bytes() as usize).map_err(failed)?;
        let regions = Arc::new(regions);
        let region = Message::AddRegion { index: 0, bytes: layout.bytes() };
        talk.tell(&region, Some(file.as_fd()))?;

        let mut pairs: Vec<Pair> = (0..settings.queues).map(|_| Pair::default()).collect();
        let rings = (0..to_server).map(|i| (true, i)).chain((0..to_client).map(|i| (false, i)));
        for (number, (to_server, index)) in rings.enumerate() {
            // It fits 32 bits, because the port has checked the size of the whole region.
            let offset = layout.ring_at(number as u32) as u32;
            let at = layout.buffers_at(number as u32) as u32;
            let notifier = Notifier::new().map_err(failed)?;
            let memory =
                RingMemory::create(&regions, offset, log2_entries, at, settings.buffer_bytes);
            let ring =
                AddRing { to_server, index, region: 0, offset, log2_entries, private_header: 0 };
            talk.tell(&Message::AddRing(ring), Some(notifier.as_fd()))?;
            let end = RingEnd::of_client(memory, notifier);
            let pair = &mut pairs[usize::from(index)];
            *(if to_server { &mut pair.tx } else { &mut pair.rx }) = Some(end);
        }
        talk.say(&Message::Connect(own_interface()))?;
        match talk.hear()? {
            (Message::Connected(name), _) => {
                Ok(Connection { peer: peer_name(&hello.name, &name), pairs })
            }
            (other, _) => Err(out_of_turn(&other)),
        }
    })
}

fn check_hello(hello: &Hello) -> Result<(), ProtocolError> {
    let (oldest, newest) = hello.versions;
    if oldest > VERSION || newest < VERSION {
        return Err(ProtocolError(format!(
            "memif 2.0 is spoken here, {oldest:#x} to {newest:#x} there"
        )));
    }
    Ok(())
}

/// Runs the rest of a server's part, after HELLO: receives the client's memory and rings.
///
/// # Errors
/// The errors of [`as_client`].
pub(super) fn as_greeted_server(
    talk: &Talk<'_>,
    settings: &Settings,
) -> Result<Connection, ChannelEnd> {
    talk.run(|talk| {
        let program = match talk.hear()? {
            (Message::Init(init), _) => {
                check_init(&init, settings)?;
                init.name
            }
            (other, _) => return Err(out_of_turn(&other)),
        };
        talk.say(&Message::Ack)?;
        let mut regions = Regions::default();
        let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
        let interface = loop {
            match talk.hear()? {
                (Message::AddRegion { index, bytes }, Some(file)) => {
                    regions.add(index, file, bytes, settings.trusts)?;
                }
                (Message::AddRing(ring), Some(file)) => {
                    let rings = if ring.to_server { &mut to_server } else { &mut to_client };
                    check_ring(&ring, rings.len(), settings)?;
                    rings.push((ring, Notifier::of_peer(file)?));
                }
                (message @ (Message::AddRegion { .. } | Message::AddRing(_)), None) => {
                    return Err(ProtocolError(format!("{} without a file", message.what())).into());
                }
                (Message::Connect(name), _) => break name,
                (other, _) => return Err(out_of_turn(&other)),
            }
            talk.say(&Message::Ack)?;
        };
        let regions = Arc::new(regions);
        let end = |(ring, notifier): (AddRing, Notifier)| -> Result<RingEnd, ProtocolError> {
            let AddRing { region, offset, log2_entries, .. } = ring;
            let memory = RingMemory::of_peer(&regions, region, offset, log2_entries)?;
            Ok(RingEnd::of_server(memory, notifier))
        };
        let mut pairs: Vec<Pair> = (0..settings.queues).map(|_| Pair::default()).collect();
        for (pair, ring) in pairs.iter_mut().zip(to_server) {
            let end = end(ring)?;
            end.disable();
            pair.rx = Some(end);
        }
        for (pair, ring) in pairs.iter_mut().zip(to_client) {
            pair.tx = Some(end(ring)?);
        }
        talk.say(&Message::Connected(own_interface()))?;
        Ok(Connection { peer: peer_name(&program, &interface), pairs })
    })
}

fn check_init(init: &Init, settings: &Settings) -> Result<(), ProtocolError> {
    let breach = |reason: &str| Err(ProtocolError(reason.into()));
    if init.version != VERSION {
        return Err(ProtocolError(format!("memif 2.0 is spoken here, {:#x} there", init.version)));
    }
    if init.id != settings.id {
        return Err(ProtocolError(format!(
            "interface id {} is not here, {} is",
            init.id, settings.id
        )));
    }
    if init.mode != ETHERNET {
        return breach("the mode here is ethernet");
    }
    match settings.secret == [0; SECRET_BYTES] || is_same(&init.secret, &settings.secret) {
        true => Ok(()),
        false if init.secret == [0; SECRET_BYTES] => breach("a secret is required"),
        false => breach("another secret"),
    }
}

/// Compares all bytes, so that the duration reveals nothing about the secret.
fn is_same(one: &[u8; SECRET_BYTES], other: &[u8; SECRET_BYTES]) -> bool {
    one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn check_ring(ring: &AddRing, there: usize, settings: &Settings) -> Result<(), ProtocolError> {
    if usize::from(ring.index) != there || ring.index >= settings.queues {
        let (index, queues) = (ring.index, settings.queues);
        return Err(ProtocolError(format!("ring {index}: out of turn, or one more than {queues}")));
    }
    match ring.private_header {
        0 => Ok(()),
        _ => Err(ProtocolError("private headers are not known here".into())),
    }
}
