//! A report as one page for a browser. It contains everything, and fetches and runs nothing.
//!
//! Each step is a bar, drawn as SVG, with its spread; colours follow the browser's light or dark, and
//! the layout its width.

pub mod chart;
mod ndr;

use std::fmt::{self, Display, Write};

pub use ndr::ndr;

use crate::measurement::{Cause, Explanation, Spread, of_share, short};
use crate::report::{Report, StepReport, Suite};
use crate::step::Setting;
use crate::suite::peers::{PeerState, Presence};

/// Colours in light and dark, of bars too.
const COLOURS: &str = include_str!("colours.css");
const STYLE: &str = include_str!("style.css");
const PAGE: &str = include_str!("page.html");
const LEGEND: &str = "<p class=\"faint\"><span class=\"key sluice\" style=\"margin-left:0\"></span>sluice\
    <span class=\"key linux\"></span>the kernel alone<span class=\"key peer\"></span>others' programs</p>\n";
/// Width of a bar in units; the browser stretches it.
const ACROSS: f64 = 1000.0;
/// The smallest share of a cause that is drawn.
const MIN_SHARE: f64 = 0.02;

/// Renders a report as a page.
pub fn page(report: &Report) -> String {
    let mut body = String::new();
    report.suites.iter().for_each(|it| suite(it, &mut body));
    loops(report, &mut body);
    peers(report, &mut body);
    let Report { machine, version, date, rounds, seconds, complete, notes, .. } = report;
    let about = format!(
        "{machine}; sluice {version}; median of {rounds} turns of {seconds} s, and from the smallest to the \
         largest; {date}"
    );
    let stopped = "Stopped before every step had had all its turns.".to_owned();
    let notes = (!complete).then_some(&stopped).into_iter().chain(notes);
    let notes: String = notes.map(|note| format!("<p>{}</p>\n", Escaped(note))).collect();
    document("What a packet costs", date, &about, &format!("{LEGEND}{notes}{body}"))
}

/// Renders a page with this heading and body.
fn document(heading: &str, date: &str, about: &str, body: &str) -> String {
    // The body comes last: its text is no template.
    PAGE.replace("{date}", &Escaped(date).to_string())
        .replace("{heading}", heading)
        .replace("{style}", &format!("{COLOURS}{STYLE}"))
        .replace("{about}", &Escaped(about).to_string())
        .replace("{body}", body)
}

/// Adds to the page. Writing to a string cannot fail.
macro_rules! add {
    ($out:expr, $($text:tt)*) => {
        let _ = writeln!($out, $($text)*);
    };
}
use add;

fn suite(suite: &Suite, out: &mut String) {
    add!(out, "<h2>{}</h2>", Escaped(&suite.title));
    add!(out, "<p class=\"faint\">ratios are to {}</p>", Escaped(&suite.reference));
    let mut sizes: Vec<u32> = suite.steps.iter().map(|step| step.setting.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let steps: Vec<&StepReport> =
            suite.steps.iter().filter(|step| step.setting.size == size).collect();
        let rates = steps.iter().filter_map(|step| Some(step.figures?.mpps.max));
        let most = rates.fold(f64::MIN_POSITIVE, f64::max);
        let size =
            if size == Setting::MIXED { "mixed sizes".into() } else { format!("{size} bytes") };
        add!(out, "<h3>{size}</h3>");
        add!(
            out,
            "<div class=\"heads\"><span>step</span><span></span><span class=\"value\">Mpps</span>\
             <span class=\"value\">ratio</span><span class=\"value\">lost</span>\
             <span class=\"value\">CPU ns</span></div>"
        );
        for it in steps {
            step(it, most, out);
        }
    }
}

fn step(step: &StepReport, most: f64, out: &mut String) {
    let words = [step.setting.remark(), step.by.clone()];
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    add!(out, "<div class=\"step\">");
    let (name, remark) = (Escaped(&step.step), words.join("; "));
    add!(out, "<div class=\"name\">{name} <small>{}</small></div>", Escaped(&remark));
    match step.figures {
        Some(figures) => measured(step, figures.mpps, most, out),
        None => {
            add!(out, "<div class=\"failed\">{}</div>", Escaped(step.why_not()));
        }
    }
    add!(out, "</div>");
}

fn measured(step: &StepReport, mpps: Spread, most: f64, out: &mut String) {
    let [median, min, max] = [mpps.median, mpps.min, mpps.max].map(short);
    let bar = Bar { by: &step.by, mpps, most, across: ACROSS, height: 20.0 };
    let label = format!("{median} Mpps, {min} to {max}");
    add!(out, "{}", Svg(&label, &bar));
    let [ratio, lost, cpu_ns] = step.cells("–");
    for (head, value) in [("Mpps", median), ("ratio", ratio), ("lost", lost), ("CPU ns", cpu_ns)] {
        add!(out, "<span class=\"value\" data-head=\"{head}\">{}</span>", Escaped(&value));
    }
    why(step, out);
}

/// A picture as wide as its column, with a label.
struct Svg<'a>(&'a str, &'a dyn Display);

impl Display for Svg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(label, content) = self;
        write!(
            f,
            "<svg class=\"bar\" viewBox=\"0 0 {ACROSS} 20\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{label}\">{content}</svg>"
        )
    }
}

