//! Command-line flags that create a specification, or change one.
//!
//! Flags set fields of layers with the same syntax as a file. Without a file they create a stream of default
//! layers, then change it.

use std::path::Path;

use toml::de::DeValue;

use sluicegate_base::text_error::{Fault, Origin, Position};

use super::SpecError;
use super::layer::{ETHER, ICMP, ICMPV6, IPV4, IPV6, PAYLOAD, STAMP, TCP, UDP, VLAN};
use super::layer::{Field, Layer, Protocol, SettingValue, read_setting};
use super::size::Size;
use super::value::{Form, Set, Value};
use super::{Spec, StreamSpec};
use crate::plan::VariesBy;

/// The flags of a user. Without a flag, a field keeps its value or its default: UDP between the addresses of
/// [`Defaults`](super::Defaults) (IPv6 if either given address is), ports 9 (discard), the shortest frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--size`: bytes of a frame without the frame check sequence, like `60`, `60,512,1514`,
    /// `64-1500` or `imix`.
    pub size: Option<String>,
    /// `--smac`: the source on Ethernet.
    pub smac: Option<String>,
    /// `--dmac`: the destination on Ethernet.
    pub dmac: Option<String>,
    /// `--src`: the source address. An IPv6 address selects IPv6.
    pub src: Option<String>,
    /// `--dst`: the destination address. An IPv6 address selects IPv6.
    pub dst: Option<String>,
    /// `--sport`: the source port.
    pub sport: Option<String>,
    /// `--dport`: the destination port.
    pub dport: Option<String>,
    /// `--proto`: `udp`, `tcp` or `icmp`.
    pub proto: Option<String>,
    /// `--vlan`: identifiers of tags, outer before inner.
    pub vlan: Vec<String>,
    /// `--flows`: the number of flows. The values of other flags then vary by flow; if none varies, the
    /// source port does.
    pub flows: Option<u32>,
    /// `--tcp-flags`: flags of TCP, like `S` or `syn+ack`.
    pub tcp_flags: Option<String>,
    /// `--payload`: `hex:…`, `text:…`, `pattern:…` (hexadecimal, repeated), `file:…` or `random`.
    pub payload: Option<String>,
    /// `--stamp`: every packet has a stamp after its last header.
    pub stamp: bool,
}

impl Spec {
    /// Creates a specification of one stream from flags.
    ///
    /// # Errors
    /// An invalid flag.
    pub fn from_flags(flags: &Flags) -> Result<Self, SpecError> {
        let origin = Origin::default();
        let stream = flags.stream().map_err(|fault| origin.locate(fault))?;
        let mut spec = Self { seed: None, streams: vec![stream], origin };
        spec.apply(&Flags { proto: None, ..flags.clone() })?;
        Ok(spec)
    }

    /// Applies flags to each stream that has their layers; of several such layers, to the outermost.
    ///
    /// # Errors
    /// An invalid flag; a flag that changes no stream.
    pub fn apply(&mut self, flags: &Flags) -> Result<(), SpecError> {
        let change = flags.change(&mut self.streams);
        change.map_err(|fault| self.origin.locate(fault))
    }
}

/// A flag, its text, and the field of one of several layers that it sets.
type FieldFlag<'a> = (&'static str, &'a str, &'static [&'static Protocol], &'static str);

