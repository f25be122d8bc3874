//! `sluice scrub rehearse`: the decisions of a policy on captures of an attack, and of peace.

use std::collections::BTreeMap;
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sluicegate::error::{Error, Result};
use sluicegate::file::read::{MergeOutcome, MergedReader};
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::rehearsal::{Rehearsal, SkipReason, Tally, deciding_parts};
use sluicegate_scrub::scrubber::LIMIT_KEYS;

use super::read_policy;
use super::report::verdict_name;
use super::run::limit_keys;
use crate::edit;
use crate::notice::{say, write_printable};
use crate::recorded::Recorded;
use crate::signals::Signals;
use crate::units::{packets_word, show_count, show_percent};

/// Packets between two checks for signals.
const SIGNAL_INTERVAL: u64 = 1 << 12;

const EXAMPLES: &str = "\
Examples:
  sluice scrub rehearse policy.toml attack.pcap --peace trace.pcap
  sluice scrub rehearse policy.toml attack.pcap --peace trace.pcap --min-drop 90 --max-peace-drop 1";

/// Options of `rehearse`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RehearseArgs {
    /// The policy, in TOML
    #[arg(value_name = "FILE")]
    policy: PathBuf,

    /// Captures of an attack: pcap or pcapng, merged by time
    #[arg(value_name = "CAPTURE", required_unless_present = "peace")]
    attack: Vec<PathBuf>,

    /// Captures of traffic without an attack, of which nothing should be dropped
    #[arg(long, value_name = "CAPTURE", num_args = 1..)]
    peace: Vec<PathBuf>,

    /// Fail if less than this percentage of the attack's packets is dropped or answered
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "attack")]
    min_drop: Option<f64>,

    /// Fail if more than this percentage of the packets of peace is dropped
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "peace")]
    max_peace_drop: Option<f64>,

    /// Decide by plain code alone, without the XDP program: needs no privilege
    #[arg(long)]
    oracle: bool,

    /// The `--limit-keys` of `run`, for the program
    #[arg(long, value_name = "N", default_value_t = LIMIT_KEYS, value_parser = limit_keys)]
    limit_keys: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses a percentage, with or without its sign.
fn percent(text: &str) -> std::result::Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
    number
        .filter(|it| (0.0..=100.0).contains(it))
        .ok_or_else(|| "use a number from 0 to 100".into())
}

/// The captures that are rehearsed together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Attack,
    Peace,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Attack => "attack",
            Self::Peace => "peace",
        }
    }
}

/// The captures of a side, and what was decided on their packets.
struct Rehearsed<'a> {
    side: Side,
    files: &'a [PathBuf],
    rehearsal: Rehearsal,
    /// Packets of the files so far.
    number: u64,
    skipped: BTreeMap<SkipReason, u64>,
    /// The tally of what decided on no packet.
    none: Tally,
    recorded: Option<Recorded>,
}

/// Rehearses a policy on captures.
pub fn rehearse(args: &RehearseArgs) -> anyhow::Result<()> {
    let policy = read_policy(&args.policy)?;
    let signals = Signals::catch()?;
    let sides = [(Side::Attack, &args.attack), (Side::Peace, &args.peace)];
    let mut rehearsed = Vec::new();
    let mut damage = None;
    for (side, files) in sides.into_iter().filter(|(_, files)| !files.is_empty()) {
        if signals.end_is_requested() {
            break;
        }
        let mut reader = MergedReader::open(files.iter().map(PathBuf::as_path))?;
        let mut one = Rehearsed::new(args, &policy, side, files)?;
        let read = one.run(&mut reader, &signals)?;
        damage = damage.or(read.err());
        rehearsed.push(one);
    }
    let complete = !signals.end_is_requested();
    let result = Table::new(args, &policy, &rehearsed, complete);
    let out = &mut stdout().lock();
    match args.json {
        true => writeln!(out, "{}", result.to_json())?,
        false => write_printable(out, |text| result.print(text))?,
    }
    // The packets before the damage are in the result.
    damage.map_or(Ok(()), Err)?;
    if !complete {
        let problem = "the captures were not read to their end, because of a signal";
        if args.min_drop.is_some() || args.max_peace_drop.is_some() {
            anyhow::bail!("cannot compare the result with limits: {problem}; rehearse again");
        }
        say(problem);
        return Ok(());
    }
    rehearsed.iter().try_for_each(|it| it.check(args))
}

impl<'a> Rehearsed<'a> {
    fn new(args: &RehearseArgs, policy: &Policy, side: Side, files: &'a [PathBuf]) -> Result<Self> {
        let rehearsal = match args.oracle {
            true => Rehearsal::by_oracle(policy),
            false => Rehearsal::by_program(policy, args.limit_keys).map_err(suggest_oracle)?,
        };
        let (skipped, none, recorded) = (BTreeMap::new(), Tally::default(), None);
        Ok(Self { side, files, rehearsal, number: 0, skipped, none, recorded })
    }