/// Writes a step's advice, its causes and its command.
fn why(step: &StepReport, out: &mut String) {
    let Explanation { causes, advice, doubt, .. } = &step.explanation;
    add!(out, "<div class=\"why\">");
    let failed = step.failed.as_ref().map(|reason| format!("not in every turn: {reason}"));
    for sentence in [advice, doubt, &failed].into_iter().flatten() {
        add!(out, "<p>{}</p>", Escaped(sentence));
    }
    add!(out, "<details><summary>how, and where the time went</summary>");
    if !step.command.is_empty() {
        add!(out, "<p><code>{}</code></p>", Escaped(&step.command));
    }
    add!(out, "<div class=\"causes\">");
    for Cause { name, share, ns, functions } in causes.iter().filter(|it| it.share >= MIN_SHARE) {
        let bar = format!("<rect class=\"linux\" width=\"{:.1}\" height=\"20\"/>", share * ACROSS);
        add!(
            out,
            "<span title=\"{}\">{}</span>{}<span class=\"value\">{}</span>",
            Escaped(&functions.join(", ")),
            Escaped(name),
            Svg(&format!("{ns:.0} ns a packet"), &bar),
            of_share(*share, 1),
        );
    }
    add!(out, "</div></details></div>");
}

/// Writes the hot loops.
fn loops(report: &Report, out: &mut String) {
    list("Instructions of hot loops", &report.loops, out, |it| {
        let (name, shown, command) = (&it.name, it.shown(), Escaped(&it.command));
        format!("{}: {}<br><code>{command}</code>", Escaped(name), Escaped(&shown))
    });
}

/// Writes the peers.
fn peers(report: &Report, out: &mut String) {
    list("Others' programs", &report.peers, out, |Presence { name, state }| {
        let name = Escaped(name);
        match state {
            PeerState::Version(version) => format!("{name}: {}", Escaped(version)),
            PeerState::Missing(remedy) => {
                format!("{name}: missing; <code>{}</code>", Escaped(remedy))
            }
        }
    });
}

fn list<T>(heading: &str, items: &[T], out: &mut String, item: impl Fn(&T) -> String) {
    if !items.is_empty() {
        let items: String = items.iter().map(|it| format!("<li>{}</li>\n", item(it))).collect();
        add!(out, "<h2>{heading}</h2>\n<ul>\n{items}</ul>");
    }
}

/// A bar in SVG, from the origin to the right. Its colours are in colours.css.
pub struct Bar<'a> {
    /// Owner of the step's program: "sluice", "linux", or a peer's name.
    pub by: &'a str,
    /// The rate.
    pub mpps: Spread,
    /// The rate of the longest bar.
    pub most: f64,
    /// Length of a bar of `most`, in units.
    pub across: f64,
    /// Its height in units.
    pub height: f64,
}

impl Display for Bar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.by {
            "sluice" => "sluice",
            "linux" => "linux",
            _ => "peer",
        };
        let at = |value: f64| value / self.most * self.across;
        let Spread { median, min, max } = self.mpps;
        // A tiny share is still shown.
        let (length, height) = (at(median).max(2.0), self.height);
        let (min, max) = (at(min), at(max));
        let (top, middle, bottom) = (height / 4.0, height / 2.0, height * 0.75);
        write!(
            f,
            "<rect class=\"{class}\" width=\"{length:.1}\" height=\"{height}\"/>\
             <path class=\"spread\" d=\"M{min:.1} {middle}H{max:.1}\
             M{min:.1} {top}V{bottom}M{max:.1} {top}V{bottom}\"/>"
        )
    }
}

/// Text in which characters of markup are escaped, and those that XML forbids are replaced.
pub struct Escaped<'a>(pub &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\n' | '\t' => f.write_char(c)?,
                '\u{fffe}' | '\u{ffff}' => f.write_char(char::REPLACEMENT_CHARACTER)?,
                _ if c.is_control() => f.write_char(char::REPLACEMENT_CHARACTER)?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Figures;
    use crate::report::tests;
    use crate::suite::SuiteKind;

    fn report() -> Report {
        let mut report = tests::report(SuiteKind::Rx, &[("XDP", 2.0), ("ring", 1.0)]);
        let cause = Cause { name: "copying".into(), share: 0.5, ns: 12.0, functions: vec![] };
        let steps = &mut report.suites[0].steps;
        let mpps = Spread { median: 2.0, min: 1.0, max: 4.0 };
        steps[0].figures = steps[0].figures.map(|figures| Figures { mpps, ..figures });
        steps[0].by = "sluice".into();
        steps[0].command = "sluice count 'xdp:right0?filter=len < 9'".into();
        steps[0].setting.cores = 2;
        steps[0].explanation.causes = vec![cause];
        steps[0].explanation.advice = Some("copy less & gain more".into());
        (steps[1].figures, steps[1].failed) = (None, Some("no <queue>".into()));
        report
    }

    #[test]
    fn a_page_has_everything_in_it_and_text_is_no_markup() {
        let page = page(&report());
        for part in [
            "<rect class=\"sluice\" width=\"500.0\"",
            "d=\"M250.0 10H1000.0",
            "copy less &amp; gain more",
            "no &lt;queue&gt;",
            "filter=len &lt; 9",
            "2 cores",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        for part in ["<script", "http", "src=", "url("] {
            assert!(!page.contains(part), "{part} is in it");
        }
    }

    #[test]
    fn every_tag_is_closed() {
        let page = page(&report());
        for name in ["div", "p", "span", "svg", "details", "summary", "h2", "h3", "body", "style"] {
            let opened = page.matches(&format!("<{name}>")).count()
                + page.matches(&format!("<{name} ")).count();
            assert_eq!(opened, page.matches(&format!("</{name}>")).count(), "{name}");
        }
    }

    #[test]
    fn text_is_no_markup() {
        assert_eq!(Escaped("a<b & \"c\">").to_string(), "a&lt;b &amp; &quot;c&quot;&gt;");
        assert_eq!(Escaped("a\0\u{1b}\u{ffff}\nb").to_string(), "a\u{fffd}\u{fffd}\u{fffd}\nb");
    }
}
