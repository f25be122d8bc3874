//! A specification of the packets of a capture file.

use std::collections::HashMap;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::file::read::Reader;
use sluicegate::port::LINKTYPE_ETHERNET;

use super::error::{Origin, Position};
use super::layer::{Layer, RAW, SettingValue};
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
        let mut streams: Vec<StreamSpec> = Vec::new();
        let mut known = HashMap::new();
        let mut number = 0_u64;
        while let Some(record) = reader.next_packet()? {
            number += 1;
            let packet = record.packet();
            let (meta, frame) = (*packet.meta(), packet.head().to_vec());
            let link_type = reader.interfaces().get(meta.interface as usize);
            if link_type.is_none_or(|interface| interface.link_type != LINKTYPE_ETHERNET) {
                return Err(wrong(format!("packet {number} has no Ethernet header")));
            }
            if frame.len() < meta.wire_bytes as usize {
                let problem = "is cut in the file: take a capture without a snap length";
                return Err(wrong(format!("packet {number} {problem}")));
            }
            if let Some(&known) = known.get(&frame) {
                let stream: &mut StreamSpec = &mut streams[known];
                stream.weight += 1;
                continue;
            }
            if streams.len() == MAX_STREAMS {
                let problem = format!(
                    "more than {MAX_STREAMS} different packets: send them by `sluice replay`, or a part \
                     made by `sluice edit --packets`"
                );
                return Err(wrong(problem));
            }
            known.insert(frame.clone(), streams.len());
            let mut layer = Layer::new(&RAW, Position::Nowhere);
            let field = RAW.field("hex").map_err(wrong)?;
            layer.set(field, SettingValue::Bytes(frame), Position::Nowhere);
            let name = format!("packet {number}");
            let mut stream = StreamSpec::new(name, vec![layer], Position::Nowhere);
            stream.pad = false;
            streams.push(stream);
        }
        if streams.is_empty() {
            return Err(wrong("there are no packets".into()));
        }
        let origin = Origin { name: path.display().to_string(), ..Origin::default() };
        Ok(Self { seed: None, streams, origin })
    }
}
