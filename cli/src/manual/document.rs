//! A page made from a document: from the part of Markdown that the documents use.

use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::Edition;
use super::text::{begin, example, finish};

/// A document that has a manual page.
pub struct Document {
    /// Its path in the folder of documents.
    pub path: &'static str,
    /// The page's name.
    pub name: &'static str,
    pub about: &'static str,
    /// Commands with this argument refer to the page.
    pub argument: &'static str,
}

pub const DOCUMENTS: &[Document] = &[
    Document {
        path: "generate.md",
        name: "sluice-spec",
        about: "specification of packets to generate",
        argument: "spec",
    },
    Document {
        path: "ledger.md",
        name: "sluice-ledger",
        about: "status and ledger of the commands that move packets",
        argument: "duration",
    },
    Document {
        path: "design/accounting.md",
        name: "sluice-accounting",
        about: "definitions of the entries of the ledger",
        argument: "duration",
    },
    Document {
        path: "json.md",
        name: "sluice-json",
        about: "JSON of the commands that move packets",
        argument: "json",
    },
    Document {
        path: "running.md",
        name: "sluice-running",
        about: "signals, exit status, privileges and kernels",
        argument: "duration",
    },
];

impl Document {
    /// Returns the page of this document with this text.
    pub fn page(&self, text: &str, edition: &Edition) -> String {
        let mut roff = begin(self.name, "7", self.about, edition);
        roff.control("SH", ["DESCRIPTION"]);
        blocks(&mut roff, text, "SH");
        roff.control("SH", ["SEE ALSO"]).text([roman("sluice(1)")]);
        finish(&roff)
    }
}

/// Returns a document about a command without its first example and the text before, which the command's
/// description has too.
pub fn details(text: &str) -> &str {
    let begin = text.find("\n\n    ").map_or(text, |at| &text[at + 2..]);
    begin.find("\n\n").map_or("", |at| &begin[at + 2..])
}

/// Adds the blocks of a text, with this macro for its headings.
pub fn blocks(roff: &mut Roff, text: &str, heading: &str) {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# ")).collect();
    let mut rest = &lines[..];
    while let Some(first) = rest.first() {
        let (block, after) = rest.split_at(block_size(rest));
        match *first {
            "" => {}
            line if line.starts_with("    ") => example(roff, block.iter().map(|it| &it[4..])),
            line if line.starts_with("## ") && heading == "SH" => {
                _ = roff.control(heading, [&*line[3..].to_uppercase()]);
            }
            line if line.starts_with('#') => {
                _ = roff.control("SS", [line.trim_start_matches(['#', ' '])]);
            }
            line if line.starts_with('|') => table(roff, block),
            line if line.starts_with("- ") => {
                roff.control("IP", ["\\(bu", "2"]).text(inlines(&joined(block)[2..]));
            }
            _ => _ = roff.control("PP", []).text(inlines(&joined(block))),
        }
        rest = after;
    }
}

/// The number of lines of the block at the beginning: a heading, an example, a table, a list's item, a paragraph.
fn block_size(lines: &[&str]) -> usize {
    let first = lines[0];
    let continues = |line: &&str| match () {
        () if first.starts_with("    ") => line.starts_with("    "),
        () if first.starts_with('|') => line.starts_with('|'),
        () => !line.is_empty() && !["- ", "#", "|", "    "].iter().any(|it| line.starts_with(it)),
    };
    if first.is_empty() || first.starts_with('#') {
        return 1;
    }
    1 + lines[1..].iter().take_while(|line| continues(line)).count()
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Adds a table as a list of terms: the first column, then the others, from the third on with their heads.
fn table(roff: &mut Roff, lines: &[&str]) {
    let cells = |line: &&str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let heads = lines.first().map(cells).unwrap_or_default();
    for row in lines.iter().skip(2).map(cells) {
        roff.control("TP", []).text(inlines(&row[0]));
        roff.text(inlines(row.get(1).map_or("", String::as_str)));
        for (head, cell) in heads.iter().zip(&row).skip(2).filter(|(_, cell)| !cell.is_empty()) {
            roff.control("br", []).text(inlines(&format!("{head}: {cell}")));
        }
    }
}

/// Formats code and emphasis, and replaces links by their texts.
fn inlines(text: &str) -> Vec<Inline> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (plain, marked) = rest.split_at(at);
        let span = |begin: &str, end: &str| {
            let (inner, after) = marked.strip_prefix(begin)?.split_once(end)?;
            Some((inner.to_owned(), after))
        };
        let link = span("[", "](").and_then(|(inner, after)| {
            let (_, after) = after.split_once(')')?;
            (!inner.contains(']')).then_some((inner, after))
        });
        all.push(roman(plain));
        let strong = span("**", "**").or_else(|| span("*", "*"));
        rest = match (span("`", "`"), strong, link) {
            (Some((code, after)), ..) | (None, Some((code, after)), _) => {
                all.push(bold(code));
                after
            }
            (.., Some((inner, after))) => {
                all.extend(inlines(&inner));
                after
            }
            _ => {
                let (mark, after) = marked.split_at(1);
                all.push(roman(mark));
                after
            }
        };
    }
    all.push(roman(rest));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title

A `word` of
[a link](x.md), *so* [1, 2].

## Part

- one
  more
- **two**

    code -1
    .x

| a | b | c |
| --- | --- | --- |
| `x` | yµ | z |
";

    const PAGE: &str = r".SH DESCRIPTION
A \fBword\fR of a link, \fBso\fR [1, 2].
.SH PART
.IP \(bu 2
one more
.IP \(bu 2
\fBtwo\fR
.PP
.EX
code \-1
\&.x
.EE
.TP
\fBx\fR
y\[u00B5]
.br
c: z
";

    #[test]
    fn details_begin_after_the_first_example() {
        assert_eq!(details("# a\n\nText.\n\n    x\n    y\n\nMore.\n\n    z\n"), "More.\n\n    z\n");
        assert_eq!(details("# a\n\nText.\n\n    x\n"), "");
    }

    #[test]
    fn a_document_becomes_a_page() {
        let edition = Edition { date: "2026-11-27".into(), source: "sluice 1".into() };
        let page = DOCUMENTS[0].page(TEXT, &edition);
        let title = ".TH SLUICE-SPEC 7 2026-11-27 \"sluice 1\" \"Sluice manual\"\n";
        assert!(page.contains(title), "{page}");
        assert!(page.contains(PAGE), "{page}");
    }
}
