//! What each way of receiving, sending and dropping packets costs, and why.
//!
//! ```text
//!   ladders, peers --> steps --> rounds: every step has its turn
//!                                   |
//!                      sender --> the bed --> receiver
//!                                   |
//!                       measurements, causes --> spreads, ratios, advice --> a report
//! ```
//!
//! | module | what it knows |
//! | --- | --- |
//! | [`measurement`] | what one step showed in one round |
//! | [`profile`] | where the CPUs' time went, by cause, and what to do about it |
//! | [`statistics`] | medians, spreads, ratios round by round |
#![deny(unsafe_code)]

pub mod measurement;
pub mod profile;
pub mod statistics;
