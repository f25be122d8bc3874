//! Which packets of a file can be sent: those that begin as the others do where they are sent to.

use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::file::Format;
use sluicegate::file::read::Reader;
use sluicegate::port::{Interface, LINKTYPE_ETHERNET, PortName};

/// Looks for an interface of a link type in a file, as far into it as that takes; without one, whether
/// it is a capture at all.
///
/// # Errors
/// There is none; the file cannot be read.
pub(super) fn check(file: &PortName, link_type: Option<u16>) -> Result<()> {
    let mut reader = Reader::open(Path::new(file.name()))?;
    let Some(link_type) = link_type else { return Ok(()) };
    loop {
        if reader.interfaces().iter().any(|interface| interface.link_type == link_type) {
            return Ok(());
        }
        // Where it is broken, sending will tell; nothing before that can be sent.
        if reader.format() == Format::Pcap || !matches!(reader.next_packet(), Ok(Some(_))) {
            return Err(refusal(file, reader.interfaces(), link_type));
        }
    }
}

/// Why nothing of a file can be sent.
pub(super) fn refusal(file: &PortName, interfaces: &[Interface], link_type: u16) -> Error {
    let mut others: Vec<u16> = interfaces.iter().map(|interface| interface.link_type).collect();
    others.sort_unstable();
    others.dedup();
    let others: Vec<String> = others.into_iter().map(named).collect();
    file.error(format!(
        "no packet of it can be sent here: they are of link type {}, and what is sent is of {}",
        others.join(", "),
        named(link_type)
    ))
}

/// A link type's number in tcpdump.org's list, and what it is where many know it.
fn named(link_type: u16) -> String {
    let name = match link_type {
        LINKTYPE_ETHERNET => "Ethernet",
        0 => "BSD loopback",
        101 | 12 | 228 | 229 => "raw IP",
        105 => "802.11",
        113 => "Linux cooked",
        127 => "802.11 with radiotap",
        276 => "Linux cooked v2",
        _ => return link_type.to_string(),
    };
    format!("{link_type} ({name})")
}
