//! The final report of a traffic command.
//!
//! ```text
//!   parts: packets, threads, directions, files --> result: one port's, or that of several together
//!   result --> json: the contract is docs/json.md
//!          --> text: for people
//! ```

mod json;
mod parts;
mod result;
mod text;

pub use json::ledger_value;
pub use parts::{DirectionReport, FilesReport, L1_OVERHEAD_BYTES, MemoryReport, Thread, Traffic};
pub use result::Report;
