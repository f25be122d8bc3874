//! Streams as they were said: layers, fields, what varies and how.

use std::fmt::{self, Write};

use super::write_lines;
use crate::plan::{Per, Plan};
use crate::spec::form::Form;
use crate::spec::layer::{Field, Given, Layer};
use crate::spec::protocols::bytes::Hex;
use crate::spec::value::{Set, Value};
use crate::spec::{Spec, Stream};

/// The number of list values, bytes or characters shown.
const SHOWN: usize = 8;
/// Fields that are shown even where the specification does not set them.
const ALWAYS: &[&str] =
    &["src", "dst", "sport", "dport", "spa", "tpa", "op", "type", "flags", "vni", "label"];

pub(super) fn write(spec: &Spec, plan: &Plan, to: &mut dyn Write) -> fmt::Result {
    for (index, stream) in spec.streams.iter().enumerate() {
        if index > 0 {
            writeln!(to)?;
        }
        let turns = plan.turns.iter().filter(|turn| usize::from(**turn) == index).count();
        let share = match (turns, plan.turns.len()) {
            (turns, all) if turns == all => "every packet".to_owned(),
            (turns, all) => format!("{turns} of {all} packets"),
        };
        let flows = match stream.flows {
            1 => "1 flow".to_owned(),
            flows => format!("{flows} flows"),
        };
        let size = match (&stream.size, plan.streams.get(index)) {
            (Some((size, _)), _) => size.to_string(),
            (None, planned) => planned.map_or(0, |stream| stream.template.len()).to_string(),
        };
        writeln!(to, "stream {}: {share}, {flows}, {size} bytes", stream.name)?;
        write_lines(&layers(stream), to)?;
    }
    Ok(())
}

fn layers(stream: &Stream) -> Vec<(String, String)> {
    let line = |layer: &Layer| (layer.protocol.name.to_owned(), fields(layer).join(", "));
    stream.layers.iter().map(line).collect()
}

/// The fields of a layer of which something was said, and those that one would ask for.
fn fields(layer: &Layer) -> Vec<String> {
    let said = |field: &Field| {
        if let Some(setting) = layer.setting(field.name) {
            return match &setting.given {
                Given::Switch(on) => on.then(|| field.name.to_owned()),
                said => Some(format!("{} {}", field.name, given(field, said))),
            };
        }
        let asked = !field.default.is_empty() && ALWAYS.contains(&field.name);
        asked.then(|| format!("{} {}", field.name, field.default))
    };
    layer.protocol.fields.iter().filter_map(said).collect()
}

fn given(field: &Field, given: &Given) -> String {
    match given {
        Given::Value(said) => value(said, field.form()),
        Given::Right => "right".into(),
        Given::Bad => "bad".into(),
        Given::Switch(on) => on.to_string(),
        Given::Bytes(bytes) if bytes.len() <= SHOWN => Hex(bytes).to_string(),
        Given::Bytes(bytes) => format!("{}… ({} bytes)", Hex(&bytes[..SHOWN]), bytes.len()),
        Given::TcpOptions(options) => {
            let options: Vec<_> = options.iter().map(ToString::to_string).collect();
            options.join("; ")
        }
    }
}

/// A value, and how it varies.
fn value(value: &Value, form: Form) -> String {
    let per = if value.per == Per::Flow { " by flow" } else { "" };
    let one = |number: u128| Value::from(number).shown(form).to_string();
    match &value.set {
        Set::One(number) => one(*number),
        Set::List { values, random } => {
            let way = if *random { "at random" } else { "in turn" };
            let shown: Vec<_> = values.iter().take(SHOWN).map(|number| one(*number)).collect();
            let more = match values.len() {
                ..=SHOWN => String::new(),
                all => format!(",… ({all})"),
            };
            format!("{}{more} ({way}{per})", shown.join(","))
        }
        Set::Counter { first, last, step } => {
            let step = if *step > 1 { format!(" in steps of {step}") } else { String::new() };
            format!("{}..{} (counted{step}{per})", one(*first), one(*last))
        }
        Set::Range { first, last } => {
            let form = form.nameless();
            let (first, last) = (Value::from(*first), Value::from(*last));
            format!("{}-{} (at random{per})", first.shown(form), last.shown(form))
        }
        Set::Prefix { address, bits } => format!("{}/{bits} (at random{per})", one(*address)),
    }
}
