//! Packets made to a specification, by every sender; replayed from files; and counted at the
//! other end.
//!
//! ```text
//!   file, flags --> spec --> plan --+--> frames --> a port's transmit ring --> the wire
//!                                   +--> eBPF ----> live frames -------------> the wire
//!                                                                                  |
//!   report <-- analyse <-- a port's receive ring <---------------------------------'
//! ```
//!
//! | module | what it knows |
//! | --- | --- |
//! | [`plan`] | what is sent, worked out: what stays of a frame, what changes, and how |
//! | [`rate`] | how fast, and how near to it |
//! | [`rewrite`] | other addresses for packets that are sent once more |
//! | [`source`] | packets for a transmit ring: made to a plan, or read from a file; when they are due |
//! | [`live`] | a plan as a program of the kernel: live frames |
//! | [`spec`] | what is to be sent, as people say it: a file, flags, profiles |
//! | [`show`] | what will be sent, for people |
//! | [`analyse`] | what became of stamped packets on their way |
#![forbid(unsafe_code)]

pub mod analyse;
pub mod live;
pub mod plan;
pub mod rate;
pub mod rewrite;
pub mod show;
pub mod source;
pub mod spec;
#[cfg(test)]
mod test_frame;
