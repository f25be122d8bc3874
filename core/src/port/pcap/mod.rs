//! `pcap:FILE`, a capture file: a source when opened to receive, a sink when opened to send.
//! `pcap:-` is standard input and standard output.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | source: a pcap-filter expression | all |
//! | `snaplen` | maximum bytes kept of a packet | 262144 to write, all to read |
//! | `slots` | slots in the ring | 512 |
//!
//! A source detects the format from the file's content, whatever its name. A sink takes format and
//! compression from the name: `a.pcap`, `a.pcapng.zst`, `a.pcap.lz4`, `a.pcap.gz`; pcapng if the name
//! contains neither.

mod sink;
mod source;

use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::queue::Port;
use crate::error::Result;

pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    // Before a sink empties the file.
    name.check_queue_count(options, 1)?;
    match options.usage {
        Directions::Receive => source::open(name, options),
        Directions::Send => sink::open(name, options),
        Directions::Both => Err(name.error(
            "a capture file is read or written, not both at once: open one file to receive \
             and another to send",
        )),
    }
}
