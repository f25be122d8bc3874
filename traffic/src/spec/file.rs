//! Reads a specification in TOML.
//!
//! The code walks the tables instead of deriving serde: the table of layers defines which values a
//! field takes, and every error names its position in the text.

use std::borrow::Cow;
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use sluicegate_base::text_error::{Fault, Origin, Position};

use super::layer::{Layer, Protocol, integer, kind, read_setting};
use super::size::Size;
use super::{MAX_STREAMS, Spec, SpecError, StreamSpec};

/// Maximum size of a file: its lists may be long.
const MAX_FILE: u64 = 4 << 20;

const KEYS: &[&str] = &["seed", "stream"];
const STREAMS: &str = "written [[stream]], once for each";
const STREAM_KEYS: &[&str] = &["name", "weight", "rate", "count", "flows", "size", "pad", "layers"];

type TomlKey<'i> = Spanned<Cow<'i, str>>;
type TomlValue<'i> = Spanned<DeValue<'i>>;

impl Spec {
    /// Reads a specification in TOML. Paths of payload files are relative to the current directory.
    ///
    /// # Errors
    /// The first error in the text, with its line:
    ///
    /// ```
    /// use sluicegate_traffic::spec::Spec;
    ///
    /// let text = "[[stream]]\nlayers = [\n  'ether', 'ipv4', { udp = { sport = 70000 } },\n]\n";
    /// let error = Spec::parse(text).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "line 3, column 38: stream 0: udp.sport: 70000 is too much: the 16 bits of the field \
    ///      hold 65535\n 3 |   'ether', 'ipv4', { udp = { sport = 70000 } },\n   |                                      ^^^^^"
    /// );
    /// ```
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        parse(Origin { name: String::new(), text: text.into() }, Path::new(""))
    }

    /// Reads a file in TOML. Paths of payload files are relative to its directory.
    ///
    /// # Errors
    /// The file cannot be read; the first error in it, with its line.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let origin = Origin::read(path, File::open(path), MAX_FILE, "move payloads to files")?;
        parse(origin, path.parent().unwrap_or(Path::new("")))
    }
}

pub(super) fn parse(origin: Origin, base: &Path) -> Result<Spec, SpecError> {
    let parsed = DeTable::parse(&origin.text).map_err(|error| {
        let place = error.span().map_or(Position::Nowhere, Position::Text);
        Fault::new(&place, "TOML", error.message())
    });
    match parsed.and_then(|table| SpecReader { base }.spec(table.get_ref())) {
        Ok((seed, streams)) => Ok(Spec { seed, streams, origin }),
        Err(fault) => Err(origin.locate(fault)),
    }
}

struct SpecReader<'a> {
    base: &'a Path,
}

