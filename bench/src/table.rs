//! Tables in Markdown, written between two marks of a document: the thresholds, the hot loops, or all steps.

use std::fmt::{self, Display, Write};

use crate::check::{Checked, check};
use crate::measurement::{Spread, short};
use crate::report::Report;
use crate::step::Setting;

/// The mark before the table of thresholds, or of hot loops.
const BEGIN: &str = "<!-- bench -->";
/// The mark before the tables of all steps.
const BEGIN_ALL: &str = "<!-- bench: all steps -->";
/// The mark after the tables.
const END: &str = "<!-- /bench -->";

/// A document with two marks.
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

    /// Returns the document with the table of a report, in place of an earlier one.
    pub fn with(&self, report: &Report) -> String {
        let Self { before, begin, after } = self;
        let tables = match *begin {
            _ if report.suites.is_empty() && !report.loops.is_empty() => of_loops(report),
            BEGIN_ALL if !report.suites.is_empty() => of_steps(report),
            _ => of_thresholds(report),
        };
        format!("{before}{begin}\n{tables}\n{END}{after}")
    }
}

fn of_loops(report: &Report) -> String {
    let mut text = format!("{}\n\n| | instructions |\n| --- | --- |\n", origin(report));
    for it in &report.loops {
        let _ = writeln!(text, "| {} | {} |", MarkdownText(&it.name), MarkdownText(&it.shown()));
    }
    text
}

fn of_thresholds(report: &Report) -> String {
    let mut text = about(report, sizes(report).first().copied());
    text.push_str("\n| | Mpps | beside | Mpps | ratio |\n| --- | ---: | --- | ---: | ---: |\n");
    let mut kind = None;
    // A report of an older version, or of some steps, does not have all.
    let is_in = |it: &Checked| report.step(it.threshold.suite, it.threshold.step).is_some();
    for Checked { threshold, ratio, .. } in check(report).into_iter().filter(is_in) {
        let suite = threshold.suite;
        if kind.replace(suite) != Some(suite) {
            let _ = writeln!(text, "| **{}** | | | | |", suite.title());
        }
        let [step, to] = [threshold.step, threshold.to].map(|name| {
            let step = report.step(suite, name);
            let title = step.map_or_else(|| name.into(), |step| step.setting.mixed().title(name));
            format!("{title} | {}", shown(step.and_then(|step| Some(step.figures?.mpps))))
        });
        let _ = writeln!(text, "| {step} | {to} | {} |", shown(ratio));
    }
    text
}

/// All steps, a table for each suite.
fn of_steps(report: &Report) -> String {
    let sizes = sizes(report);
    let size = if let [size] = sizes[..] { Some(size) } else { None };
    let mut text = about(report, size);
    for suite in &report.suites {
        let _ = write!(
            text,
            "\n### {}\n\n| | Mpps | ratio to {} | lost | CPU ns a packet |\n\
             | --- | ---: | ---: | ---: | ---: |\n",
            suite.suite.title(),
            MarkdownText(&suite.reference)
        );
        for step in &suite.steps {
            // The text above the tables has the size of all steps, if they have one.
            let setting = if size.is_some() { step.setting.mixed() } else { step.setting };
            let title = setting.title(&MarkdownText(&step.step).to_string());
            let mpps = shown(step.figures.map(|it| it.mpps));
            let [ratio, lost, cpu_ns] = step.cells("–");
            let _ = writeln!(text, "| {title} | {mpps} | {ratio} | {lost} | {cpu_ns} |");
        }
    }
    text
}

/// The frame sizes of a report, in order.
fn sizes(report: &Report) -> Vec<u32> {
    let mut sizes = Vec::new();
    for step in report.suites.iter().flat_map(|suite| &suite.steps) {
        let size = step.setting.size;
        if size != Setting::MIXED && !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes
}

/// One sentence on frame size, rounds, machine and date.
fn about(report: &Report, size: Option<u32>) -> String {
    let Report { rounds, seconds, complete, .. } = report;
    let size = size.map_or_else(String::new, |size| format!(" of {size} bytes"));
    let up_to = if *complete { "" } else { "up to " };
    format!(
        "Millions of frames{size} a second, median of {up_to}{rounds} turns of {seconds} s (least–most); \
         ratios are taken within a round. {}\n",
        origin(report)
    )
}

/// The machine, the version and the date, and whether the bench was stopped.
fn origin(Report { machine, version, date, complete, .. }: &Report) -> String {
    let machine = machine.to_string();
    let stopped = if *complete { "" } else { " Stopped before its end." };
    format!(
        "{}; sluice {}, {}.{stopped}",
        MarkdownText(&machine),
        MarkdownText(version),
        MarkdownText(date)
    )
}

/// A median with its spread, in a cell.
fn shown(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else { return "–".into() };
    format!("{} ({}–{})", short(median), short(min), short(max))
}

/// Text on one line, in which characters of Markdown are escaped.
struct MarkdownText<'a>(&'a str);

