//! A report as one picture for documents: of each suite the lowest step and those of thresholds, the slowest
//! first. It is narrow, for narrow pages.

use std::fmt::Write;

use super::{Bar, COLOURS, Escaped, add};
use crate::check::THRESHOLDS;
use crate::measurement::{Spread, short};
use crate::report::{Report, StepReport, Suite};

const STYLE: &str = "\
text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.heading { font-weight: 600; font-size: 13px; }
.faint { fill: var(--faint); }
.name, .value { text-anchor: end; }
.paper { fill: var(--paper); }\n";
/// Width in units, which are pixels if the page has room.
const WIDTH: f64 = 480.0;
/// End of the names, left of the bars.
const NAMES: f64 = 282.0;
/// Start of the bars, and length of the longest; the numbers follow.
const BARS_AT: f64 = NAMES + 6.0;
const ACROSS: f64 = 136.0;
/// Height of a step, of its bar, and of a suite's heading.
const ROW: f64 = 20.0;
const BAR: f64 = 12.0;
const HEADING: f64 = 34.0;
/// Steps within one program, which would make all others look tiny.
const NOT_DRAWN: [&str; 2] = ["null: to null:, in one program", "dpdk-testpmd io, net_null"];
/// Margin.
const AROUND: f64 = 10.0;

/// Renders a report as SVG that fetches and runs nothing.
pub fn chart(report: &Report) -> String {
    let mut body = String::new();
    let mut y = legend(&mut body);
    for it in &report.suites {
        y = suite(it, report, y, &mut body);
    }
    let height = y + AROUND;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>Millions of packets a second, by step</title>\n<style>\n{COLOURS}{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n"
    )
}

/// Draws the legend of bar colours; returns its lower edge.
fn legend(out: &mut String) -> f64 {
    let y = AROUND;
    for (x, class, whose) in [
        (AROUND, "sluice", "sluice"),
        (AROUND + 74.0, "linux", "the kernel alone"),
        (AROUND + 208.0, "peer", "others' programs"),
    ] {
        add!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{BAR}\" height=\"{BAR}\"/>\
             <text class=\"faint\" x=\"{}\" y=\"{}\">{}</text>",
            x + BAR + 5.0,
            y + BAR - 1.5,
            Escaped(whose)
        );
    }
    let (x, base) = (WIDTH - AROUND, y + BAR - 1.5);
    add!(out, "<text class=\"faint value\" x=\"{x}\" y=\"{base}\">Mpps</text>");
    y + ROW
}

/// Draws a suite from `y` down; returns its lower edge.
fn suite(suite: &Suite, report: &Report, y: f64, out: &mut String) -> f64 {
    let steps = chosen(suite, report);
    if steps.is_empty() {
        return y;
    }
    let most = steps.iter().map(|(_, mpps)| mpps.max).fold(f64::MIN_POSITIVE, f64::max);
    let heading = Escaped(suite.suite.title());
    add!(
        out,
        "<text class=\"heading\" x=\"{AROUND}\" y=\"{}\">{heading}</text>",
        y + HEADING - 10.0
    );
    let mut y = y + HEADING;
    for (step, mpps) in steps {
        let bar = Bar { by: &step.by, mpps, most, across: ACROSS, height: BAR };
        let base = y + BAR - 2.0;
        add!(
            out,
            "<text class=\"name\" x=\"{NAMES}\" y=\"{base}\">{}</text>\
             <g transform=\"translate({BARS_AT} {y})\">{bar}</g>\
             <text class=\"value\" x=\"{}\" y=\"{base}\">{}</text>",
            Escaped(&step.step),
            WIDTH - AROUND,
            short(mpps.median)
        );
        y += ROW;
    }
    y
}

/// The steps that are drawn, each in its plainest setting.
fn chosen<'a>(suite: &'a Suite, report: &'a Report) -> Vec<(&'a StepReport, Spread)> {
    let lowest = suite.steps.first().map(|step| step.step.as_str());
    let thresholds = THRESHOLDS.iter().filter(|it| it.suite == suite.suite);
    let mut names: Vec<&str> =
        lowest.into_iter().chain(thresholds.flat_map(|it| [it.step, it.to])).collect();
    names.retain(|name| !NOT_DRAWN.contains(name));
    names.sort_unstable();
    names.dedup();
    let step = |name| {
        let step = report.step(suite.suite, name)?;
        Some((step, step.figures?.mpps))
    };
    let mut steps: Vec<_> = names.into_iter().filter_map(step).collect();
    steps.sort_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests;
    use crate::suite::SuiteKind;

    fn drawn(steps: &[(&str, f64)]) -> String {
        chart(&tests::report(SuiteKind::Rx, steps))
    }

    #[test]
    fn the_lowest_step_and_those_of_bars_are_drawn_the_slowest_first() {
        let steps =
            [("recv", 0.5), ("TPACKET_V3 ring", 2.0), ("recvmmsg", 0.8), ("AF_XDP, spin", 1.0)];
        let chart = drawn(&steps);
        let at = |name: &str| chart.find(&format!(">{name}</text>"));
        assert!(at("recv") < at("AF_XDP, spin") && at("AF_XDP, spin") < at("TPACKET_V3 ring"));
        assert!(at("recv").is_some());
        assert_eq!(at("recvmmsg"), None, "no bar is about it");
        let lengths = ["34.0", "68.0", "136.0"];
        for length in lengths {
            assert!(
                chart.contains(&format!("width=\"{length}\" height=\"12\"/>")),
                "{length}: {chart}"
            );
        }
    }

    #[test]
    fn names_are_no_markup_and_nothing_is_fetched_or_run() {
        let chart = drawn(&[("</text><script>\u{0}&\"", 1.0)]);
        assert!(chart.contains("&lt;/text&gt;&lt;script&gt;\u{fffd}&amp;&quot;"), "{chart}");
        for part in ["<script", "url(", "href", "@import"] {
            assert!(!chart.contains(part), "{part} is in it");
        }
    }
}
