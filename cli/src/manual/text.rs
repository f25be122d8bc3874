//! Text of a manual page.

use std::fmt::Write as _;

use clap_mangen::roff::{Roff, bold, roman};

use super::Edition;

/// Begins a page: its title and its name.
pub fn begin(name: &str, section: &str, about: &str, edition: &Edition) -> Roff {
    let mut roff = Roff::new();
    let title = name.to_uppercase();
    roff.control("TH", [&title, section, &edition.date, &edition.source, "Sluice manual"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {about}"))]);
    roff
}

/// Returns the page. Not all formatters read UTF-8: other characters are written by their code points.
pub fn finish(roff: &Roff) -> String {
    let mut page = String::new();
    let rendered = roff.render();
    let mut before = "";
    for line in rendered.lines() {
        // A heading begins a paragraph.
        if line != ".PP" || !(before.starts_with(".SH") || before.starts_with(".SS")) {
            // Formatters define no escape for a second backslash.
            for c in line.replace("\\\\", "\\e").chars() {
                // A write to memory cannot fail.
                let _ = match c {
                    '…' => write!(page, "\\&..."),
                    c if c.is_ascii() => write!(page, "{c}"),
                    c => write!(page, "\\[u{:04X}]", c as u32),
                };
            }
            page.push('\n');
        }
        before = line;
    }
    page
}

/// Adds lines as they are, as an example.
pub fn example<'a>(roff: &mut Roff, lines: impl IntoIterator<Item = &'a str>) {
    roff.control("PP", []).control("EX", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("EE", []);
}

/// Adds an item of a list of terms.
pub fn item(roff: &mut Roff, term: &str, about: &str) {
    roff.control("TP", []).text([bold(term)]).text([roman(about)]);
}
