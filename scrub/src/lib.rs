//! A DDoS filter in XDP.
//!
//! ```text
//!   policy --+--> tables --> memory of the XDP stages --> verdict on each packet
//!            `--> oracle: the same verdict by plain code, to compare with
//! ```

pub mod policy;
pub mod prefix;
