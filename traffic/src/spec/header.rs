//! A header while it is laid: what a protocol's function works with.

use super::Defaults;
use super::build::{Draft, Ip, Laid, SumOf, What};
use super::fault::Fault;
use super::layer::{Bits, Given, KnownAs, Layer, Setting};
use super::protocols::{bytes, link};
use super::value::{Set, Value};
use crate::plan::Finish;

/// A header that is being laid, after all those below it.
pub(crate) struct Header<'a> {
    pub(crate) draft: &'a mut Draft,
    pub(crate) layer: &'a Layer,
    /// The layers above it.
    pub(crate) above: &'a [Layer],
    /// The IP header directly below it, extension headers aside.
    pub(crate) ip: Option<Ip>,
    pub(crate) defaults: &'a Defaults,
    /// The offset in the frame where it begins.
    at: usize,
}

/// The bytes that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// The header alone.
    Header,
    /// The header and all that follows.
    Rest,
    /// That, and a pseudo header of the addresses below, the length and this protocol.
    Upper(u8),
}

impl<'a> Header<'a> {
    /// Puts a layer behind the last: all fields that were given, or have a default.
    pub(crate) fn lay(
        draft: &mut Draft,
        layer: &Layer,
        above: &[Layer],
        defaults: &Defaults,
    ) -> Result<(), Fault> {
        layer.check()?;
        let at = draft.bytes.len();
        let ip = draft.ip.take();
        draft.bytes.resize(at + layer.protocol.bytes, 0);
        let mut header = Header { draft, layer, above, ip, defaults, at };
        for field in layer.protocol.fields {
            let Some(bits) = field.bits else { continue };
            match layer.setting(field.name) {
                Some(Setting { given: Given::Value(value), .. }) => header.put(bits, value),
                None if !field.default.is_empty() => {
                    let value = Value::parse(field.default, field.form());
                    let wrong = |problem| Fault::new(&layer.place, field.name, problem);
                    header.put(bits, &value.map_err(wrong)?);
                }
                _ => {}
            }
        }
        (layer.protocol.lay)(&mut header)
    }

