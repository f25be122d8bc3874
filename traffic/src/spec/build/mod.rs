//! From what was said to what is sent: a stream's layers become a template, edits and checksums.
//!
//! ```text
//!   layers --> draft: headers, and what is to change in them
//!          --> template of the longest frame --> edits --> checksums, the inner ones first
//! ```

mod edits;
mod sums;

use std::ops::Range;

use super::fault::{Fault, Position};
use super::header::Header;
use super::layer::Bits;
use super::protocols::{bytes, link};
use super::size::{MAX_FRAME, Size, turns_of};
use super::value::Value;
use super::{Defaults, Stream};
use crate::plan::{self, FieldSource, Finish, Key, Sizes, hash};
use edits::Draws;

/// A frame on Ethernet is not shorter (IEEE 802.3, without the frame check sequence).
const MIN_FRAME: usize = 60;
/// Layers of a stream: more are a mistake.
const MAX_LAYERS: usize = 64;

/// The headers of a stream, as far as they are laid.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Which stream of the plan.
    pub(crate) stream: usize,
    /// The headers' bytes.
    pub(crate) bytes: Vec<u8>,
    /// Fields that change or depend on the frame's length.
    changes: Vec<Laid>,
    /// Checksums, the outer before the inner.
    pub(crate) sums: Vec<SumOf>,
    /// The IP header directly below, extension headers aside.
    pub(crate) ip: Option<Ip>,
    /// The payload after the headers.
    pub(crate) fill: Option<Fill>,
}

/// Something in bits of the frame: their cell is counted from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Laid {
    pub(crate) bits: Bits,
    pub(crate) what: What,
}

/// The content of a field.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Number(u128),
    Value(Value),
    /// The frame's bytes from here on.
    LengthFrom(usize),
    FieldSource(FieldSource),
}

/// An IP header as the layer above needs it.
#[derive(Clone, Debug)]
pub(crate) struct Ip {
    pub(crate) version: u8,
    /// Where its addresses stand, one after the other.
    pub(crate) addresses: Range<usize>,
    /// Packets may be fragments.
    pub(crate) fragment: bool,
}

/// A checksum that is to be.
#[derive(Clone, Debug)]
pub(crate) struct SumOf {
    pub(crate) at: usize,
    /// The first byte covered.
    pub(crate) from: usize,
    /// To the end of what the headers carry, if nothing is said.
    pub(crate) to: Option<usize>,
    /// The addresses and the protocol of a pseudo header.
    pub(crate) pseudo: Option<(Range<usize>, u8)>,
    pub(crate) finish: Finish,
}

impl Draft {
    pub(crate) fn put(&mut self, laid: Laid) {
        match laid.what {
            What::Number(number) => write_bits(&mut self.bytes, laid.bits, number),
            _ => self.changes.push(laid),
        }
    }
}

/// Puts a number into bits of a frame.
fn write_bits(frame: &mut [u8], bits: Bits, number: u128) {
    let cell = &mut frame[bits.at..][..bits.cell];
    let mask = (u128::MAX >> (128 - u32::from(bits.width))) << bits.shift;
    let old = cell.iter().fold(0, |number, &byte| number << 8 | u128::from(byte));
    let new = old & !mask | number << bits.shift & mask;
    cell.copy_from_slice(&new.to_be_bytes()[16 - bits.cell..]);
}

/// Works out a stream.
pub(super) fn stream(
    index: usize,
    stream: &Stream,
    seed: u64,
    defaults: &Defaults,
) -> Result<plan::Stream, Fault> {
    let mut draft = lay(index, stream, defaults)?;
    let frame = Frame::new(stream, &mut draft, seed)?;
    let mut draws = Draws::default();
    let sizes = sizes(stream, &mut draws)?;
    let mut template = frame.template;
    let end = matches!(sizes, Sizes::Fixed).then_some(frame.end);
    let edits = edits::edits(&draft.changes, end, &mut template, &mut draws)
        .map_err(|problem| Fault::new(&stream.place, "", problem))?;
    let sums = sums::sums(&draft.sums, frame.end, &sizes, &edits, &mut template);
    let (name, flows) = (stream.name.clone(), stream.flows);
    Ok(plan::Stream { name, template, sizes, flows, words: draws.words(), edits, sums })
}

/// The memory that the longer parts of a stream take.
pub(super) fn memory_bytes(stream: &plan::Stream) -> usize {
    let sizes = if let Sizes::InTurn(sizes) = &stream.sizes { sizes.len() * 2 } else { 0 };
    let sums: usize = stream.sums.iter().map(|sum| sum.by_size.len() * 2).sum();
    let parts = stream.edits.iter().flat_map(|edit| &edit.parts);
    let lists = parts.map(|part| match &part.source {
        FieldSource::List { values, .. } => values.len() * 8,
        _ => 0,
    });
    stream.template.len() + sizes + sums + lists.sum::<usize>()
}

