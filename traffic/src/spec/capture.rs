//! A specification of the packets of a capture file.

use std::collections::HashMap;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::file::read::Reader;
use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate_base::headers::ETHERNET_BYTES;

use sluicegate_base::text_error::{Origin, Position};

use super::layer::{Layer, RAW, SettingValue};
use super::size::{MAX_FRAME, MAX_TURNS};
use super::{MAX_STREAMS, Spec, StreamSpec};

impl Spec {
    /// Makes a stream of each different packet of a capture file, weighted by how often the file has it.
    ///
    /// # Errors
    /// The file cannot be read, or has no packets; a packet is cut or has no Ethernet header; there are too
    /// many.
    pub fn of_capture(path: &Path) -> Result<Self> {
        let wrong = |problem: String| Error::Usage(format!("{}: {problem}", path.display()));
        let mut reader = Reader::open(path)?;
        // By content: the place among the streams, the first packet's number, and how many there are.
        let mut known: HashMap<Vec<u8>, (usize, u64, u32)> = HashMap::new();
        let mut number = 0_u64;
        while let Some(record) = reader.next_packet()? {
            number += 1;
            let packet = record.packet();
            let (meta, frame) = (*packet.meta(), packet.head().to_vec());
            let link_type = reader.interfaces().get(meta.interface as usize);
            let problem = if link_type.is_none_or(|it| it.link_type != LINKTYPE_ETHERNET) {
                "has no Ethernet header"
            } else if frame.len() < meta.wire_bytes as usize {
                "is cut in the file: take a capture without a snap length"
            } else if !(ETHERNET_BYTES..=MAX_FRAME.into()).contains(&frame.len()) {
                "is shorter than an Ethernet header, or longer than 65535 bytes"
            } else if known.len() == MAX_STREAMS && !known.contains_key(&frame) {
                "is one too many: at most 4096 different ones; send the file by `sluice replay`, or a part \
                 made by `sluice edit --packets`"
            } else if number > MAX_TURNS {
                "is one too many: at most 65536; send the file by `sluice replay`, or a part made by \
                 `sluice edit --packets`"
            } else {
                let place = known.len();
                known.entry(frame).or_insert((place, number, 0)).2 += 1;
                continue;
            };
            return Err(wrong(format!("packet {number} {problem}")));
        }
        if known.is_empty() {
            return Err(wrong("there are no packets".into()));
        }
        let mut frames: Vec<_> = known.into_iter().collect();
        frames.sort_unstable_by_key(|(_, (place, ..))| *place);
        let field = RAW.field("hex").map_err(wrong)?;
        let stream = |(frame, (_, number, weight))| {
            let mut layer = Layer::new(&RAW, Position::Nowhere);
            layer.set(field, SettingValue::Bytes(frame), Position::Nowhere);
            let name = format!("packet {number}");
            let stream = StreamSpec::new(name, vec![layer], Position::Nowhere);
            StreamSpec { weight, pad: false, ..stream }
        };
        let streams = frames.into_iter().map(stream).collect();
        let origin = Origin { name: path.display().to_string(), ..Origin::default() };
        Ok(Self { seed: None, streams, origin })
    }
}
