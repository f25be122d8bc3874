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
//! | module | content |
//! | --- | --- |
//! | [`suite`] | the steps of Sluice and of other programs (peers), and their settings |
//! | [`step`] | the programs of a step, and how its packets are counted |
//! | [`rounds`] | the turns, and their progress |
//! | [`observer`] | the observer of a bench, which can stop it, and failures |
//! | [`testbed`] | a pair of connected interfaces, and the CPUs of both sides |
//! | [`process`] | programs: started, waited for, measured, ended; the counts in their output |
//! | [`measure`] | one turn of one step |
//! | [`measurement`] | its result; medians, spreads, ratios round by round |
//! | [`cost`] | the cost of waiting: CPU time at modest rates, round trips |
//! | [`ndr`] | RFC 2544: the throughput of a device between two interfaces |
//! | [`profile`] | the CPU time by cause, and advice |
//! | [`report`] | all results, as JSON |
//! | [`page`] | all results for a browser, or as a chart |
//! | [`table`] | all results as tables in Markdown |
//! | [`check`] | ratios and their thresholds |
//! | [`instructions`] | the length of the hot loops, which does not depend on the load |
//! | [`compare`] | changes from one report to another |
#![deny(unsafe_code)]

pub mod check;
pub mod compare;
pub mod cost;
mod cpu_distance;
pub mod instructions;
pub mod measure;
pub mod measurement;
pub mod ndr;
pub mod observer;
pub mod page;
pub mod process;
pub mod profile;
pub mod report;
pub mod rounds;
pub mod step;
pub mod suite;
pub mod table;
pub mod testbed;

pub use observer::Failure;
