//! Builds a plan's stream from layers.
//!
//! ```text
//!   layers --> draft: headers, changing fields, required checksums
//!          --> template of the longest frame, edits --> checksums, inner before outer
//! ```

use sluicegate_base::text_error::Fault;

use super::layer::writer::{Draft, Fill, HeaderWriter, SumOf};
use super::layer::{ETHER, NUMBER, PAYLOAD, RAW, STAMP, check_tpid};
use super::size::{MAX_FRAME, SizeOrder};
use super::{Defaults, StreamSpec};
use crate::plan::{self, Edit, FieldSource, Operand, Sizes, Sum, Term, fold, words};

/// The minimum Ethernet frame (IEEE 802.3, without the frame check sequence).
const MIN_FRAME: usize = 60;
/// Maximum of layers of a stream.
const MAX_LAYERS: usize = 64;

/// Builds a stream.
pub(super) fn stream(
    index: usize,
    stream: &StreamSpec,
    seed: u64,
    defaults: &Defaults,
) -> Result<plan::StreamPlan, Fault> {
    check_order(stream)?;
    let wrong = |problem| Fault::new(&stream.place, "", problem);
    let mut draft = Draft { stream: index, ..Draft::default() };
    let sizes = sizes(stream, &mut draft);
    for (count, layer) in stream.layers.iter().enumerate() {
        HeaderWriter::write(&mut draft, layer, &stream.layers[count + 1..], defaults)?;
        if draft.template.bytes.len() > usize::from(MAX_FRAME) {
            let problem = format!("the headers up to here are longer than {MAX_FRAME} bytes");
            return Err(Fault::new(&layer.place, layer.protocol.name, problem));
        }
    }
    let end = fill(stream, &mut draft, seed)?;
    let template = &mut draft.template;
    for (bits, from) in draft.lengths {
        match sizes {
            Sizes::Fixed => template.number(bits, (end - from) as u128),
            _ => template.source(bits, 0, FieldSource::Length { headers: from as u16 }),
        }
    }
    let edits = template.finish_edits().map_err(wrong)?;
    let words = template.draws.words().map_err(wrong)?;
    let template = std::mem::take(&mut template.bytes);
    let mut summing = Summing { end, sizes: &sizes, edits: &edits, sums: Vec::new(), template };
    // The headers were written from the outside in, so the reverse order is inner before outer.
    draft.sums.iter().rev().for_each(|sum| summing.add(sum));
    let Summing { sums, template, .. } = summing;
    let (name, count, flows) = (stream.name.clone(), stream.count, stream.flows);
    Ok(plan::StreamPlan { name, template, sizes, count, flows, words, edits, sums })
}

/// Returns the memory of a stream's templates, sizes, lists and sums.
pub(super) fn memory_bytes(stream: &plan::StreamPlan) -> usize {
    let sizes = if let Sizes::InTurn(sizes) = &stream.sizes { sizes.len() * 2 } else { 0 };
    let sums: usize = stream.sums.iter().map(|sum| sum.by_size.len() * 2).sum();
    let parts = stream.edits.iter().flat_map(|edit| &edit.parts);
    let lists = parts.map(|part| match &part.source {
        FieldSource::List { values, .. } => values.len() * 8,
        _ => 0,
    });
    stream.template.len() + sizes + sums + lists.sum::<usize>()
}

/// Checks the order of a stream's layers.
fn check_order(stream: &StreamSpec) -> Result<(), Fault> {
    let layers = &stream.layers;
    let Some(first) = layers.first() else {
        let problem = "no layers: add layers = [\"ether\", \"ipv4\", \"udp\"]";
        return Err(Fault::new(&stream.place, "", problem));
    };
    if !first.protocol.is(&ETHER) && !first.protocol.is(&RAW) {
        let problem = "the first layer is ether, or raw with a header of your own";
        return Err(Fault::new(&first.place, first.protocol.name, problem));
    }
    if layers.len() > MAX_LAYERS {
        let problem = format!("{} layers: at most {MAX_LAYERS}", layers.len());
        return Err(Fault::new(&stream.place, "", problem));
    }
    for pair in layers.windows(2) {
        let (below, above) = (pair[0].protocol, pair[1].protocol);
        let data = above.is(&RAW) || above.is(&NUMBER) || above.is(&PAYLOAD);
        if below.is(&PAYLOAD) || below.is(&STAMP) && !data {
            let problem = format!("nothing but payload follows {}", below.name);
            return Err(Fault::new(&pair[1].place, above.name, problem));
        }
        check_tpid(&pair[0], &pair[1])?;
    }
    Ok(())
}

/// Returns the sizes of a stream's frames.
fn sizes(stream: &StreamSpec, draft: &mut Draft) -> Sizes {
    let varying = stream.size.as_ref().filter(|(size, _)| size.bounds().0 < size.bounds().1);
    let Some((size, _)) = varying else { return Sizes::Fixed };
    match &size.order {
        SizeOrder::InTurn(sizes) => Sizes::InTurn(sizes.clone()),
        SizeOrder::Random { first, last } => {
            let count = last - first + 1;
            let draw = draft.template.draws.draw(plan::VariesBy::Packet, count.into());
            Sizes::AtRandom { first: *first, count, draw }
        }
    }
}

