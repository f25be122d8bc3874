//! The payload after the headers.

use crate::plan::{Key, hash};
use crate::spec::fault::Position;

/// The payload of a frame, cut or repeated to the frame's size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fill {
    pub(crate) content: Content,
    /// How long it is where the frame's size says nothing.
    pub(crate) length: Option<u16>,
    /// Where that was said.
    pub(crate) place: Position,
}

/// The bytes of a payload.
#[derive(Clone, Debug, Default)]
pub(crate) enum Content {
    #[default]
    Zeros,
    /// These, and zeros behind them.
    Once(Vec<u8>),
    /// These, over and over.
    Pattern(Vec<u8>),
    /// Random ones, the same in all packets.
    Random,
}

impl Fill {
    /// How long it is where the frame's size says nothing.
    pub(super) fn natural_length(&self) -> usize {
        match (&self.content, self.length) {
            (_, Some(length)) => length.into(),
            (Content::Once(bytes) | Content::Pattern(bytes), None) => bytes.len(),
            (Content::Zeros | Content::Random, None) => 0,
        }
    }

    /// Reports whether the payload grows to the minimum Ethernet frame.
    pub(super) fn fills(&self) -> bool {
        self.length.is_none() && matches!(self.content, Content::Zeros | Content::Random)
    }

    pub(super) fn put(&self, room: &mut [u8], seed: u64, stream: usize) {
        match &self.content {
            Content::Zeros => {}
            Content::Once(bytes) => {
                let bytes = &bytes[..bytes.len().min(room.len())];
                room[..bytes.len()].copy_from_slice(bytes);
            }
            Content::Pattern(bytes) => {
                for (byte, pattern) in room.iter_mut().zip(bytes.iter().cycle()) {
                    *byte = *pattern;
                }
            }
            Content::Random => {
                // A worker of its own: none has this number.
                let key = Key::of_packets(seed, stream, u32::MAX);
                for (number, bytes) in room.chunks_mut(8).enumerate() {
                    let random = hash(key, number as u64).to_be_bytes();
                    bytes.copy_from_slice(&random[..bytes.len()]);
                }
            }
        }
    }
}
