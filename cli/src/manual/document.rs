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
        blocks(&mut roff, text, "SH", self.path);
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

/// Adds the blocks of the text of the document at `path`, with this macro for its headings.
pub fn blocks(roff: &mut Roff, text: &str, heading: &str, path: &str) {
    let inlines = |text: &str| inlines(text, path);
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
            line if line.starts_with('|') => table(roff, block, path),
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
fn table(roff: &mut Roff, lines: &[&str], path: &str) {
    let inlines = |text: &str| inlines(text, path);
    // An empty cell is one blank; a bar inside of a cell is `\|`.
    let cells = |line: &&str| -> Vec<String> {
        let cells = line.trim_matches('|').split(" |");
        cells.map(|cell| cell.trim().replace("\\|", "|")).collect()
    };
    let heads = lines.first().map(cells).unwrap_or_default();
    for row in lines.iter().skip(2).map(cells) {
        roff.control("TP", []).text(inlines(&row[0]));
        if let Some(cell) = row.get(1).filter(|cell| !cell.is_empty()) {
            roff.text(inlines(cell));
        }
        for (head, cell) in heads.iter().zip(&row).skip(2).filter(|(_, cell)| !cell.is_empty()) {
            roff.control("br", []).text(inlines(&format!("{head}: {cell}")));
        }
    }
}

/// Returns the page of the document that a link in the document at `path` leads to; none for a part of the
/// same document, and for documents without a page.
fn linked_page(path: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().filter(|file| !file.is_empty())?;
    let target = match (file.strip_prefix("../"), path.split_once('/')) {
        (Some(outer), _) => outer.to_owned(),
        (None, Some((folder, _))) => format!("{folder}/{file}"),
        (None, None) => file.to_owned(),
    };
    let command = target.strip_prefix("commands/").or((target == "ports.md").then_some(&*target));
    if let Some(command) = command.and_then(|it| it.strip_suffix(".md")) {
        return Some(format!("sluice-{command}(1)"));
    }
    let document = DOCUMENTS.iter().find(|it| it.path == target)?;
    Some(format!("{}(7)", document.name))
}

/// Formats the text of a link, and the page it leads to, if there is one.
fn link(text: &str, page: Option<&str>, path: &str) -> Vec<Inline> {
    let Some(page) = page else { return inlines(text, path) };
    if page == format!("sluice-{}(1)", text.trim_matches('`')) {
        return vec![roman(page)];
    }
    let mut all = inlines(text, path);
    all.push(roman(format!(" ({page})")));
    all
}

/// Formats code and emphasis, and replaces links of the document at `path` by their texts and pages.
fn inlines(text: &str, path: &str) -> Vec<Inline> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (plain, marked) = rest.split_at(at);
        let span = |begin: &str, end: &str| {
            let (inner, after) = marked.strip_prefix(begin)?.split_once(end)?;
            Some((inner.to_owned(), after))
        };
        let linked = span("[", "](").and_then(|(inner, after)| {
            let (target, after) = after.split_once(')')?;
            (!inner.contains(']')).then_some((inner, target, after))
        });
        all.push(roman(plain));
        let strong = span("**", "**").or_else(|| span("*", "*"));
        rest = match (span("`", "`"), strong, linked) {
            (Some((code, after)), ..) | (None, Some((code, after)), _) => {
                all.push(bold(code));
                after
            }
            (.., Some((inner, target, after))) => {
                all.extend(link(&inner, linked_page(path, target).as_deref(), path));
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
| `x \\| y` | | z |

See [kinds](ports.md#x) and [`count`](commands/count.md).
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
.TP
\fBx | y\fR
.br
c: z
.PP
See kinds (sluice\-ports(1)) and sluice\-count(1).
";

    #[test]
    fn details_begin_after_the_first_example() {
        assert_eq!(details("# a\n\nText.\n\n    x\n    y\n\nMore.\n\n    z\n"), "More.\n\n    z\n");
        assert_eq!(details("# a\n\nText.\n\n    x\n"), "");
    }

    #[test]
    fn a_link_leads_to_the_page_of_its_document() {
        for (path, link, page) in [
            ("commands/count.md", "../generate.md#layers", Some("sluice-spec(7)")),
            ("commands/edit.md", "generate.md", Some("sluice-generate(1)")),
            ("design/accounting.md", "../commands/switch.md#json", Some("sluice-switch(1)")),
            ("json.md", "design/accounting.md", Some("sluice-accounting(7)")),
            ("commands/forward.md", "../ports.md#offloads-and-veths", Some("sluice-ports(1)")),
            ("json.md", "#count---analyze", None),
            ("commands/bench.md", "../design/bench.md#turns", None),
        ] {
            assert_eq!(linked_page(path, link).as_deref(), page, "{link} in {path}");
        }
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