impl Flags {
    /// Returns the stream of the flags, without settings of fields.
    fn stream(&self) -> Result<StreamSpec, Fault> {
        // Only IPv6 addresses contain a colon.
        let is_v6 = |text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default();
            text.trim_start_matches("flow:").trim_start_matches("any:").contains(':')
        };
        let v6 = is_v6(&self.src) || is_v6(&self.dst);
        let upper = match (self.proto.as_deref(), v6) {
            (None, _) if self.tcp_flags.is_some() => &TCP,
            (None | Some("udp"), _) => &UDP,
            (Some("tcp"), _) => &TCP,
            (Some("icmp"), false) => &ICMP,
            (Some("icmp"), true) => &ICMPV6,
            (Some(other), _) => {
                let problem = format!("'{other}' is not udp, tcp or icmp");
                return Err(Fault::new(&Position::Flag("--proto"), "", problem));
            }
        };
        // The payload fills the frame with zeros that belong to the packet, unlike padding.
        let layers = [&ETHER, if v6 { &IPV6 } else { &IPV4 }, upper, &PAYLOAD];
        let mut layers = layers.map(|protocol| Layer::new(protocol, Position::Nowhere)).to_vec();
        if let (Some(2..), false) = (self.flows, self.varies()) {
            spread(&mut layers[2]);
        }
        Ok(StreamSpec::new("0".into(), layers, Position::Nowhere))
    }

    /// Returns the given flags that set a field.
    fn fields(&self) -> impl Iterator<Item = FieldFlag<'_>> {
        const IP: &[&Protocol] = &[&IPV4, &IPV6];
        const PORTS: &[&Protocol] = &[&UDP, &TCP];
        let rows: [(_, &Option<String>, &'static [&'static Protocol], _); 7] = [
            ("--smac", &self.smac, &[&ETHER], "src"),
            ("--dmac", &self.dmac, &[&ETHER], "dst"),
            ("--src", &self.src, IP, "src"),
            ("--dst", &self.dst, IP, "dst"),
            ("--sport", &self.sport, PORTS, "sport"),
            ("--dport", &self.dport, PORTS, "dport"),
            ("--tcp-flags", &self.tcp_flags, &[&TCP], "flags"),
        ];
        let given = |(flag, text, layers, field)| {
            Option::as_deref(text).map(|text| (flag, text, layers, field))
        };
        rows.into_iter().filter_map(given)
    }

    /// Reports whether a flag makes the packets of flows differ.
    fn varies(&self) -> bool {
        let texts = self.fields().map(|(_, text, ..)| text);
        // Only a constant is a single number or address.
        texts.chain(self.vlan.iter().map(String::as_str)).any(|text| {
            [Form::Mac, Form::Ipv4, Form::Ipv6, Form::Number { bits: 16, names: "" }]
                .iter()
                .any(|form| Value::parse(text, *form).is_ok_and(|value| value.fixed().is_none()))
        })
    }

    fn change(&self, streams: &mut [StreamSpec]) -> Result<(), Fault> {
        if self.proto.is_some() {
            let problem = "the specification sets the layers: leave it out";
            return Err(Fault::new(&Position::Flag("--proto"), "", problem));
        }
        if self.flows == Some(0) {
            return Err(Fault::new(&Position::Flag("--flows"), "", "there is at least 1 flow"));
        }
        let place = Position::Flag("--size");
        let size = self.size.as_deref().map(Size::parse).transpose();
        let size = size.map_err(|problem| Fault::new(&place, "", problem))?;
        for stream in &mut *streams {
            stream.flows = self.flows.unwrap_or(stream.flows);
            if let Some(size) = &size {
                stream.size = Some((size.clone(), place.clone()));
                stream.pad = true;
            }
            self.tag(stream)?;
            self.load(stream)?;
            if self.stamp {
                stamp(stream);
            }
        }
        self.fields().try_for_each(|flag| self.change_field(flag, streams))
    }

    fn change_field(
        &self,
        (flag, text, layers, field): FieldFlag,
        streams: &mut [StreamSpec],
    ) -> Result<(), Fault> {
        let place = Position::Flag(flag);
        let mut found = false;
        for stream in streams {
            let has = |layer: &&mut Layer| layers.iter().any(|p| layer.protocol.is(p));
            let Some(layer) = stream.layers.iter_mut().find(has) else { continue };
            found = true;
            self.set(layer, field, text, &place)?;
        }
        if found {
            return Ok(());
        }
        let names: Vec<_> = layers.iter().map(|protocol| protocol.name).collect();
        let problem = format!("there is no {} in what is sent: leave it out", names.join(" or "));
        Err(Fault::new(&place, "", problem))
    }

    /// Sets a field. With `--flows` a varying value varies by flow.
    fn set(
        &self,
        layer: &mut Layer,
        name: &str,
        text: &str,
        place: &Position,
    ) -> Result<(), Fault> {
        let wrong = |problem| Fault::new(place, "", problem);
        let field: &'static Field = layer.protocol.field(name).map_err(wrong)?;
        let given =
            read_setting(field, &DeValue::String(text.into()), Path::new("")).map_err(wrong)?;
        let given = match given {
            SettingValue::Value(Value { set, per }) => {
                let tied = self.flows.is_some() && !matches!(set, Set::One(_));
                SettingValue::Value(Value { set, per: if tied { VariesBy::Flow } else { per } })
            }
            other => other,
        };
        layer.set(field, given, place.clone());
        Ok(())
    }

    /// Inserts VLAN tags after the Ethernet addresses.
    fn tag(&self, stream: &mut StreamSpec) -> Result<(), Fault> {
        let place = Position::Flag("--vlan");
        let ether = stream.layers.iter().position(|layer| layer.protocol.is(&ETHER));
        for text in self.vlan.iter().rev() {
            let Some(ether) = ether else {
                return Err(Fault::new(&place, "", "there is no ether that a tag could follow"));
            };
            let mut tag = Layer::new(&VLAN, place.clone());
            self.set(&mut tag, "id", text, &place)?;
            stream.layers.insert(ether + 1, tag);
        }
        Ok(())
    }

    /// Replaces a stream's payload.
    fn load(&self, stream: &mut StreamSpec) -> Result<(), Fault> {
        let Some(text) = &self.payload else { return Ok(()) };
        let place = Position::Flag("--payload");
        let wrong = |problem: String| Fault::new(&place, "", problem);
        let (kind, raw) = match text.split_once(':') {
            None if text == "random" => ("random", DeValue::Boolean(true)),
            Some((kind @ ("hex" | "text" | "pattern" | "file"), rest)) => {
                (kind, DeValue::String(rest.into()))
            }
            _ => {
                let right = "hex:00ff, text:hello, pattern:55aa, file:data or random";
                return Err(wrong(format!("'{text}' is not {right}")));
            }
        };
        let field = PAYLOAD.field(kind).map_err(wrong)?;
        let given = read_setting(field, &raw, Path::new("")).map_err(wrong)?;
        let mut payload = Layer::new(&PAYLOAD, place.clone());
        payload.set(field, given, place);
        stream.layers.retain(|layer| !layer.protocol.is(&PAYLOAD));
        stream.layers.push(payload);
        Ok(())
    }
}

/// Inserts a stamp after the last header, where receivers expect it, if the stream has none.
fn stamp(stream: &mut StreamSpec) {
    if stream.layers.iter().any(|layer| layer.protocol.is(&STAMP)) {
        return;
    }
    let last = stream.layers.iter().rposition(|layer| !layer.protocol.is_data());
    let end = last.map_or(0, |last| last + 1);
    stream.layers.insert(end, Layer::new(&STAMP, Position::Flag("--stamp")));
}

/// Gives each flow its own source port or identifier, if no flag distinguishes flows.
fn spread(upper: &mut Layer) {
    let field = upper.protocol.fields.iter().find(|field| ["sport", "id"].contains(&field.name));
    if let Some(field) = field {
        let first = if field.name == "sport" { 1024 } else { 0 };
        let set = Set::Counter { first, last: 65_535, step: 1 };
        upper.set(
            field,
            SettingValue::Value(Value { per: VariesBy::Flow, set }),
            Position::Nowhere,
        );
    }
}
