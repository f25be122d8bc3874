//! Commands that send: what they share.
//!
//! ```text
//!   source: made, or read from a file --> worker: a thread and a transmit ring --+
//!   plan --> program in the kernel: live frames ---------------------------------+--> the wire
//!   run: time, signals, status        report: attempted, accepted, sent
//! ```

mod live;
mod rate;
mod report;
mod ring;
mod run;
mod safety;

pub use live::LiveSender;
pub use rate::Rate;
pub use report::Sent;
pub use ring::{RingSender, monotonic_ns};
pub use run::{Orders, Sender, run};
pub use safety::{interface_of, link_speed, may_send};