fn lay(index: usize, stream: &Stream, defaults: &Defaults) -> Result<Draft, Fault> {
    check_order(stream)?;
    let mut draft = Draft { stream: index, ..Draft::default() };
    for (count, layer) in stream.layers.iter().enumerate() {
        Header::lay(&mut draft, layer, &stream.layers[count + 1..], defaults)?;
        if draft.bytes.len() > usize::from(MAX_FRAME) {
            let problem = format!("the headers up to here are longer than {MAX_FRAME} bytes");
            return Err(Fault::new(&layer.place, layer.protocol.name, problem));
        }
    }
    Ok(draft)
}

/// Checks the order of a stream's layers.
fn check_order(stream: &Stream) -> Result<(), Fault> {
    let layers = &stream.layers;
    let Some(first) = layers.first() else {
        let problem = "there are no layers: say layers = [\"ether\", \"ipv4\", \"udp\"]";
        return Err(Fault::new(&stream.place, "", problem));
    };
    if !bytes::may_be_first(first.protocol) {
        let problem = "the first layer is ether, or raw with a header of your own";
        return Err(Fault::new(&first.place, first.protocol.name, problem));
    }
    if layers.len() > MAX_LAYERS {
        let problem = format!("{} layers: at most {MAX_LAYERS}", layers.len());
        return Err(Fault::new(&stream.place, "", problem));
    }
    for pair in layers.windows(2) {
        if !bytes::may_follow(pair[0].protocol, pair[1].protocol) {
            let problem = format!("nothing but payload follows {}", pair[0].protocol.name);
            return Err(Fault::new(&pair[1].place, pair[1].protocol.name, problem));
        }
        link::check_tpid(&pair[0], &pair[1])?;
    }
    Ok(())
}

/// The longest frame of a stream, with its headers as the draft has them.
struct Frame {
    template: Vec<u8>,
    /// Where what the headers carry ends: behind it there is only padding.
    end: usize,
}

impl Frame {
    fn new(stream: &Stream, draft: &mut Draft, seed: u64) -> Result<Self, Fault> {
        let headers = draft.bytes.len();
        let fill = draft.fill.take();
        let (length, end) = match &stream.size {
            Some((size, place)) => {
                let (least, most) = size.bounds();
                check_size(least, headers, place)?;
                if let Some(Fill { length: Some(_), place, .. }) = &fill {
                    let problem = "the size says how long it is: leave one of them out";
                    return Err(Fault::new(place, "payload.length", problem));
                }
                (usize::from(most), usize::from(most))
            }
            None => {
                let fills = fill.as_ref().is_some_and(Fill::fills);
                let carried = headers + fill.as_ref().map_or(0, Fill::natural_length);
                let length = if stream.pad { carried.max(MIN_FRAME) } else { carried };
                (length, if fills { length } else { carried })
            }
        };
        if length > usize::from(MAX_FRAME) {
            let problem = format!("its frame has {length} bytes: at most {MAX_FRAME}");
            return Err(Fault::new(&stream.place, "", problem));
        }
        let mut template = std::mem::take(&mut draft.bytes);
        template.resize(length, 0);
        if let Some(fill) = fill {
            fill.put(&mut template[headers..end], seed, draft.stream);
        }
        Ok(Self { template, end })
    }
}

fn check_size(least: u16, headers: usize, place: &Position) -> Result<(), Fault> {
    if usize::from(least) >= headers {
        return Ok(());
    }
    let problem =
        format!("{least} bytes are too few: the headers have {headers}, so at least {headers}");
    Err(Fault::new(place, "size", problem))
}

/// The sizes of a stream's frames, as a plan has them.
fn sizes(stream: &Stream, draws: &mut Draws) -> Result<Sizes, Fault> {
    let Some((size, place)) = &stream.size else { return Ok(Sizes::Fixed) };
    let wrong = |problem: String| Fault::new(place, "size", problem);
    if size.bounds().0 == size.bounds().1 {
        return Ok(Sizes::Fixed);
    }
    Ok(match size {
        Size::InTurn(sizes) => Sizes::InTurn(sizes.clone()),
        Size::Mix(weights) => {
            let turns = turns_of(&weights.iter().map(|(_, weight)| *weight).collect::<Vec<_>>());
            let sizes = turns.map_err(wrong)?.into_iter().map(|n| weights[usize::from(n)].0);
            Sizes::InTurn(sizes.collect())
        }
        Size::Random { first, last } => {
            let count = last - first + 1;
            let draw = draws.draw(plan::Per::Packet, count.into()).map_err(wrong)?;
            Sizes::AtRandom { first: *first, count, draw }
        }
    })
}

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
    fn natural_length(&self) -> usize {
        match (&self.content, self.length) {
            (_, Some(length)) => length.into(),
            (Content::Once(bytes) | Content::Pattern(bytes), None) => bytes.len(),
            (Content::Zeros | Content::Random, None) => 0,
        }
    }

    /// Reports whether the payload grows to the minimum Ethernet frame.
    fn fills(&self) -> bool {
        self.length.is_none() && matches!(self.content, Content::Zeros | Content::Random)
    }

    fn put(&self, room: &mut [u8], seed: u64, stream: usize) {
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
