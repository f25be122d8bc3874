//! Measures the cost of each method of receiving, sending, dropping and forwarding packets, and its causes.
//!
//! ```text
//!   suite, peers --> step --> rounds: each step has one turn in each round
//!                               |
//!                     sender --> testbed --> receiver
//!                               |
//!                  measurement, profile --> report --> table, page, check, compare
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`suite`] | the steps of Sluice and of other programs (peers), and their settings |
//! | [`step`] | the programs of a step, and the counter of its packets |
//! | [`rounds`] | runs the turns of all steps |
//! | [`observer`] | progress, stopping a bench, and failures |
//! | [`testbed`] | a pair of connected interfaces, and the CPUs of both sides |
//! | [`process`] | starts, watches and ends programs; reads counts in their output |
//! | [`measure`] | runs one turn of one step |
//! | [`measurement`] | the result of a turn; medians, spreads, ratios within a round |
//! | [`cost`] | the cost of waiting: CPU time at modest rates, round trips |
//! | [`floods`] | what a server delivers while floods hit it |
//! | [`ndr`] | RFC 2544: the throughput of a device between two interfaces |
//! | [`profile`] | samples CPU time, groups it by cause, and gives advice |
//! | [`report`] | all results, as JSON |
//! | [`page`] | a report as an HTML page, or as a chart |
//! | [`table`] | a report as Markdown tables |
//! | [`check`] | ratios of steps, and their thresholds |
//! | [`instructions`] | instruction counts of hot loops |
//! | [`BpfPeer`] | XDP programs that drop with the kernel's own maps |
//! | [`scrub_cost`] | the cost of the scrubber's stages for a packet |
//! | [`scrub_policy`] | policies of the suite `scrub` |
//! | [`compare`] | changes from one report to another |
#![deny(unsafe_code)]

mod bpf_peer;
pub mod check;
pub mod compare;
pub mod cost;
mod cpu_distance;
pub mod floods;
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
pub mod scrub_cost;
pub mod scrub_policy;
pub mod step;
pub mod suite;
pub mod table;
pub mod testbed;

pub use bpf_peer::BpfPeer;
pub use observer::Failure;