impl SpecReader<'_> {
    fn spec(&self, table: &DeTable) -> Result<(Option<u64>, Vec<StreamSpec>), Fault> {
        let (mut seed, mut streams) = (None, Vec::new());
        for (key, value) in in_order(table) {
            match key.get_ref().as_ref() {
                "seed" => seed = Some(number(value, 0..=u64::MAX.into(), "seed")? as u64),
                "stream" => {
                    let list = value.get_ref().as_array();
                    for stream in list.ok_or_else(|| not(value, "stream", STREAMS))? {
                        streams.push(self.stream(streams.len(), stream)?);
                    }
                }
                _ => return Err(unknown(key, KEYS)),
            }
        }
        check_rates(&streams)?;
        let problem = match streams.len() {
            0 => "there is no stream: begin one by [[stream]]".to_owned(),
            1..=MAX_STREAMS => return Ok((seed, streams)),
            count => format!("{count} streams: at most {MAX_STREAMS}"),
        };
        Err(Fault::new(&Position::Nowhere, "", problem))
    }

    fn stream(&self, index: usize, value: &TomlValue) -> Result<StreamSpec, Fault> {
        let place = Position::Text(value.span());
        let mut stream = StreamSpec::new(index.to_string(), Vec::new(), place);
        let table = value.get_ref().as_table().ok_or_else(|| not(value, "stream", STREAMS))?;
        if let Some(name) = table.get("name") {
            let text = name.get_ref().as_str().ok_or_else(|| not(name, "stream", "a text"));
            stream.name = text?.to_owned();
        }
        let within = format!("stream {}", stream.name);
        let mut entries = in_order(table);
        // Unknown keys come first, so that an error in layers or sizes does not hide them.
        entries.sort_by_key(|(key, _)| STREAM_KEYS.contains(&key.get_ref().as_ref()));
        for (key, value) in entries {
            self.stream_key(&mut stream, key, value).map_err(|fault| fault.within(&within))?;
        }
        if let (Some(_), Some(weight)) = (stream.rate, table.get("weight")) {
            let problem = "the rate says how frequent the stream is: leave one of them out";
            let fault = Fault::new(&Position::Text(weight.span()), "weight", problem);
            return Err(fault.within(&within));
        }
        match table.get("pad") {
            Some(pad) if stream.size.is_some() => {
                let problem = "the size says how long frames are: leave one of them out";
                let fault = Fault::new(&Position::Text(pad.span()), "pad", problem);
                Err(fault.within(&within))
            }
            _ => Ok(stream),
        }
    }

    fn stream_key(
        &self,
        stream: &mut StreamSpec,
        key: &TomlKey,
        value: &TomlValue,
    ) -> Result<(), Fault> {
        match key.get_ref().as_ref() {
            "name" => {}
            "weight" => stream.weight = number(value, 1..=65_536, "weight")? as u32,
            "rate" => stream.rate = Some(rate(value)?),
            "count" => stream.count = Some(number(value, 1..=u64::MAX.into(), "count")? as u64),
            "flows" => stream.flows = number(value, 1..=u32::MAX.into(), "flows")? as u32,
            "size" => stream.size = Some((size(value)?, Position::Text(value.span()))),
            "pad" => {
                let pad = value.get_ref().as_bool();
                stream.pad = pad.ok_or_else(|| not(value, "pad", "true or false"))?;
            }
            "layers" => {
                let right = "a list of layers, like [\"ether\", { ipv4 = { ttl = 9 } }, \"udp\"]";
                let list = value.get_ref().as_array();
                for layer in list.ok_or_else(|| not(value, "layers", right))? {
                    stream.layers.push(self.layer(layer)?);
                }
            }
            _ => return Err(unknown(key, STREAM_KEYS)),
        }
        Ok(())
    }

    fn layer(&self, value: &TomlValue) -> Result<Layer, Fault> {
        let place = Position::Text(value.span());
        let wrong = |problem| Fault::new(&place, "layers", problem);
        if let DeValue::String(name) = value.get_ref() {
            let protocol = Protocol::find(name).map_err(wrong)?;
            return Ok(Layer::new(protocol, place));
        }
        let right = "a layer is its name, or { udp = { dport = 9 } }";
        let table = value.get_ref().as_table().ok_or_else(|| not(value, "layers", right))?;
        let entries = in_order(table);
        let [(key, fields)] = entries.as_slice() else {
            return Err(Fault::new(
                &place,
                "layers",
                format!("here are {} names in one {{ }}: {right}", entries.len()),
            ));
        };
        let place = Position::Text(key.span());
        let protocol = Protocol::find(key.get_ref())
            .map_err(|problem| Fault::new(&place, "layers", problem))?;
        let mut layer = Layer::new(protocol, place);
        let right = "{ } with its fields";
        let table = fields.get_ref().as_table();
        for (key, value) in in_order(table.ok_or_else(|| not(fields, protocol.name, right))?) {
            self.field(&mut layer, key, value)?;
        }
        Ok(layer)
    }

    fn field(&self, layer: &mut Layer, key: &TomlKey, value: &TomlValue) -> Result<(), Fault> {
        let protocol = layer.protocol;
        let place = Position::Text(key.span());
        let field = protocol
            .field(key.get_ref())
            .map_err(|problem| Fault::new(&place, protocol.name, problem))?;
        let place = Position::Text(value.span());
        let object = format!("{}.{}", protocol.name, field.name);
        let wrong = |problem| Fault::new(&place, &*object, problem);
        let given = read_setting(field, value.get_ref(), self.base).map_err(wrong)?;
        layer.set(field, given, place);
        Ok(())
    }
}