    /// Returns the setting of a field.
    pub(crate) fn setting(&self, name: &str) -> Option<&'a Setting> {
        self.layer.setting(name)
    }

    /// The bytes that were given for a field.
    pub(crate) fn given_bytes(&self, name: &str) -> Option<&'a [u8]> {
        match &self.setting(name)?.given {
            Given::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Bytes of the header so far.
    pub(crate) fn bytes(&self) -> usize {
        self.draft.bytes.len() - self.at
    }

    /// Adds bytes to the header.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.draft.bytes.extend_from_slice(bytes);
    }

    /// Adds zeros until the header is a multiple of `of` bytes.
    pub(crate) fn fill_to_multiple(&mut self, of: usize) {
        self.draft.bytes.resize(self.at + self.bytes().next_multiple_of(of), 0);
    }

    /// Puts a value into bits of the header.
    pub(crate) fn put(&mut self, bits: Bits, value: &Value) {
        let what = match value.set {
            Set::One(number) => What::Number(number),
            _ => What::Value(value.clone()),
        };
        self.put_what(bits, what);
    }

    /// Puts a number, or what changes, into bits of the header.
    pub(crate) fn put_what(&mut self, bits: Bits, what: What) {
        let bits = Bits { at: self.at + bits.at, ..bits };
        self.draft.put(Laid { bits, what });
    }

    /// A number of a field about which nothing was said.
    pub(crate) fn auto(&mut self, name: &str, number: u128) {
        if let Some(bits) = self.unsaid(name) {
            self.put_what(bits, What::Number(number));
        }
    }

    /// A field that is the number of bytes from here on, `from` bytes into the header, unless
    /// something was said.
    pub(crate) fn length(&mut self, name: &str, from: usize) {
        if let Some(bits) = self.unsaid(name) {
            let from = self.at + from;
            self.put_what(bits, What::LengthFrom(from));
        }
    }

    /// The place of a field about which nothing was said.
    fn unsaid(&self, name: &str) -> Option<Bits> {
        let field = self.layer.protocol.fields.iter().find(|field| field.name == name)?;
        let said = |setting: &&Setting| {
            let bits = setting.field.bits;
            bits.zip(field.bits).is_some_and(|(said, bits)| said.overlaps(bits))
        };
        if self.layer.settings.iter().any(|setting| said(&setting)) { None } else { field.bits }
    }

    /// The checksum, of two bytes `at` in the header, unless a number was given for it; `absent`
    /// says that there is none unless it was asked for.
    pub(crate) fn checksum(
        &mut self,
        at: usize,
        cover: Cover,
        finish: Finish,
        absent: bool,
    ) -> Result<(), Fault> {
        let finish = match self.setting("checksum").map(|setting| &setting.given) {
            Some(Given::Bad) => Finish::Wrong,
            Some(Given::Right) => finish,
            None if !absent => finish,
            _ => return Ok(()),
        };
        let pseudo = match (cover, &self.ip) {
            (Cover::Upper(protocol), Some(ip)) => Some((ip.addresses.clone(), protocol)),
            (Cover::Upper(_), None) => return Err(self.no_address()),
            _ => None,
        };
        let to = (cover == Cover::Header).then_some(self.draft.bytes.len());
        let sum = SumOf { at: self.at + at, from: self.at, to, pseudo, finish };
        self.draft.sums.push(sum);
        Ok(())
    }

    fn no_address(&self) -> Fault {
        let name = self.layer.protocol.name;
        let problem = "its checksum covers the addresses of ipv4 or ipv6, and none is directly \
                       below it: put one there, or say checksum = 0";
        Fault::new(&self.layer.place, name, problem)
    }

    /// The layer that follows, if there is one with a header of its own.
    pub(crate) fn next(&self) -> Option<&'a Layer> {
        self.above.first().filter(|layer| !bytes::is_data(layer.protocol))
    }

    /// Fills in a field that says what follows: `otherwise`, if that is only bytes.
    pub(crate) fn says_next(
        &mut self,
        name: &str,
        number: impl Fn(KnownAs) -> Option<u128>,
        otherwise: u128,
    ) -> Result<(), Fault> {
        let Some(next) = self.next() else {
            self.auto(name, otherwise);
            return Ok(());
        };
        match number(next.protocol.known_as) {
            Some(number) => self.auto(name, number),
            None if self.setting(name).is_some() => {}
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

    /// Fills in a field that is the EtherType of what follows.
    pub(crate) fn says_ethertype(&mut self, name: &str) -> Result<(), Fault> {
        let tag = self.next().filter(|next| next.protocol.is(&link::VLAN));
        if let (Some(tag), Some(bits)) = (tag, self.unsaid(name)) {
            // What a tag is, the header before it says.
            match tag.value("tpid") {
                Some(value) => self.put(bits, value),
                None => self.put(bits, &link::tpid(&self.above[1..]).into()),
            }
            return Ok(());
        }
        self.says_next(name, |known| known.ethertype.map(u128::from), link::EXPERIMENTAL)
    }

    /// Fills in a field that is the IP protocol of what follows.
    pub(crate) fn says_protocol(&mut self, name: &str) -> Result<(), Fault> {
        /// RFC 3692: for experiments.
        const EXPERIMENTAL: u128 = 253;
        self.says_next(name, |known| known.ip.map(u128::from), EXPERIMENTAL)
    }

    /// Creates an error about a field.
    pub(crate) fn fault(&self, setting: &Setting, problem: impl Into<String>) -> Fault {
        self.layer.fault(setting, problem)
    }

    /// The offset of the header in the frame.
    pub(crate) fn at(&self) -> usize {
        self.at
    }
}
