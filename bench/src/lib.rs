//! Measures the cost of each way of receiving, sending, dropping and forwarding packets, and explains it.
//!
//! ```text
//!   suites, peers --> steps --> rounds: every step has its turn
//!                                   |
//!                      sender --> the testbed --> receiver
//!                                   |
//!                       measurements, causes --> spreads, ratios, advice --> a report
//! ```
//!
//! | module | what it knows |
//! | --- | --- |
//! | [`suite`] | the steps, Sluice's and other programs' (peers), and their settings |
//! | [`step`] | what runs at which end, and how its packets are counted |
//! | [`rounds`] | the turns, their progress, and what is left of them |
//! | [`testbed`] | two interfaces that are joined, and the CPUs of both sides |
//! | [`device`] | what the host between two others can be |
//! | [`process`] | programs: started, waited for, measured, ended |
//! | [`process_output`] | what programs write, and the counts in it |
//! | [`measure`] | one turn of one step |
//! | [`measurement`] | what that showed |
//! | [`cost`] | what waiting costs: CPU time at modest rates, round trips |
//! | [`ndr`] | RFC 2544: what a device between two interfaces keeps up with |
//! | [`profile`] | where the CPUs' time went, by cause, and what to do about it |
//! | [`statistics`] | medians, spreads, ratios round by round; their format |
//! | [`report`] | all of it, as JSON says it |
//! | [`page`] | the same for a browser, or as a chart |
//! | [`table`] | the ratios that are to be kept as a table in Markdown |
//! | [`check`] | ratios that are to be kept |
//! | [`instructions`] | how long the hot loops are: what a busy machine does not change |
//! | [`compare`] | what moved from one report to another |
//! | [`machine`] | where it ran |
#![deny(unsafe_code)]

pub mod check;
pub mod compare;
pub mod cost;
mod cpu_distance;
pub mod device;
mod failure;
pub mod instructions;
pub mod machine;
pub mod measure;
pub mod measurement;
pub mod ndr;
pub mod page;
pub mod process;
pub mod process_output;
pub mod profile;
pub mod report;
pub mod rounds;
pub mod statistics;
pub mod step;
pub mod suite;
pub mod table;
pub mod testbed;

pub use failure::Failure;