/// Extends the headers to the longest frame. Returns the end of the payload; only padding follows.
fn fill(stream: &StreamSpec, draft: &mut Draft, seed: u64) -> Result<usize, Fault> {
    let headers = draft.template.bytes.len();
    let fill = draft.fill.take();
    let (length, end) = match &stream.size {
        Some((size, place)) => {
            let (least, most) = size.bounds();
            if usize::from(least) < headers {
                let stamped = stream.layers.iter().any(|layer| layer.protocol.is(&STAMP));
                let parts = if stamped { "headers and the stamp have" } else { "headers have" };
                let problem = format!(
                    "{least} bytes are too few: the {parts} {headers}, so at least {headers}"
                );
                return Err(Fault::new(place, "size", problem));
            }
            if let Some(Fill { length: Some(_), place, .. }) = &fill {
                let problem = "the size says how long it is: leave one of them out";
                return Err(Fault::new(place, "payload.length", problem));
            }
            (usize::from(most), usize::from(most))
        }
        None => {
            let carried = headers + fill.as_ref().map_or(0, Fill::natural_length);
            let length = if stream.pad { carried.max(MIN_FRAME) } else { carried };
            (length, if fill.as_ref().is_some_and(Fill::grows) { length } else { carried })
        }
    };
    if length > usize::from(MAX_FRAME) {
        let problem = format!(
            "its headers and payload are longer than a frame of {MAX_FRAME} bytes: set size, which cuts the \
             payload"
        );
        return Err(Fault::new(&stream.place, "", problem));
    }
    draft.template.bytes.resize(length, 0);
    if let Some(fill) = fill {
        fill.put(&mut draft.template.bytes[headers..end], seed, draft.stream);
    }
    Ok(end)
}

/// Plans the checksums of a template, and writes constant ones into it.
struct Summing<'a> {
    /// The end of the payload.
    end: usize,
    sizes: &'a Sizes,
    edits: &'a [Edit],
    sums: Vec<Sum>,
    template: Vec<u8>,
}

impl Summing<'_> {
    fn add(&mut self, wanted: &SumOf) {
        let sum = self.sum(wanted);
        if sum.terms.is_empty() && sum.by_size.is_empty() {
            let checksum = sum.finish.of(!fold(u64::from(sum.constant)));
            self.template[wanted.at..][..2].copy_from_slice(&checksum.to_be_bytes());
        } else {
            self.sums.push(sum);
        }
    }

    fn sum(&self, wanted: &SumOf) -> Sum {
        let from = wanted.from;
        let varies = !matches!(self.sizes, Sizes::Fixed) && wanted.to.is_none();
        let mut constant = 0;
        let to = wanted.to.unwrap_or(self.template.len());
        let mut terms: Vec<_> = self.covered(from, to).collect();
        if let Some((addresses, protocol)) = &wanted.pseudo {
            constant += words(&self.template[addresses.clone()]) + u64::from(*protocol);
            terms.extend(self.covered(addresses.start, addresses.end));
            if varies {
                terms.push(Term { of: Operand::Length { headers: from as u16 }, odd: false });
            } else {
                constant += (self.end - from) as u64;
            }
        }
        let mut by_size = if varies { self.by_size(from) } else { Vec::new() };
        if by_size.iter().all(|sum| Some(sum) == by_size.first()) {
            // All sizes have the same sum because only zeros follow, or the list is empty.
            constant += by_size.first().copied().map_or(0, u64::from);
            by_size = Vec::new();
        }
        if !varies {
            constant += words(&self.template[from..wanted.to.unwrap_or(self.end)]);
        }
        // The sum has at most 2^15 numbers of 16 bits, and a pseudo header.
        let constant = constant as u32;
        Sum { at: wanted.at as u16, constant, by_size, terms, finish: wanted.finish }
    }

    /// Returns the edits and checksums in a range of bytes.
    fn covered(&self, from: usize, to: usize) -> impl Iterator<Item = Term> {
        let edits = (0..).map(Operand::Edit).zip(self.edits.iter().map(|edit| edit.at));
        let sums = (0..).map(Operand::Sum).zip(self.sums.iter().map(|sum| sum.at));
        let placed = edits.chain(sums).map(|(of, at)| (of, usize::from(at)));
        let covered = placed.filter(move |(_, at)| (from..to).contains(at));
        covered.map(move |(of, at)| Term { of, odd: (at - from) % 2 == 1 })
    }

    /// Returns the sums of the template's bytes from an offset to the end of each size.
    fn by_size(&self, from: usize) -> Vec<u16> {
        let shortest = self.sizes.shortest(&self.template);
        let mut total = words(&self.template[from..shortest]);
        let mut sums = vec![fold(total)];
        for (place, byte) in self.template.iter().enumerate().skip(shortest) {
            let upper = (place - from).is_multiple_of(2);
            total += u64::from(*byte) << if upper { 8 } else { 0 };
            sums.push(fold(total));
        }
        sums
    }
}
