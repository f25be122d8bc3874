//! Tables in Markdown, written between two marks of a document: the thresholds, or all steps.

use std::fmt::{self, Display, Write};

use crate::check::{Checked, check};
use crate::report::Report;
use crate::statistics::{Spread, of_share, short};

/// The mark before the table of thresholds, or of hot loops.
const BEGIN: &str = "<!-- bench -->";
/// The mark before the tables of all steps.
const BEGIN_ALL: &str = "<!-- bench: all steps -->";
/// The mark after the tables.
const END: &str = "<!-- /bench -->";

/// A document with the two marks.
#[derive(Debug)]
pub struct Document {
    before: String,
    begin: &'static str,
    after: String,
}

impl Document {
    /// Parses a document; none if a mark is missing.
    pub fn of(text: &str) -> Option<Self> {
        // A mark begins a line; within one it is only mentioned.
        let is_line = |at: usize| at == 0 || text[..at].ends_with('\n');
        let (at, begin) = [BEGIN, BEGIN_ALL].into_iter().find_map(|begin| {
            let (at, _) = text.match_indices(begin).find(|&(at, _)| is_line(at))?;
            Some((at, begin))
        })?;
        let (before, rest) = (&text[..at], &text[at + begin.len()..]);
        let (_, after) = rest.split_once(END)?;
        Some(Self { before: before.into(), begin, after: after.into() })
    }

    /// The document with the table of this report, in place of one that it had.
    pub fn with(&self, report: &Report) -> String {
        let Self { before, begin, after } = self;
        let tables = match *begin == BEGIN_ALL && !report.suites.is_empty() {
            true => of_steps(report),
            false => table(report),
        };
        format!("{before}{begin}\n{tables}\n{END}{after}")
    }
}

/// The table, and what has to be known of it: of the hot loops, where nothing else was measured.
fn table(report: &Report) -> String {
    match report.suites.is_empty() && !report.loops.is_empty() {
        true => of_loops(report),
        false => of_thresholds(report),
    }
}

fn of_loops(report: &Report) -> String {
    let mut text = format!("{}\n\n| | instructions |\n| --- | --- |\n", origin(report));
    for it in &report.loops {
        let _ = writeln!(text, "| {} | {} |", Plain(&it.name), Plain(&it.shown()));
    }
    text
}

fn of_thresholds(report: &Report) -> String {
    let mut text = about(report);
    text.push_str("\n| | Mpps | beside | Mpps | ratio |\n| --- | ---: | --- | ---: | ---: |\n");
    let mut kind = None;
    for checked in check(report) {
        let suite = checked.threshold.suite;
        if kind.replace(suite) != Some(suite) {
            // A string takes whatever it is given.
            let _ = writeln!(text, "| **{}** | | | | |", suite.title());
        }
        let Checked { threshold, ratio, .. } = checked;
        let rate = |name| report.step(suite, name).and_then(|step| Some(step.figures?.mpps));
        let (mpps, to_mpps) = (shown(rate(threshold.step)), shown(rate(threshold.to)));
        let _ = writeln!(
            text,
            "| {} | {mpps} | {} | {to_mpps} | {} |",
            threshold.step,
            threshold.to,
            shown(ratio)
        );
    }
    text
}

/// All steps, a table for each suite.
fn of_steps(report: &Report) -> String {
    let mut text = about(report);
    for suite in &report.suites {
        let _ = write!(
            text,
            "\n### {}\n\n| | Mpps | ratio to {} | lost | CPU ns a packet |\n\
             | --- | ---: | ---: | ---: | ---: |\n",
            suite.suite.title(),
            Plain(&suite.reference)
        );
        for step in &suite.steps {
            let remark = step.setting.remark();
            let comma = if remark.is_empty() { "" } else { ", " };
            let figures = step.figures;
            let lost = figures.and_then(|it| it.lost).map(|it| of_share(it.median, 1));
            let cpu_ns = figures.and_then(|it| it.cpu_ns).map(|it| format!("{:.0}", it.median));
            let _ = writeln!(
                text,
                "| {}{comma}{remark} | {} | {} | {} | {} |",
                Plain(&step.step),
                shown(figures.map(|it| it.mpps)),
                step.ratio.map_or_else(|| "–".into(), |it| short(it.median)),
                lost.as_deref().unwrap_or("–"),
                cpu_ns.as_deref().unwrap_or("–"),
            );
        }
    }
    text
}

