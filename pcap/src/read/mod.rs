//! Reading capture files: pcap in all its variants and pcapng, plain or compressed with zstd
//! or lz4, from a file or a pipe.
//!
//! ```text
//!   source            buffer                     reader
//!   file, pipe,  -->  bytes, read as they  -->   finds records where they lie:
//!   decoder           arrive                     pcap.rs, pcapng.rs
//! ```
//!
//! What is accepted is what libpcap 1.10 accepts, and more where a file makes sense that
//! libpcap refuses: interfaces of several link types, sections of several byte orders.
//! Nothing is allocated on a file's word: a record's length is checked against libpcap's
//! limits before the buffer grows to hold it.

mod options;
mod pcap;
mod pcapng;
mod pseudo;
mod reader;
mod source;

pub use reader::{Outcome, Placed};
pub use reader::{Reader, Record};

use std::ops::Range;

use sluicegate_base::ring::Meta;

/// The result of parsing the beginning of a run of bytes.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// A packet, and the size of its record.
    Packet { record_bytes: usize, found: PacketSpan },
    /// A record without a packet, of this size.
    Skip(usize),
    /// Too few bytes: this many are needed.
    Need(usize),
}

/// A packet in a record: what is said of it, and where in the record its parts lie.
#[derive(Debug, PartialEq, Eq)]
struct PacketSpan {
    meta: Meta,
    data: Range<usize>,
    /// pcapng's options; empty where there are none.
    options: Range<usize>,
}

/// The most bytes libpcap believes a packet of a link type to have; a greater length is taken
/// for damage (libpcap's `max_snaplen_for_dlt`).
fn packet_limit(link_type: u16) -> u32 {
    const DBUS: u16 = 231;
    const USBPCAP: u16 = 249;
    const EBHSCR: u16 = 279;
    match link_type {
        DBUS => 128 << 20,
        EBHSCR => 8 << 20,
        USBPCAP => 1 << 20,
        _ => 256 << 10,
    }
}

/// The most bytes a packet of an interface can have, from the snapshot length the file gives
/// it: 0 and what does not fit an `int` stand for "no limit" (libpcap's
/// `pcap_adjust_snapshot`).
fn snapshot_limit(link_type: u16, snaplen: u32) -> u32 {
    match snaplen {
        1..=0x7fff_ffff => snaplen,
        _ => packet_limit(link_type),
    }
}
