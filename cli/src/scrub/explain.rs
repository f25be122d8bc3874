//! `sluice scrub explain`: the way of one packet through a policy.

use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sluicegate::error::{Error, Result};
use sluicegate::file::read::Reader;
use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate_scrub::oracle::{Explanation, Oracle};
use sluicegate_scrub::policy::Policy;
use sluicegate_scrub::rehearsal::Rehearsal;
use sluicegate_traffic::plan::FrameBuilder;
use sluicegate_traffic::rewrite::{Rewrite, Rule};

use super::read_policy;
use super::report::verdict_name;
use crate::generate::{SpecArgs, plan};
use crate::notice::write_printable;

const EXAMPLES: &str = "\
Examples:
  sluice scrub explain policy.toml --src 203.0.113.7 --dst 198.51.100.80 --sport 11211 --size 1400
  sluice scrub explain policy.toml --capture trace.pcap --number 17";

/// Options of `explain`.
#[derive(clap::Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("smac", |it| it.help("Source MAC address")),
    mut_arg("dmac", |it| it.help("Destination MAC address")),
    mut_arg("src", |it| it.help("Source IP address [default: 198.18.0.1]")),
    mut_arg("dst", |it| it.help("Destination IP address [default: 198.18.0.2]")),
    mut_arg("sport", |it| it.help("Source port")),
    mut_arg("dport", |it| it.help("Destination port")),
    mut_arg("size", |it| it.help("Frame bytes without check sequence")),
    mut_arg("from", |it| it.hide(true)),
    mut_arg("flows", |it| it.hide(true)),
    mut_arg("seed", |it| it.hide(true)),
    mut_arg("stamp", |it| it.hide(true))
)]
pub struct ExplainArgs {
    /// The policy, in TOML
    #[arg(value_name = "FILE")]
    policy: PathBuf,

    /// The frame in hexadecimal, from its Ethernet header on; blanks and colons are allowed
    #[arg(long, value_name = "DIGITS", value_parser = hex, conflicts_with = "capture")]
    hex: Option<Frame>,

    /// A packet of a capture file; the packets before it are charged to the limits first
    #[arg(long, value_name = "FILE", requires = "number")]
    capture: Option<PathBuf>,

    /// The packet's number in the capture file, from 1
    #[arg(long, value_name = "N", requires = "capture", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    what: SpecArgs,

    /// Time to live or hop limit
    #[arg(long, value_name = "HOPS", help_heading = "Packets")]
    ttl: Option<u8>,
}

/// The bytes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame(Vec<u8>);

fn hex(text: &str) -> std::result::Result<Frame, String> {
    let mut digits = Vec::new();
    for c in text.chars().filter(|c| !c.is_whitespace() && *c != ':') {
        let digit = c.to_digit(16).ok_or_else(|| format!("{c:?} is no hexadecimal digit"))?;
        digits.push(digit as u8);
    }
    let (bytes, []) = digits.as_chunks::<2>() else {
        return Err("a digit is missing: a byte has two".into());
    };
    if bytes.is_empty() {
        return Err("a frame has bytes".into());
    }
    Ok(Frame(bytes.iter().map(|[high, low]| high << 4 | low).collect()))
}

/// Explains the decision on a packet.
pub fn explain(args: &ExplainArgs) -> anyhow::Result<()> {
    args.check()?;
    let policy = read_policy(&args.policy)?;
    let (frame, explanation) = match (&args.hex, &args.capture, args.number) {
        (Some(Frame(frame)), ..) => (frame.clone(), at_rest(&policy, frame)),
        (_, Some(path), Some(number)) => recorded(&policy, path, number)?,
        _ => {
            let frame = args.described()?;
            let explanation = at_rest(&policy, &frame);
            (frame, explanation)
        }
    };
    let out = &mut stdout().lock();
    match args.json {
        true => writeln!(out, "{}", to_json(&args.policy, &frame, &explanation))?,
        false => write_printable(out, |text| writeln!(text, "{explanation}"))?,
    }
    Ok(())
}

/// Explains the decision on the first frame.
fn at_rest(policy: &Policy, frame: &[u8]) -> Explanation {
    Oracle::new(policy).explain(frame, 0)
}

/// Explains the decision on a packet of a capture file, after those before it.
fn recorded(policy: &Policy, path: &Path, number: u64) -> anyhow::Result<(Vec<u8>, Explanation)> {
    let wrong = |reason: String| Error::Usage(format!("{}: {reason}", path.display()));
    let mut rehearsal = Rehearsal::by_oracle(policy);
    let mut reader = Reader::open(path)?;
    let mut at = 0;
    while let Some(found) = reader.next_packet()?.map(|record| record.packet()) {
        let (meta, frame) = (*found.meta(), found.head().to_vec());
        let link_type = reader.interfaces()[meta.interface as usize].link_type;
        let fit = rehearsal.skip_reason(&frame, &meta, link_type);
        at += 1;
        match fit {
            Some(reason) if at == number => {
                return Err(
                    wrong(format!("packet {number} cannot be explained: it is {reason}")).into()
                );
            }
            None if at == number => {
                let explanation = rehearsal.explain(&frame, meta.timestamp_ns);
                return Ok((frame, explanation));
            }
            None => rehearsal.decide(&frame, meta.timestamp_ns)?,
            Some(_) => {}
        }
    }
    Err(wrong(format!("it has no packet {number}, but {at} packets; give a lower --number")).into())
}

impl ExplainArgs {
    /// Fails unless one packet is given.
    fn check(&self) -> Result<()> {
        let is_described = self.what.is_given() || self.ttl.is_some();
        let given = [self.hex.is_some(), self.capture.is_some(), is_described];
        match given.into_iter().filter(|it| *it).count() {
            1 => Ok(()),
            _ => Err(Error::Usage(
                "name one packet: --src and other flags, or --capture FILE --number N, or --hex DIGITS".into(),
            )),
        }
    }

    /// Returns the frame that the flags describe: the first of the specification.
    fn described(&self) -> Result<Vec<u8>> {
        let plan = plan(&self.what.spec()?, None, None, true)?;
        let mut frame = vec![0; plan.longest()];
        let bytes = FrameBuilder::new(&plan, 0, 1, || 0).next_into(&mut frame).unwrap_or(0);
        frame.truncate(bytes);
        let rewrite: Rewrite = self.ttl.map(Rule::HopLimit).into_iter().collect();
        rewrite.apply(LINKTYPE_ETHERNET, &mut frame);
        Ok(frame)
    }
}

fn to_json(policy: &Path, frame: &[u8], explanation: &Explanation) -> Value {
    let steps = explanation
        .steps
        .iter()
        .map(|it| json!({"stage": it.stage.name(), "subject": it.subject, "result": it.result}));
    json!({
        "command": "scrub explain",
        "policy": policy.display().to_string(),
        "bytes": frame.len(),
        "verdict": verdict_name(Some(explanation.decision.verdict)),
        "cause": explanation.cause,
        "steps": steps.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_from_hexadecimal_digits() {
        assert_eq!(hex("02:00 0aFf\n01"), Ok(Frame(vec![2, 0, 10, 255, 1])));
        for (text, error) in [
            ("02g0", "'g' is no hexadecimal digit"),
            ("020", "a digit is missing: a byte has two"),
            (" : ", "a frame has bytes"),
        ] {
            assert_eq!(hex(text), Err(error.into()));
        }
    }
}