/// One sentence on frame size, rounds, machine and date.
fn about(report: &Report) -> String {
    let Report { rounds, seconds, complete, .. } = report;
    let sizes = report.suites.iter().flat_map(|suite| &suite.steps);
    let size = sizes.map(|step| step.setting.size).next().unwrap_or_default();
    let up_to = if *complete { "" } else { "up to " };
    format!(
        "Millions of frames of {size} bytes a second, median of {up_to}{rounds} turns of {seconds} s (least–most); \
         ratios are taken within a round. {}\n",
        origin(report)
    )
}

/// Where, by what and when, and whether all of it.
fn origin(Report { machine, version, date, complete, .. }: &Report) -> String {
    let machine = machine.to_string();
    let stopped = if *complete { "" } else { " Stopped before its end." };
    format!("{}; sluice {}, {}.{stopped}", Plain(&machine), Plain(version), Plain(date))
}

/// A median with its spread, in a cell.
fn shown(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else { return "–".into() };
    format!("{} ({}–{})", short(median), short(min), short(max))
}

/// Text on one line, with what Markdown would take for its own marked as plain.
struct Plain<'a>(&'a str);

impl Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '&' | '#' | '!' => {
                    write!(f, "\\{c}")?;
                }
                _ if c.is_control() => f.write_char(' ')?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::{HotLoop, Length, Unit};
    use crate::report::tests::report;
    use crate::suite::Kind;

    #[test]
    fn the_table_takes_its_place_and_that_of_one_before() {
        let report = report(Kind::Rx, &[("TPACKET_V3 ring", 3.0), ("tcpdump -w /dev/null", 1.5)]);
        let first = Document::of("a\n<!-- bench -->\n<!-- /bench -->\nb\n").unwrap().with(&report);
        assert!(first.starts_with("a\n<!-- bench -->\nMillions of frames of 60 bytes"), "{first}");
        assert!(first.ends_with(" |\n\n<!-- /bench -->\nb\n"), "{first}");
        let row = "| TPACKET_V3 ring | 3.00 (3.00–3.00) | tcpdump -w /dev/null | 1.50 (1.50–1.50) | \
                   2.00 (2.00–2.00) |";
        assert!(first.contains(row), "{first}");
        assert_eq!(first.matches("**Receiving**").count(), 1, "{first}");
        assert_eq!(Document::of(&first).unwrap().with(&report), first);
        for text in ["", "<!-- bench -->", "<!-- /bench -->\n<!-- bench -->"] {
            assert!(Document::of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_document_can_have_all_steps() {
        let report = report(Kind::Rx, &[("recv", 0.5), ("TPACKET_V3 ring", 1.0)]);
        let shown = Document::of("<!-- bench: all steps -->\n<!-- /bench -->").unwrap();
        let shown = shown.with(&report);
        assert!(shown.starts_with("<!-- bench: all steps -->\nMillions"), "{shown}");
        assert!(shown.contains("\n### Receiving\n"), "{shown}");
        assert!(shown.contains("\n| recv | 0.500 (0.500–0.500) | 0.500 | – | – |\n"), "{shown}");
        assert_eq!(Document::of(&shown).unwrap().with(&report), shown);
    }

    #[test]
    fn what_was_not_measured_has_no_number() {
        let text = table(&report(Kind::Rx, &[("TPACKET_V3 ring", 3.0)]));
        assert!(
            text.contains("| TPACKET_V3 ring | 3.00 (3.00–3.00) | tcpdump -w /dev/null | – | – |"),
            "{text}"
        );
    }

    #[test]
    fn hot_loops_alone_have_a_table_of_their_own() {
        let mut report = report(Kind::Rx, &[]);
        report.suites.clear();
        let length = Some(Length { instructions: 41.2, bytes: None, ns: None });
        report.loops = vec![HotLoop {
            name: "receive: ring".into(),
            command: "sluice count".into(),
            of: Unit::Packet,
            length,
            failed: None,
        }];
        let text = table(&report);
        assert!(text.contains("\n| receive: ring | 41.20 a packet |\n"), "{text}");
        assert!(!text.contains("Mpps") && text.contains("; sluice "), "{text}");
    }

    #[test]
    fn text_of_a_result_is_no_markup_and_ends_no_place() {
        let mut report = report(Kind::Rx, &[]);
        report.machine.model = format!("a\n\n# b | `c` <i> {END}");
        let shown = Document::of(&format!("{BEGIN}{END}")).unwrap().with(&report);
        assert!(shown.contains(r"(a  \# b \| \`c\` \<i\> \<\!-- /bench --\>"), "{shown}");
        assert_eq!(shown.matches(END).count(), 1, "{shown}");
    }
}
