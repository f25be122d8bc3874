//! The messages of the control socket: 128 bytes each, with a type and its packed fields.
//!
//! Integers are in host byte order, because both ends are on one host. A peer's names and reasons are shown
//! to the user, so control characters are removed.

use std::fmt;

/// The size of every message.
pub const MESSAGE_BYTES: usize = 128;
/// The size of a name.
const NAME_BYTES: usize = 32;
/// The size of a secret.
pub(super) const SECRET_BYTES: usize = 24;
/// The size of a reason.
const REASON_BYTES: usize = 96;

/// The supported version: 2.0.
pub(super) const VERSION: u16 = 2 << 8;
/// The flag of a ring from client to server.
const TO_SERVER: u16 = 1;

/// A protocol error of the peer, reported to the peer and the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub String);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message. `C` means that the client sends it, `S` the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// S: the last message was accepted.
    Ack,
    /// S: the server's abilities; the first message.
    Hello(Hello),
    /// C: the requested interface.
    Init(Init),
    /// C: a memory region; its file accompanies the message.
    AddRegion {
        /// The region's number; regions are numbered consecutively.
        index: u16,
        /// Bytes.
        bytes: u64,
    },
    /// C: a ring, with the event file that wakes its receiver.
    AddRing(AddRing),
    /// C: the setup is complete; the interface has this name.
    Connect(String),
    /// S: packets may flow; the interface has this name.
    Connected(String),
    /// C, S: the end of the connection.
    Disconnect {
        /// A number without further meaning.
        code: u32,
        /// The reason.
        reason: String,
    },
}

/// The abilities of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The program's name.
    pub name: String,
    /// The oldest and the newest supported version.
    pub versions: (u16, u16),
    /// The highest number of a region.
    pub last_region: u16,
    /// The highest numbers of rings to the client, and to the server.
    pub last_rings: (u16, u16),
    /// Maximum of entries of a ring, as a power of two.
    pub most_log2_entries: u8,
}

/// The interface that a client requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Init {
    /// The client's version.
    pub version: u16,
    /// The interface's number on this socket.
    pub id: u32,
    /// The kind of packets: 0 is Ethernet.
    pub mode: u8,
    /// The shared secret, padded with zeros.
    pub secret: [u8; SECRET_BYTES],
    /// The program's name.
    pub name: String,
}

impl fmt::Debug for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the secret from logs.
        let Self { version, id, mode, name, .. } = self;
        write!(f, "Init {{ version: {version:#x}, id: {id}, mode: {mode}, name: {name:?}, .. }}")
    }
}

/// The position of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRing {
    /// True for a ring from client to server.
    pub to_server: bool,
    /// Its number in its direction; rings are numbered consecutively.
    pub index: u16,
    /// Its region.
    pub region: u16,
    /// Its offset in the region.
    pub offset: u32,
    /// The number of entries, as a power of two.
    pub log2_entries: u8,
    /// The size of a private header in each packet; only 0 is supported.
    pub private_header: u16,
}

impl Message {
    /// Decodes a message.
    ///
    /// # Errors
    /// The type of the message is unknown.
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, ProtocolError> {
        let at = Fields(bytes);
        Ok(match at.u16(0) {
            1 => Self::Ack,
            2 => Self::Hello(Hello {
                name: at.text(2, NAME_BYTES),
                versions: (at.u16(34), at.u16(36)),
                last_region: at.u16(38),
                last_rings: (at.u16(40), at.u16(42)),
                most_log2_entries: bytes[44],
            }),
            3 => Self::Init(Init {
                version: at.u16(2),
                id: at.u32(4),
                mode: bytes[8],
                secret: at.array(9),
                name: at.text(33, NAME_BYTES),
            }),
            4 => Self::AddRegion { index: at.u16(2), bytes: u64::from_ne_bytes(at.array(4)) },
            5 => Self::AddRing(AddRing {
                to_server: at.u16(2) & TO_SERVER != 0,
                index: at.u16(4),
                region: at.u16(6),
                offset: at.u32(8),
                log2_entries: bytes[12],
                private_header: at.u16(13),
            }),
            6 => Self::Connect(at.text(2, NAME_BYTES)),
            7 => Self::Connected(at.text(2, NAME_BYTES)),
            8 => Self::Disconnect { code: at.u32(2), reason: at.text(6, REASON_BYTES) },
            other => return Err(ProtocolError(format!("unknown message type {other}"))),
        })
    }