impl Display for MarkdownText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if "\\`*_[]<>|~&#!".contains(c) {
                f.write_char('\\')?;
            }
            f.write_char(if c.is_control() { ' ' } else { c })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::{HotLoop, Length, LoopUnit};
    use crate::report::tests::report;
    use crate::suite::SuiteKind;

    #[test]
    fn the_table_takes_its_place_and_that_of_one_before() {
        let report =
            report(SuiteKind::Rx, &[("TPACKET_V3 ring", 3.0), ("tcpdump -w /dev/null", 1.5)]);
        let first = Document::of("a\n<!-- bench -->\n<!-- /bench -->\nb\n").unwrap().with(&report);
        assert!(first.starts_with("a\n<!-- bench -->\nMillions of frames of 60 bytes"), "{first}");
        assert!(first.ends_with(" |\n\n<!-- /bench -->\nb\n"), "{first}");
        let row = "| TPACKET_V3 ring | 3.00 (3.00–3.00) | tcpdump -w /dev/null | 1.50 (1.50–1.50) | \
                   2.00 (2.00–2.00) |";
        assert!(first.contains(row), "{first}");
        assert_eq!(first.matches("**Receiving**").count(), 1, "{first}");
        assert_eq!(Document::of(&first).unwrap().with(&report), first);
        let mut report = report;
        report.suites[0].steps[1].setting.cores = 2;
        assert!(of_thresholds(&report).contains(" | tcpdump -w /dev/null, 2 cores | "));
        for text in ["", "<!-- bench -->", "<!-- /bench -->\n<!-- bench -->"] {
            assert!(Document::of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_document_can_have_all_steps() {
        let report = report(SuiteKind::Rx, &[("recv", 0.5), ("TPACKET_V3 ring", 1.0)]);
        let shown = Document::of("<!-- bench: all steps -->\n<!-- /bench -->").unwrap();
        let shown = shown.with(&report);
        assert!(shown.starts_with("<!-- bench: all steps -->\nMillions"), "{shown}");
        assert!(shown.contains("\n### Receiving\n"), "{shown}");
        assert!(shown.contains("\n| recv | 0.500 (0.500–0.500) | 0.500 | – | – |\n"), "{shown}");
        assert_eq!(Document::of(&shown).unwrap().with(&report), shown);
    }

    #[test]
    fn rows_have_their_size_if_there_are_several() {
        let mut report =
            report(SuiteKind::Tx, &[("TX ring", 0.5), ("TX ring", 0.25), ("IMIX", 0.1)]);
        let steps = &mut report.suites[0].steps;
        steps[1].setting.size = 1514;
        steps[2].setting.size = Setting::MIXED;
        let text = of_steps(&report);
        for row in ["| TX ring, 60 B | 0.500", "| TX ring, 1514 B | 0.250", "| IMIX | 0.100"] {
            assert!(text.contains(row), "{text}");
        }
        assert!(text.starts_with("Millions of frames a second, "), "{text}");
        report.suites[0].steps.remove(1);
        let text = of_steps(&report);
        assert!(text.starts_with("Millions of frames of 60 bytes a second, "), "{text}");
        assert!(text.contains("\n| TX ring | ") && text.contains("\n| IMIX | "), "{text}");
    }

    #[test]
    fn a_missing_measurement_has_no_number() {
        let text = of_thresholds(&report(SuiteKind::Rx, &[("TPACKET_V3 ring", 3.0)]));
        assert!(
            text.contains("| TPACKET_V3 ring | 3.00 (3.00–3.00) | tcpdump -w /dev/null | – | – |"),
            "{text}"
        );
        assert!(!text.contains("AF_XDP, spin"), "{text}");
    }

    #[test]
    fn hot_loops_alone_have_a_table_of_their_own() {
        let mut report = report(SuiteKind::Rx, &[]);
        report.suites.clear();
        let length = Some(Length { instructions: 41.2, bytes: None, ns: None });
        report.loops = vec![HotLoop {
            name: "receive: ring".into(),
            command: "sluice count".into(),
            of: LoopUnit::Packet,
            length,
            failed: None,
        }];
        let text = Document::of(&format!("{BEGIN}{END}")).unwrap().with(&report);
        assert!(text.contains("\n| receive: ring | 41.20 a packet |\n"), "{text}");
        assert!(!text.contains("Mpps") && text.contains("; sluice "), "{text}");
    }

    #[test]
    fn text_of_a_result_is_no_markup_and_ends_no_place() {
        let mut report = report(SuiteKind::Rx, &[]);
        report.machine.model = format!("a\n\n# b | `c` <i> {END}");
        let shown = Document::of(&format!("{BEGIN}{END}")).unwrap().with(&report);
        assert!(shown.contains(r"(a  \# b \| \`c\` \<i\> \<\!-- /bench --\>"), "{shown}");
        assert_eq!(shown.matches(END).count(), 1, "{shown}");
    }
}
