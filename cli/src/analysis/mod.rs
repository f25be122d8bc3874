//! The analysis of stamped packets: made while a queue is received, and reported.

mod report;
mod visitor;

pub use report::{latency_json, print, print_latencies, to_json};
pub use visitor::{AnalysisSoFar, AnalysisVisitor, analysis_of, visitors};