    /// Rehearses the packets of the files, until their end or a signal. Returns the first damage of a file.
    ///
    /// # Errors
    /// The program and the oracle decide differently; the kernel refuses.
    fn run(&mut self, reader: &mut MergedReader, signals: &Signals) -> anyhow::Result<Result<()>> {
        let mut damage = Ok(());
        loop {
            match reader.advance() {
                Ok(MergeOutcome::Packet) => {
                    self.add(reader)?;
                    if !self.number.is_multiple_of(SIGNAL_INTERVAL) {
                        continue;
                    }
                }
                Ok(MergeOutcome::NotYet) => edit::wait(reader.pollable())?,
                Ok(MergeOutcome::End) => return Ok(damage),
                Err(error) => damage = damage.and(Err(error)),
            }
            if signals.take() {
                return Ok(damage);
            }
        }
    }

    fn add(&mut self, reader: &MergedReader) -> anyhow::Result<()> {
        let Some(packet) = reader.record().map(|record| record.packet()) else { return Ok(()) };
        let (frame, meta) = (packet.head(), packet.meta());
        self.number += 1;
        Recorded::add(&mut self.recorded, meta.timestamp_ns);
        let link_type = reader.interfaces()[meta.interface as usize].link_type;
        match self.rehearsal.skip_reason(frame, meta, link_type) {
            Some(reason) => *self.skipped.entry(reason).or_default() += 1,
            None => self.rehearsal.decide(frame, meta.timestamp_ns).map_err(|error| {
                let place = format!("packet {} of {}", self.number, self.files_text());
                anyhow::Error::new(error).context(place)
            })?,
        }
        Ok(())
    }

    fn files_text(&self) -> String {
        let files: Vec<_> = self.files.iter().map(|it| it.display().to_string()).collect();
        match files.as_slice() {
            [one] => one.clone(),
            several => format!("{} (merged by time)", several.join(" ")),
        }
    }

    fn dropped(&self) -> &Tally {
        self.rehearsal.of_verdict(Verdict::Drop)
    }

    /// Fails if too few or too many packets were dropped.
    fn check(&self, args: &RehearseArgs) -> anyhow::Result<()> {
        let all = self.rehearsal.all().packets();
        // An answer stops an attacker, and lets others go on.
        let stopped = match self.side {
            Side::Attack => all - self.rehearsal.of_verdict(Verdict::Pass).packets(),
            Side::Peace => self.dropped().packets(),
        };
        let found = share(stopped, all);
        let (limit, flag, fails) = match self.side {
            Side::Attack => {
                (args.min_drop, "min-drop", args.min_drop.is_some_and(|min| found < min))
            }
            Side::Peace => (
                args.max_peace_drop,
                "max-peace-drop",
                args.max_peace_drop.is_some_and(|max| found > max),
            ),
        };
        let Some(limit) = limit else { return Ok(()) };
        if all == 0 {
            anyhow::bail!(
                "cannot check --{flag}: no packet of {} was rehearsed; name other captures",
                self.side.name()
            );
        }
        if !fails {
            return Ok(());
        }
        let verdicts = match self.side {
            Side::Attack => "dropped or answered",
            Side::Peace => "dropped",
        };
        anyhow::bail!(
            "{} of {} packets of {} {verdicts} ({}); --{flag} is {limit} %",
            show_count(stopped),
            show_count(all),
            self.side.name(),
            show_percent(stopped, all)
        )
    }

    fn to_json(&self) -> Value {
        let all = self.rehearsal.all();
        let skipped =
            self.skipped.iter().map(|(it, count)| (it.name().to_owned(), (*count).into()));
        let files: Vec<_> = self.files.iter().map(|it| it.display().to_string()).collect();
        let mut value = json!({
            "files": files,
            "packets": all.packets(),
            "sources": all.sources(),
            "skipped": skipped.collect::<Map<_, _>>(),
            "passed": self.tally_json(self.rehearsal.of_verdict(Verdict::Pass)),
            "dropped": self.tally_json(self.dropped()),
            "answered": self.tally_json(self.rehearsal.of_verdict(Verdict::Answer)),
        });
        if let Some(recorded) = self.recorded {
            value["recorded"] = recorded.to_json();
        }
        value
    }

    /// Returns packets and sources, and their percentages of all.
    fn tally_json(&self, tally: &Tally) -> Value {
        let all = self.rehearsal.all();
        let (packets, sources) = (tally.packets(), tally.sources());
        json!({
            "packets": packets,
            "packets_percent": share(packets, all.packets()),
            "sources": sources,
            "sources_percent": share(sources, all.sources()),
        })
    }

    /// Returns the cells of packets and sources.
    fn cells(&self, tally: &Tally) -> [String; 4] {
        let all = self.rehearsal.all();
        let (packets, sources) = (tally.packets(), tally.sources());
        let percent = |part, whole| show_percent(part, whole).trim_end_matches(" %").to_owned();
        [
            show_count(packets),
            percent(packets, all.packets()),
            show_count(sources),
            percent(sources, all.sources()),
        ]
    }
}