/// Returns the entries in the order of the text; the table is sorted by key.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a TomlKey<'i>, &'a TomlValue<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn unknown(key: &TomlKey, known: &[&str]) -> Fault {
    let problem = format!("unknown '{}'; available: {}", key.get_ref(), known.join(", "));
    Fault::new(&Position::Text(key.span()), "", problem)
}

/// Returns the error for a value of the wrong kind; `right` describes a valid one.
fn not(value: &TomlValue, object: &str, right: &str) -> Fault {
    let problem = format!("{} is not what belongs here: {right}", kind(value.get_ref()));
    Fault::new(&Position::Text(value.span()), object, problem)
}

fn number(value: &TomlValue, range: RangeInclusive<u128>, object: &str) -> Result<u128, Fault> {
    let right = format!("a number from {} to {}", range.start(), range.end());
    let number = integer(value.get_ref()).filter(|number| range.contains(number));
    number.ok_or_else(|| match value.get_ref() {
        DeValue::Integer(_) => {
            Fault::new(&Position::Text(value.span()), object, format!("it is {right}"))
        }
        _ => not(value, object, &right),
    })
}

/// Checks that all streams have a rate, or none has.
fn check_rates(streams: &[StreamSpec]) -> Result<(), Fault> {
    let Some(without) = streams.iter().find(|stream| stream.rate.is_none()) else { return Ok(()) };
    if streams.iter().all(|stream| stream.rate.is_none()) {
        return Ok(());
    }
    let problem =
        "other streams have a rate: give each stream one, or give all a weight and use --rate";
    let object = format!("stream {}", without.name);
    Err(Fault::new(&without.place, "rate", problem).within(&object))
}

/// Reads a rate: packets per second, as a number or with a unit.
fn rate(value: &TomlValue) -> Result<u32, Fault> {
    const RIGHT: &str =
        "whole packets per second from 1 to 4294967295: \"10kpps\", \"1Mpps\" or 500";
    const UNITS: [(&str, f64); 4] = [("kpps", 1e3), ("Mpps", 1e6), ("Gpps", 1e9), ("pps", 1.0)];
    let pps = match value.get_ref() {
        DeValue::String(text) => UNITS.iter().find_map(|(unit, factor)| {
            let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            Some((number * factor * 1e3).round() / 1e3)
        }),
        whole => integer(whole).map(|number| number as f64),
    };
    let whole = pps.filter(|pps| pps.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(pps));
    whole.map(|pps| pps as u32).ok_or_else(|| not(value, "rate", RIGHT))
}

fn size(value: &TomlValue) -> Result<Size, Fault> {
    let size = match value.get_ref() {
        DeValue::String(text) => Size::parse(text),
        DeValue::Integer(_) => match integer(value.get_ref()) {
            Some(number) => Size::list(&[number]),
            None => Err("a size is not negative".into()),
        },
        DeValue::Array(array) => {
            let sizes: Option<Vec<_>> = array.iter().map(|one| integer(one.get_ref())).collect();
            match sizes {
                Some(sizes) if !sizes.is_empty() => Size::list(&sizes),
                _ => Err("a list of sizes has numbers only, and at least one".into()),
            }
        }
        _ => return Err(not(value, "size", "60, \"60,512,1514\", \"64-1500\" or \"imix\"")),
    };
    size.map_err(|problem| Fault::new(&Position::Text(value.span()), "size", problem))
}
