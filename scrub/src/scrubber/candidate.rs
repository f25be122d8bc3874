//! A policy that is to go live: its tables, compared with the oracle.

use std::io;

use sluicegate::error::{Error, Result};

use super::LIMIT_KEYS;
use super::memory::ensure_available;
use super::report::{NamedCause, Names};
use crate::cause::Decision;
use crate::counters;
use crate::oracle::Oracle;
use crate::policy::Policy;
use crate::program::random_number;
use crate::program::{LoadedTables, Program};
use crate::testing::{FrameGenerator, Random};

/// Frames near the policy's edges that are compared.
const GENERATED: usize = 1000;
/// The time between two of them, in ns.
const GAP_NS: u64 = 1000;
/// Frames of at least a header, which BPF_PROG_RUN accepts, and at most a page with its head and tail room.
const FRAME_BYTES: std::ops::RangeInclusive<usize> = 14..=3000;

/// A frame and the time of its arrival, in ns.
pub type TimedFrame = (u64, Vec<u8>);

/// A policy and its tables, which the kernel has. Any thread can make it.
#[derive(Debug)]
pub struct Candidate {
    pub(super) policy: Policy,
    pub(super) tables: LoadedTables,
    /// Bytes of the tables.
    pub(super) bytes: u64,
}

impl Candidate {
    /// Makes a policy's tables.
    ///
    /// # Errors
    /// The policy does not fit; too little memory, also for [`check`](Self::check).
    pub fn build(policy: Policy) -> Result<Self> {
        let tables = super::build(&policy)?;
        let bytes = tables.bytes();
        ensure_available("the tables of the policy", bytes + Program::map_bytes(LIMIT_KEYS)?)?;
        Ok(Self { policy, tables: LoadedTables::load(&tables)?, bytes })
    }

    /// Compares the tables with the oracle: on recent frames, in the order of their times, then on generated ones.
    ///
    /// # Errors
    /// They decide differently on a frame, which the error has; a missing privilege.
    pub fn check(&self, recent: &[TimedFrame]) -> Result<()> {
        let mut random = Random::new(random_number());
        let generator = FrameGenerator::new(&self.policy);
        let last = recent.iter().map(|it| it.0).max().unwrap_or(1_000_000_000);
        let times = (1..=GENERATED as u64).map(|it| last + it * GAP_NS);
        let generated = times.map(|time| (time, generator.frame(&mut random)));
        let mut recent: Vec<_> = recent.to_vec();
        recent.sort_by_key(|it| it.0);
        compare(&self.policy, &self.tables, recent.into_iter().chain(generated))
    }
}

/// Compares tables with a policy's oracle, with the same clock.
fn compare(
    policy: &Policy,
    tables: &LoadedTables,
    frames: impl Iterator<Item = TimedFrame>,
) -> Result<()> {
    let mut program = Program::for_rehearsal(LIMIT_KEYS)?;
    program.switch(tables)?;
    let mut oracle = Oracle::new(policy);
    let key = [random_number(), random_number()];
    program.set_cookie_key(key);
    oracle.set_cookie_key(key);
    for (time, frame) in frames.filter(|it| FRAME_BYTES.contains(&it.1.len())) {
        program.set_time(time);
        let (found, right) = (program.rehearse(&frame)?, oracle.decide(&frame, time));
        if found != right {
            let hex: String = frame.iter().map(|it| format!("{it:02x}")).collect();
            let error = io::Error::other(format!(
                "its tables {}, but the oracle would {}; the packet is {hex}",
                text(policy, found),
                text(policy, right),
            ));
            return Err(Error::system("check", "the new policy", error)
                .remedy("report this with the policy; until then, change the part that it names"));
        }
    }
    Ok(())
}

/// Describes a decision: `drop it by set bad`.
fn text(policy: &Policy, Decision { verdict, cause }: Decision) -> String {
    let verb = verdict.name();
    let named = Names::of(policy).of_counter(counters::of(cause, verdict));
    match named {
        Some(NamedCause { stage, name, .. }) if stage.name() == name => {
            format!("{verb} it by {name}")
        }
        Some(NamedCause { stage, name, .. }) => format!("{verb} it by {} {name}", stage.name()),
        None => format!("{verb} it by {cause:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FrameSpec;

    const DROP: &str = "[set.bad]\naction = 'drop'\nnetworks = ['203.0.113.0/24']\n";

    /// Returns what was made, or says why it cannot be made here.
    fn made(candidate: Result<Candidate>) -> Option<Candidate> {
        match candidate {
            Err(error @ Error::Privilege { .. }) => {
                println!("skipped: {error}");
                None
            }
            made => Some(made.unwrap()),
        }
    }

    fn frame() -> TimedFrame {
        (7, FrameSpec::udp(1000, 9, &[0; 30]).between("203.0.113.1", "198.18.0.2").build())
    }

    #[test]
    fn equal_tables_are_accepted() {
        let Some(candidate) = made(Candidate::build(Policy::parse(DROP).unwrap())) else { return };
        candidate.check(&[frame()]).unwrap();
    }

    #[test]
    fn a_difference_is_an_error_with_the_packet() {
        let policy = Policy::parse(DROP).unwrap();
        let Some(other) = made(Candidate::build(Policy::default())) else { return };
        let candidate = Candidate { policy, ..other };
        let error = candidate.check(&[frame()]).unwrap_err().to_string();
        let said = "check the new policy: its tables pass it by default, but the oracle would drop it by set bad";
        assert!(error.contains(said), "{error}");
        let hex: String = frame().1.iter().map(|it| format!("{it:02x}")).collect();
        assert!(error.contains(&hex), "{error}");
    }
}
