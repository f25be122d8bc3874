//! Generates packets from specifications, replays capture files, and analyses received packets.
//!
//! ```text
//!   file, flags --> spec --> plan --+--> frames --> a port's transmit ring --> the wire
//!                                   +--> eBPF ----> live frames -------------> the wire
//!                                                                                  |
//!   report <-- analyse <-- a port's receive ring <---------------------------------'
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`plan`] | the constant bytes of frames, the edits from packet to packet, checksums |
//! | [`rate`] | paces, timetables, and lateness against them |
//! | [`rewrite`] | rules that change packets of capture files |
//! | [`source`] | packets for a transmit ring, from a plan or a file, when they are due |
//! | [`live`] | a plan as a kernel program that sends live frames |
//! | [`spec`] | specifications: a file, flags, profiles |
//! | [`show`] | a listing of streams and packets |
//! | [`analyse`] | losses, duplicates, order and delays of stamped packets |
#![forbid(unsafe_code)]

pub mod analyse;
pub mod live;
pub mod plan;
pub mod rate;
pub mod rewrite;
pub mod show;
pub mod source;
pub mod spec;
