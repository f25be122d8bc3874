//! The names of a program's counters, and earlier counts, for the owner that takes the program over.
//!
//! As text, a line for each: the counter's number or `-` for an earlier count, stage, verdict, packets, bytes, name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::report::{NamedCause, Names, Report, StageName};
use crate::counters::COUNTERS;
use crate::policy::{Policy, Verdict};
use crate::program::Count;

/// The names of a program's counters, and the counts of earlier policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterNames {
    present: BTreeMap<u16, NamedCause>,
    earlier: Report,
}

impl CounterNames {
    pub(super) fn of(policy: &Policy, earlier: &Report) -> Self {
        let names = Names::of(policy);
        let present = (0..COUNTERS).filter_map(|it| Some((it, names.of_counter(it)?)));
        Self { present: present.collect(), earlier: earlier.clone() }
    }

    /// Returns all that was counted, with the last counts of the program.
    pub(super) fn report(&self, last: &[Count]) -> Report {
        let mut report = self.earlier.clone();
        report.add(Report::of(last, |counter| self.present.get(&counter).cloned()));
        report
    }
}

/// Writes the text form.
impl fmt::Display for CounterNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |number: String, cause: &NamedCause, count: Count| {
            let verdict = cause.verdict.map_or("-", Verdict::name);
            let Count { packets, bytes } = count;
            writeln!(
                f,
                "{number} {} {verdict} {packets} {bytes} {}",
                cause.stage.name(),
                cause.name
            )
        };
        for (counter, cause) in &self.present {
            line(counter.to_string(), cause, Count::default())?;
        }
        self.earlier.causes().try_for_each(|(cause, count)| line("-".into(), cause, count))
    }
}

/// A text that is none of counter names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {0} is not one of counter names")]
pub struct InvalidLine(usize);

impl FromStr for CounterNames {
    type Err = InvalidLine;

    fn from_str(text: &str) -> Result<Self, InvalidLine> {
        let mut names = Self::default();
        for (line, number) in text.lines().zip(1..) {
            names.add(line).ok_or(InvalidLine(number))?;
        }
        Ok(names)
    }
}

impl CounterNames {
    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.splitn(6, ' ');
        let (number, stage, verdict) = (words.next()?, words.next()?, words.next()?);
        let count =
            Count { packets: words.next()?.parse().ok()?, bytes: words.next()?.parse().ok()? };
        let verdict = match verdict {
            "-" => None,
            name => Some(Verdict::ALL.into_iter().find(|it| it.name() == name)?),
        };
        let stage = StageName::ALL.into_iter().find(|it| it.name() == stage)?;
        let cause = NamedCause { stage, name: words.next()?.to_owned(), verdict };
        match number {
            "-" => self.earlier.insert(cause, count),
            number => {
                self.present.insert(number.parse().ok()?, cause);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let text = "[set.bad]\naction = 'drop'\nnetworks = []\n[[rule]]\nname = 'a b'\nmatch = {}\naction = 'continue'\n";
        let policy = Policy::parse(text).unwrap();
        let mut counts = vec![Count::default(); usize::from(COUNTERS)];
        counts[32] = Count { packets: 3, bytes: 180 };
        let earlier = Report::new(&policy, &counts);
        let names = CounterNames::of(&policy, &earlier);
        let text = names.to_string();
        assert!(
            text.contains("32 set drop 0 0 bad\n") && text.contains("- set drop 3 180 bad\n"),
            "{text}"
        );
        assert!(text.contains("1152 rule - 0 0 a b\n"), "{text}");
        let read: CounterNames = text.parse().unwrap();
        assert_eq!(read.present, names.present);
        let report = read.report(&counts);
        let bad =
            NamedCause { stage: StageName::Set, name: "bad".into(), verdict: Some(Verdict::Drop) };
        assert_eq!(report.find(&bad), Count { packets: 6, bytes: 360 });
        assert_eq!("1 nothing".parse::<CounterNames>(), Err(InvalidLine(1)));
        let most = format!("{text}- set drop {} 0 bad\n", u64::MAX);
        let report = most.parse::<CounterNames>().unwrap().report(&counts);
        assert_eq!(report.find(&bad).packets, u64::MAX);
    }
}