/// Adds the flag that needs no privilege to an error.
fn suggest_oracle(error: Error) -> Error {
    match error {
        Error::Privilege { operation, capability, remedy } => {
            let remedy = format!("{remedy}, or add --oracle, which needs no privilege");
            Error::Privilege { operation, capability, remedy }
        }
        error => error,
    }
}

/// Returns a part of a whole in percent; of nothing 0.
fn share(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// A row: stage, name, verdict, and the packets of each side.
type Row<'a> = (&'static str, String, Verdict, Vec<&'a Tally>);

/// The result.
struct Table<'a> {
    policy: &'a Path,
    by: &'static str,
    /// All captures were read to their end.
    complete: bool,
    sides: &'a [Rehearsed<'a>],
    rows: Vec<Row<'a>>,
}

impl<'a> Table<'a> {
    fn new(
        args: &'a RehearseArgs,
        policy: &Policy,
        sides: &'a [Rehearsed<'a>],
        complete: bool,
    ) -> Self {
        let rehearsals: Vec<_> = sides.iter().map(|it| &it.rehearsal).collect();
        let rows = deciding_parts(policy, &rehearsals).into_iter().map(|part| {
            let tally = |it: &'a Rehearsed<'_>| it.rehearsal.decided_by(&part).unwrap_or(&it.none);
            let tallies = sides.iter().map(tally).collect();
            (part.stage.name(), part.name, part.verdict, tallies)
        });
        let by = if args.oracle { "oracle" } else { "xdp" };
        Self { policy: &args.policy, by, complete, sides, rows: rows.collect() }
    }

    fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|(stage, name, verdict, tallies)| {
            let mut row = Map::new();
            row.insert("stage".into(), (*stage).into());
            row.insert("name".into(), name.as_str().into());
            row.insert("verdict".into(), verdict_name(Some(*verdict)).into());
            for (side, tally) in self.sides.iter().zip(tallies) {
                row.insert(side.side.name().into(), side.tally_json(tally));
            }
            Value::Object(row)
        });
        let mut value = json!({
            "command": "scrub rehearse",
            "policy": self.policy.display().to_string(),
            "by": self.by,
            "complete": self.complete,
            "rows": rows.collect::<Vec<_>>(),
        });
        for side in self.sides {
            value[side.side.name()] = side.to_json();
        }
        value
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for it in self.sides {
            let all = it.rehearsal.all();
            let (packets, sources) = (all.packets(), all.sources());
            let word = if sources == 1 { "source" } else { "sources" };
            writeln!(
                out,
                "{}: {}: {} {}, {} {word}",
                it.side.name(),
                it.files_text(),
                show_count(packets),
                packets_word(packets),
                show_count(sources)
            )?;
            for (reason, count) in &it.skipped {
                let advice =
                    if *reason == SkipReason::Long { "; --oracle decides on them" } else { "" };
                let word = packets_word(*count);
                writeln!(out, "  skipped: {} {word}: {reason}{advice}", show_count(*count))?;
            }
        }
        writeln!(out)?;
        let totals = Verdict::ALL.map(|verdict| {
            let tallies: Vec<_> =
                self.sides.iter().map(|it| it.rehearsal.of_verdict(verdict)).collect();
            let shown = verdict != Verdict::Answer || tallies.iter().any(|it| it.packets() > 0);
            shown.then(|| ("all", String::new(), verdict, tallies))
        });
        let totals: Vec<_> = totals.into_iter().flatten().collect();
        let heads = self.sides.iter().flat_map(|it| [it.side.name(), "%", "sources", "%"]);
        let mut lines = vec![
            ["stage", "name", "verdict"].into_iter().chain(heads).map(str::to_owned).collect(),
        ];
        for (stage, name, verdict, tallies) in self.rows.iter().chain(&totals) {
            let mut line =
                vec![(*stage).to_owned(), name.clone(), verdict_name(Some(*verdict)).to_owned()];
            line.extend(self.sides.iter().zip(tallies).flat_map(|(side, tally)| side.cells(tally)));
            lines.push(line);
        }
        write_columns(&lines, out)
    }
}

/// Writes lines in columns: three of words, then numbers.
fn write_columns(lines: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let width = |at: usize| lines.iter().map(|it| it[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..lines.first().map_or(0, Vec::len)).map(width).collect();
    for line in lines {
        let mut text = String::new();
        for (at, cell) in line.iter().enumerate() {
            let width = widths[at];
            match at {
                0..3 => text += &format!("{cell:<width$}  "),
                _ => text += &format!("{cell:>width$}  "),
            }
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_a_sign_or_none() {
        for (text, value) in [("0", 0.0), ("99.5", 99.5), ("100%", 100.0), ("5 %", 5.0)] {
            assert_eq!(percent(text), Ok(value));
        }
        for text in ["", "%", "-1", "100.1", "NaN", "x"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
