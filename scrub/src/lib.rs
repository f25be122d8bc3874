//! A DDoS filter in XDP.
//!
//! ```text
//!   policy --+--> tables --> memory of the XDP stages --> verdict on each packet
//!            `--> oracle: the same verdict by plain code, to compare with
//! ```

pub mod buckets;
pub mod cause;
pub mod counters;
pub mod image;
pub mod oracle;
pub mod packet;
pub mod policy;
pub mod prefix;
pub mod profiles;
pub mod program;
pub mod rehearsal;
pub mod rules;
pub mod scrubber;
pub mod sets;
pub mod tables;
pub mod testing;
