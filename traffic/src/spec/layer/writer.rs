//! Writes headers into a draft of the frame, from the outside in.

use std::ops::Range;

use sluicegate_base::text_error::{Fault, Position};

use super::{Layer, Protocol, Setting, SettingValue};
use crate::plan::{FieldSource, Finish, RandomKey, hash};
use crate::spec::Defaults;
use crate::spec::edits::{Bits, Template};
use crate::spec::value::Value;

/// A frame under construction.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// The index of the stream in the plan.
    pub(crate) stream: usize,
    pub(crate) template: Template,
    /// Length fields, each with the offset from which its bytes count, to the end of the frame.
    pub(crate) lengths: Vec<(Bits, usize)>,
    /// Checksums, outer before inner.
    pub(crate) sums: Vec<SumOf>,
    /// The last IP header. Any layer except an extension header clears it.
    pub(crate) ip: Option<Ip>,
    /// The payload after the headers.
    pub(crate) fill: Option<Fill>,
}

/// The properties of an IP header that the layer above needs.
#[derive(Clone, Debug)]
pub(crate) struct Ip {
    pub(crate) version: u8,
    /// The offsets of both addresses.
    pub(crate) addresses: Range<usize>,
    /// Packets may be fragments.
    pub(crate) fragment: bool,
}

/// A checksum required in the plan.
#[derive(Clone, Debug)]
pub(crate) struct SumOf {
    pub(crate) at: usize,
    /// The first byte covered.
    pub(crate) from: usize,
    /// The end of the covered bytes; `None` for the end of the payload.
    pub(crate) to: Option<usize>,
    /// The addresses and the protocol of a pseudo header.
    pub(crate) pseudo: Option<(Range<usize>, u8)>,
    pub(crate) finish: Finish,
}

/// The payload of a frame, cut or repeated to the frame's size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fill {
    pub(crate) content: Content,
    /// The length, if the specification sets it.
    pub(crate) length: Option<u16>,
    pub(crate) place: Position,
}

/// The bytes of a payload.
#[derive(Clone, Debug, Default)]
pub(crate) enum Content {
    #[default]
    Zeros,
    /// These bytes, then zeros.
    Once(Vec<u8>),
    /// These bytes, repeated.
    Pattern(Vec<u8>),
    /// Random bytes, the same in all packets.
    Random,
}

impl Fill {
    /// Returns the length for a stream without a size.
    pub(crate) fn natural_length(&self) -> usize {
        match (&self.content, self.length) {
            (_, Some(length)) => length.into(),
            (Content::Once(bytes) | Content::Pattern(bytes), None) => bytes.len(),
            (Content::Zeros | Content::Random, None) => 0,
        }
    }

    /// Reports whether the payload grows to the minimum Ethernet frame.
    pub(crate) fn grows(&self) -> bool {
        self.length.is_none() && matches!(self.content, Content::Zeros | Content::Random)
    }

    pub(crate) fn put(&self, room: &mut [u8], seed: u64, stream: usize) {
        match &self.content {
            Content::Zeros => {}
            Content::Once(bytes) => {
                room.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
            }
            Content::Pattern(bytes) => {
                room.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, byte)| *to = *byte);
            }
            Content::Random => {
                // No worker has this number, so no packet uses the same random numbers.
                let key = RandomKey::of_packets(seed, stream, u32::MAX);
                for (number, bytes) in room.chunks_mut(8).enumerate() {
                    let random = hash(key, number as u64).to_be_bytes();
                    bytes.copy_from_slice(&random[..bytes.len()]);
                }
            }
        }
    }
}

/// Writes one header, after all those below it.
pub(crate) struct HeaderWriter<'a> {
    pub(crate) draft: &'a mut Draft,
    pub(crate) layer: &'a Layer,
    /// The layers above it.
    pub(crate) above: &'a [Layer],
    /// The IP header directly below it, extension headers aside.
    pub(crate) ip: Option<Ip>,
    pub(crate) defaults: &'a Defaults,
    /// The offset of the header in the frame.
    pub(crate) at: usize,
}

/// The bytes that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// The header alone.
    Header,
    /// The header and all bytes after it.
    Rest,
    /// [`Cover::Rest`], and a pseudo header of addresses, length and this protocol.
    Upper(u8),
}

impl<'a> HeaderWriter<'a> {
    /// Writes a layer: the fields that are set or have a default, then what its protocol derives.
    pub(crate) fn write(
        draft: &mut Draft,
        layer: &Layer,
        above: &[Layer],
        defaults: &Defaults,
    ) -> Result<(), Fault> {
        layer.check()?;
        let at = draft.template.bytes.len();
        let ip = draft.ip.take();
        draft.template.bytes.resize(at + layer.protocol.bytes, 0);
        let mut header = HeaderWriter { draft, layer, above, ip, defaults, at };
        for field in layer.protocol.fields {
            let Some(bits) = field.bits else { continue };
            match layer.setting(field.name) {
                Some(Setting { given: SettingValue::Value(value), .. }) => header.put(bits, value),
                None if !field.default.is_empty() => {
                    let value = Value::parse(field.default, field.form());
                    let wrong = |problem| Fault::new(&layer.place, field.name, problem);
                    header.put(bits, &value.map_err(wrong)?);
                }
                _ => {}
            }
        }
        (layer.protocol.derive)(&mut header)
    }