    /// Encodes the message. Text that is too long is cut.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &self.number_and_name().0.to_ne_bytes());
        match self {
            Self::Ack => {}
            Self::Hello(hello) => {
                put(2, cut(&hello.name, NAME_BYTES));
                put(34, &hello.versions.0.to_ne_bytes());
                put(36, &hello.versions.1.to_ne_bytes());
                put(38, &hello.last_region.to_ne_bytes());
                put(40, &hello.last_rings.0.to_ne_bytes());
                put(42, &hello.last_rings.1.to_ne_bytes());
                put(44, &[hello.most_log2_entries]);
            }
            Self::Init(init) => {
                put(2, &init.version.to_ne_bytes());
                put(4, &init.id.to_ne_bytes());
                put(8, &[init.mode]);
                put(9, &init.secret);
                put(33, cut(&init.name, NAME_BYTES));
            }
            Self::AddRegion { index, bytes } => {
                put(2, &index.to_ne_bytes());
                put(4, &bytes.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                put(2, &(if ring.to_server { TO_SERVER } else { 0 }).to_ne_bytes());
                put(4, &ring.index.to_ne_bytes());
                put(6, &ring.region.to_ne_bytes());
                put(8, &ring.offset.to_ne_bytes());
                put(12, &[ring.log2_entries]);
                put(13, &ring.private_header.to_ne_bytes());
            }
            Self::Connect(name) | Self::Connected(name) => put(2, cut(name, NAME_BYTES)),
            Self::Disconnect { code, reason } => {
                put(2, &code.to_ne_bytes());
                put(6, cut(reason, REASON_BYTES));
            }
        }
        bytes
    }

    /// Returns the message's name, for errors.
    pub fn what(&self) -> &'static str {
        self.number_and_name().1
    }

    fn number_and_name(&self) -> (u16, &'static str) {
        match self {
            Self::Ack => (1, "ACK"),
            Self::Hello(_) => (2, "HELLO"),
            Self::Init(_) => (3, "INIT"),
            Self::AddRegion { .. } => (4, "ADD_REGION"),
            Self::AddRing(_) => (5, "ADD_RING"),
            Self::Connect(_) => (6, "CONNECT"),
            Self::Connected(_) => (7, "CONNECTED"),
            Self::Disconnect { .. } => (8, "DISCONNECT"),
        }
    }
}

/// Access to the fields of a message; all offsets are constants within it.
struct Fields<'a>(&'a [u8; MESSAGE_BYTES]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    /// Reads text that ends at a zero byte, or after `most` bytes.
    fn text(&self, at: usize, most: usize) -> String {
        let field = &self.0[at..at + most];
        let bytes = field.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(bytes);
        text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

/// Cuts a text to fit a field with a final zero byte.
fn cut(text: &str, bytes: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(bytes - 1)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn every_kind() -> Vec<Message> {
        vec![
            Message::Ack,
            Message::Hello(Hello {
                name: "a server".into(),
                versions: (0x200, 0x201),
                last_region: 255,
                last_rings: (3, 4),
                most_log2_entries: 14,
            }),
            Message::Init(Init {
                version: VERSION,
                id: 0x0102_0304,
                mode: 1,
                secret: *b"twenty-four bytes secret",
                name: "a client".into(),
            }),
            Message::AddRegion { index: 1, bytes: 1 << 40 },
            Message::AddRing(AddRing {
                to_server: true,
                index: 7,
                region: 1,
                offset: 0x8000_0000,
                log2_entries: 10,
                private_header: 3,
            }),
            Message::Connect("left".into()),
            Message::Connected("right".into()),
            Message::Disconnect { code: 9, reason: "because".into() },
        ]
    }

    #[test]
    fn encoded_messages_are_decoded() {
        for message in every_kind() {
            assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
        }
    }

    /// Compares with memif.h: type u16, then packed fields.
    #[test]
    fn fields_lie_where_others_look_for_them() {
        let all = every_kind();
        let bytes = all[1].encode();
        assert_eq!((bytes[0], &bytes[2..10], bytes[44]), (2, &b"a server"[..], 14));
        assert_eq!(bytes[34..38], [0x00, 0x02, 0x01, 0x02], "versions");
        let bytes = all[2].encode();
        assert_eq!(bytes[4..9], [4, 3, 2, 1, 1], "id and mode");
        assert_eq!(&bytes[9..41], b"twenty-four bytes secreta client".as_slice());
        let bytes = all[3].encode();
        assert_eq!((bytes[2], bytes[9]), (1, 1), "2^40 from byte 4 on");
        let bytes = all[4].encode();
        assert_eq!(bytes[2..15], [1, 0, 7, 0, 1, 0, 0, 0, 0, 0x80, 10, 3, 0]);
        assert_eq!(&all[7].encode()[2..13], b"\x09\0\0\0because");
    }

    #[test]
    fn text_is_cut_and_cannot_steer_a_terminal() {
        let long = Message::Connect("ä".repeat(40));
        let Ok(Message::Connect(name)) = Message::decode(&long.encode()) else { panic!() };
        assert_eq!(name, "ä".repeat(15), "31 bytes at most, and no half of a letter");
        let rude = Message::Disconnect { code: 0, reason: "a\x1b[2Jb\nc".into() };
        let Ok(Message::Disconnect { reason, .. }) = Message::decode(&rude.encode()) else {
            panic!()
        };
        assert_eq!(reason, "a?[2Jb?c");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 128)) {
            let mut bytes: [u8; MESSAGE_BYTES] = bytes.try_into().unwrap();
            bytes[1] = 0;
            bytes[0] %= 10;
            match Message::decode(&bytes) {
                // A decoded message encodes to the same meaning.
                Ok(message) => {
                    let again = Message::decode(&message.encode());
                    prop_assert_eq!(again.map(|message| message.what()), Ok(message.what()));
                }
                Err(_) => prop_assert!(bytes[0] == 0 || bytes[0] > 8),
            }
        }
    }
}
