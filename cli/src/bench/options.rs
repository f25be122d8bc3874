//! The flags of the suites.

use std::path::PathBuf;
use std::time::Duration;

use sluicegate::error::Error;
use sluicegate_bench::rounds::BenchPlan;
use sluicegate_bench::suite::{SuiteKind, Sweep};
use sluicegate_bench::testbed::Side;

use crate::units::duration_in;

/// Flags of every suite.
#[derive(clap::Args)]
pub struct Options {
    /// Measure other projects' programs that are installed, too
    #[arg(long)]
    pub peers: bool,

    #[command(flatten)]
    turns: Turns,

    /// Bytes of a frame without its check sequence, 60 to 9000
    #[arg(long, default_value = "60", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(60..=9000))]
    sizes: Vec<u32>,

    /// Packets per batch, for steps that have a choice, 1 to 1024 [default: the port's own]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    batches: Vec<u32>,

    /// Queues of each interface of the lab
    #[arg(long, default_value = "1", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: Vec<u32>,

    /// CPUs of the measured program, for steps that can use several [default: one, and all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: Vec<u32>,

    /// Rules before a packet is dropped
    #[arg(long, default_value = "1,100,10000", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rules: Vec<u32>,

    /// Do not sample the causes of CPU time
    #[arg(long)]
    no_causes: bool,

    /// A pair of connected interfaces in place of a lab: the sender's and the receiver's
    #[arg(long, value_name = "[NETNS/]A,[NETNS/]B")]
    between: Option<String>,

    #[command(flatten)]
    pub shown: OutputOptions,
}

/// How often and how long steps are measured.
#[derive(clap::Args)]
pub struct Turns {
    /// Rounds: each step has a turn in each
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
    pub rounds: u32,

    /// How long packets are sent in a turn: 1s, 500ms
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = turn_time)]
    pub seconds: Duration,
}

/// Flags for the output of a result.
#[derive(clap::Args)]
pub struct OutputOptions {
    /// Report changes from an earlier --json result that are larger than the spreads
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,

    /// Also write the result as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Also write a chart of the steps of thresholds (SVG)
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Also write tables into a Markdown document: the thresholds (or hot loops) between its lines <!-- bench -->
    /// and <!-- /bench -->, or all steps between <!-- bench: all steps --> and <!-- /bench -->
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Parses the length of a turn; shorter ones show nothing.
pub fn turn_time(text: &str) -> Result<Duration, String> {
    duration_in(Duration::from_millis(50)..=Duration::MAX, text, "50ms is the shortest")
}

impl Options {
    /// All suites; without forwarding if existing interfaces are used, because no host is between them.
    pub fn all(&self) -> Vec<SuiteKind> {
        let can_run = |kind: &SuiteKind| self.between.is_none() || !kind.needs_middle();
        SuiteKind::ALL.into_iter().filter(can_run).collect()
    }

    /// The plan that the flags describe.
    pub fn bench(&self, kinds: Vec<SuiteKind>) -> Result<BenchPlan, Error> {
        Ok(BenchPlan {
            kinds,
            only: None,
            with_peers: self.peers,
            rounds: self.turns.rounds,
            time: self.turns.seconds,
            sweep: Sweep {
                sizes: self.sizes.clone(),
                batches: self.batches.clone(),
                queues: self.queues.clone(),
                cores: self.cores.clone(),
                rules: self.rules.clone(),
            },
            causes: !self.no_causes,
            between: self.between.as_deref().map(sides).transpose()?,
        })
    }
}

/// Parses "lab-left/left0,lab-right/right0" as two sides.
pub fn sides(text: &str) -> Result<(Side, Side), Error> {
    let right = || {
        let text = format!("--between {text}: it takes two interfaces, [NETNS/]A,[NETNS/]B");
        Error::Usage(text)
    };
    let side = |text: &str| {
        let (netns, interface) = match text.rsplit_once('/') {
            Some((netns, interface)) => (Some(netns.to_owned()), interface),
            None => (None, text),
        };
        let empty = interface.is_empty() || netns.as_deref() == Some("");
        (!empty).then(|| Side { netns, interface: interface.to_owned() })
    };
    let (a, b) = text.split_once(',').ok_or_else(right)?;
    side(a).zip(side(b)).ok_or_else(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_interfaces_are_named_with_or_without_a_namespace() {
        let (left, right) = sides("lab-left/left0,eth1").unwrap();
        assert_eq!((left.netns.as_deref(), left.interface.as_str()), (Some("lab-left"), "left0"));
        assert_eq!((right.netns, right.interface.as_str()), (None, "eth1"));
        for text in ["eth1", "eth1,", ",eth1", "a/,b", "/a,b"] {
            let error = sides(text).unwrap_err().to_string();
            assert!(error.contains("two interfaces"), "{text}: {error}");
        }
    }
}