    /// Returns the number of bytes written.
    pub(crate) fn bytes(&self) -> usize {
        self.draft.template.bytes.len() - self.at
    }

    /// Adds bytes to the header.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.draft.template.bytes.extend_from_slice(bytes);
    }

    /// Adds the bytes given for a field.
    pub(crate) fn append_given(&mut self, name: &str) {
        if let Some(Setting { given: SettingValue::Bytes(bytes), .. }) = self.layer.setting(name) {
            self.append(bytes);
        }
    }

    /// Adds zeros until the header is a multiple of `of` bytes.
    pub(crate) fn fill_to_multiple(&mut self, of: usize) {
        self.draft.template.bytes.resize(self.at + self.bytes().next_multiple_of(of), 0);
    }

    /// Writes a value to bits of the header.
    pub(crate) fn put(&mut self, bits: Bits, value: &Value) {
        self.draft.template.value(Bits { at: self.at + bits.at, ..bits }, value);
    }

    /// Writes a number that depends on the packet to bits of the header.
    pub(crate) fn put_source(&mut self, bits: Bits, source: FieldSource) {
        self.draft.template.source(Bits { at: self.at + bits.at, ..bits }, 0, source);
    }

    /// Writes a number to a field, if that is not set.
    pub(crate) fn auto(&mut self, name: &str, number: u128) {
        if let Some(bits) = self.unset(name) {
            self.put(bits, &number.into());
        }
    }

    /// Writes the number of bytes after the first `from` bytes of the header to a field, if that is not set.
    pub(crate) fn length(&mut self, name: &str, from: usize) {
        if let Some(bits) = self.unset(name) {
            self.draft.lengths.push((Bits { at: self.at + bits.at, ..bits }, self.at + from));
        }
    }

    /// Returns the position of a field, if no setting shares a bit with it.
    pub(crate) fn unset(&self, name: &str) -> Option<Bits> {
        let field = self.layer.protocol.fields.iter().find(|field| field.name == name)?;
        let overlaps = |setting: &Setting| {
            setting.field.bits.zip(field.bits).is_some_and(|(set, bits)| set.overlaps(bits))
        };
        if self.layer.settings.iter().any(overlaps) { None } else { field.bits }
    }

    /// Adds the two-byte checksum at offset `at` of the header, if no number is set for it. With `absent`,
    /// adds it only if the specification requests one.
    pub(crate) fn checksum(
        &mut self,
        at: usize,
        cover: Cover,
        finish: Finish,
        absent: bool,
    ) -> Result<(), Fault> {
        let finish = match self.layer.setting("checksum").map(|setting| &setting.given) {
            Some(SettingValue::Bad) => Finish::Wrong,
            Some(SettingValue::Right) => finish,
            None if !absent => finish,
            _ => return Ok(()),
        };
        let pseudo = match (cover, &self.ip) {
            (Cover::Upper(protocol), Some(ip)) => Some((ip.addresses.clone(), protocol)),
            (Cover::Upper(_), None) => {
                let problem = "its checksum covers the addresses of ipv4 or ipv6, and none is \
                               directly below it: put one there, or say checksum = 0";
                return Err(Fault::new(&self.layer.place, self.layer.protocol.name, problem));
            }
            _ => None,
        };
        let to = (cover == Cover::Header).then_some(self.draft.template.bytes.len());
        let sum = SumOf { at: self.at + at, from: self.at, to, pseudo, finish };
        self.draft.sums.push(sum);
        Ok(())
    }

    /// Returns the next layer, if it has a header.
    pub(crate) fn next(&self) -> Option<&'a Layer> {
        self.above.first().filter(|layer| !layer.protocol.is_data())
    }

    /// Sets a field to the number of the next header, or to `otherwise` if only data follows.
    pub(crate) fn name_next(
        &mut self,
        name: &str,
        number: impl Fn(&Protocol) -> Option<u128>,
        otherwise: u128,
    ) -> Result<(), Fault> {
        let Some(next) = self.next() else {
            self.auto(name, otherwise);
            return Ok(());
        };
        match number(next.protocol) {
            Some(number) => self.auto(name, number),
            None if self.layer.setting(name).is_some() => {}
            None => {
                let (this, next_name) = (self.layer.protocol.name, next.protocol.name);
                let problem = format!(
                    "it cannot follow {this}, which has no number for it: put what belongs \
                     between, or give {this} a {name} of your own"
                );
                return Err(Fault::new(&next.place, next_name, problem));
            }
        }
        Ok(())
    }

    /// Sets a field to the IP protocol of the next header.
    pub(crate) fn name_next_protocol(&mut self, name: &str) -> Result<(), Fault> {
        /// A protocol number for experiments (RFC 3692).
        const EXPERIMENTAL: u128 = 253;
        self.name_next(name, |next| next.ip.map(u128::from), EXPERIMENTAL)
    }
}
