//! The flags of the suites.

use std::path::PathBuf;
use std::time::Duration;

use sluicegate::error::Error;
use sluicegate_bench::check::is_needed_for_netmap;
use sluicegate_bench::rounds::BenchPlan;
use sluicegate_bench::suite::{SuiteKind, Sweep};
use sluicegate_bench::testbed::Side;

use crate::units::duration_in;

/// Flags of every suite.
#[derive(clap::Args)]
pub struct Options {
    /// Measure other installed programs too
    #[arg(long)]
    pub peers: bool,

    #[command(flatten)]
    turns: Turns,

    /// Frame bytes without check sequence, 60 to 9000
    #[arg(long, default_value = "60", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(60..=9000))]
    sizes: Vec<u32>,

    /// Packets of a system call, or of a move by `sluice forward`, 1 to 1024 [default: the port's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    batches: Vec<u32>,

    /// Queues of each lab interface
    #[arg(long, default_value = "1", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: Vec<u32>,

    /// CPUs of the measured program, if it can use several [default: one, and all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: Vec<u32>,

    /// Rules in front of the drop; the last one matches
    #[arg(long, default_value = "1,100,10000", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rules: Vec<u32>,

    /// Do not sample where CPU time goes
    #[arg(long)]
    no_causes: bool,

    /// Two connected interfaces instead of a lab: the sender's and the receiver's
    #[arg(long, value_name = "[NETNS/]A,[NETNS/]B")]
    between: Option<String>,

    #[command(flatten)]
    pub shown: OutputOptions,
}

/// How often and how long steps are measured.
#[derive(clap::Args)]
pub struct Turns {
    /// Rounds; every step has a turn in each
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
    pub rounds: u32,

    /// Sending time of each turn: 1s, 500ms
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = turn_time)]
    pub seconds: Duration,
}

/// Flags for the output of a result.
#[derive(clap::Args)]
pub struct OutputOptions {
    /// Report changes since this --json result that exceed both spreads
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,

    /// Write the result as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write a chart of the steps with thresholds (SVG)
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write tables into a Markdown document: the thresholds' ratios (or the hot loops) between
    /// <!-- bench --> and <!-- /bench -->, all steps between <!-- bench: all steps --> and <!-- /bench -->
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Parses the length of a turn; shorter ones show nothing.
pub fn turn_time(text: &str) -> Result<Duration, String> {
    duration_in(Duration::from_millis(50)..=Duration::MAX, text, "the minimum is 50ms")
}

impl Options {
    /// All suites; without those that need a lab if existing interfaces are used.
    pub fn all(&self) -> Vec<SuiteKind> {
        let can_run = |kind: &SuiteKind| self.between.is_none() || !kind.needs_lab();
        SuiteKind::ALL.into_iter().filter(can_run).collect()
    }

    /// The plan of the steps of netmap's programs, and of those that they are compared with.
    pub fn netmap(&self) -> Result<BenchPlan, Error> {
        let kinds = self
            .all()
            .into_iter()
            .filter(|kind| !matches!(kind, SuiteKind::Drop | SuiteKind::Scrub))
            .collect();
        let only: Option<fn(SuiteKind, &str) -> bool> = Some(is_needed_for_netmap);
        Ok(BenchPlan { only, with_peers: true, ..self.bench(kinds)? })
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
        let text = format!("--between {text}: name two interfaces: [NETNS/]A,[NETNS/]B");
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
