//! Finds examples in texts: lines that are commands, and groups of lines that belong together.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Commands that run one after the other in one world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The file, or the help, that has them.
    pub place: String,
    pub lines: Vec<String>,
}

/// The repository's own directory.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The examples of README, of all pages in docs, and of the help of all commands; each once.
pub fn all(sluice: &dyn Fn(&[&str]) -> String) -> Vec<Unit> {
    let mut pages = vec![root().join("README.md")];
    add_pages(&root().join("docs"), &mut pages);
    pages.sort();
    let mut units = Vec::new();
    for page in pages {
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        let text = std::fs::read_to_string(&page).unwrap();
        code_blocks(&text).iter().for_each(|block| units.extend(of_block(&name, block)));
        let rows = text.lines().filter_map(of_row);
        units.extend(rows.map(|line| Unit { place: name.clone(), lines: vec![line] }));
    }
    helps(sluice, &mut Vec::new(), &mut units);
    let mut once: Vec<Unit> = Vec::new();
    for unit in units {
        if once.iter().all(|other| other.lines != unit.lines) {
            once.push(unit);
        }
    }
    once
}

/// Adds the Markdown files of a folder and of the folders in it.
fn add_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_pages(&path, pages);
        } else if path.extension().is_some_and(|it| it == "md") {
            pages.push(path);
        }
    }
}

/// The examples in the help of a command, and of those below it.
fn helps(sluice: &dyn Fn(&[&str]) -> String, path: &mut Vec<String>, units: &mut Vec<Unit>) {
    let mut words = vec!["help"];
    words.extend(path.iter().map(String::as_str));
    let text = sluice(&words);
    let name = format!("sluice {}", words.join(" "));
    // A description stands behind an example, two blanks or more away.
    let examples = text.lines().filter_map(|line| line.strip_prefix("  "));
    let examples = examples.filter(|line| line.starts_with("sluice "));
    let block: Vec<_> =
        examples.map(|line| line.split("  ").next().unwrap_or(line).to_owned()).collect();
    units.extend(of_block(&name, &block));
    let below = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let below = below.take_while(|line| !line.is_empty());
    // A command's name stands two blanks from the edge; the rest of its description further.
    let names = below.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()) {
        if name != "help" {
            path.push(name.to_owned());
            helps(sluice, path, units);
            path.pop();
        }
    }
}

/// The code blocks of a page in Markdown, indented by four blanks or fenced.
fn code_blocks(text: &str) -> Vec<Vec<String>> {
    let mut blocks = vec![Vec::new()];
    let (mut fenced, mut after_blank) = (false, true);
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let indented = line.strip_prefix("    ");
        let inside = blocks.last().is_some_and(|block| !block.is_empty());
        match indented {
            _ if fence => blocks.push(Vec::new()),
            _ if fenced => blocks.last_mut().unwrap().push(line.to_owned()),
            Some(code) if inside || after_blank => {
                blocks.last_mut().unwrap().push(code.to_owned());
            }
            _ => blocks.push(Vec::new()),
        }
        after_blank = line.trim().is_empty();
    }
    blocks
}

/// The commands of a block: together where the first makes a lab, or where they ask a switch or a
/// scrubber that runs; else each by itself. None with `sluice netmap run`, which needs programs that are not ours: its own
/// tests run them.
fn of_block(place: &str, block: &[String]) -> Vec<Unit> {
    let unit = |lines| Unit { place: place.to_owned(), lines };
    let is_other = |line: &String| !line.contains("sluice netmap run");
    let (commands, netmap): (Vec<_>, Vec<_>) = commands(block).into_iter().partition(is_other);
    if commands.first().is_some_and(|line| line.starts_with("sluice lab up")) {
        return if netmap.is_empty() { vec![unit(commands)] } else { Vec::new() };
    }
    let asks_any = |line: &String| asks(line) || asks_scrubber(line);
    let (asking, alone): (Vec<_>, Vec<_>) = commands.into_iter().partition(asks_any);
    let alone = alone.into_iter().map(|line| unit(vec![line]));
    alone.chain((!asking.is_empty()).then(|| unit(asking))).collect()
}

/// The command in a row of a table, where it is the last cell.
fn of_row(row: &str) -> Option<String> {
    let (_, command) = row.strip_prefix('|')?.strip_suffix("` |")?.rsplit_once(" | `sluice ")?;
    Some(format!("sluice {}", command.replace("\\|", "|")))
}

/// The lines with our command, as typed but without `sudo` and the prompt. Other lines (make, cargo,
/// tools) build or measure, and are out of scope.
fn commands(block: &[String]) -> Vec<String> {
    let joined = block.join("\n");
    // A line that goes on: the blanks are the page's.
    let parts: Vec<_> = joined.split("\\\n").map(str::trim).collect();
    let joined = parts.join(" ");
    let typed = joined.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        line.strip_prefix("sudo ").unwrap_or(line).to_owned()
    });
    typed.filter(|line| line.starts_with("sluice ")).collect()
}

/// Returns true if a command asks a running switch.
pub fn asks(line: &str) -> bool {
    let asking = ["show", "add", "remove", "static", "forget", "flush"];
    let mut words = line.split_whitespace().skip(1);
    words.next() == Some("switch") && words.next().is_some_and(|word| asking.contains(&word))
}

/// Returns true if a command asks a running scrubber.
pub fn asks_scrubber(line: &str) -> bool {
    let asking = ["status", "apply", "confirm", "stop", "sets", "rules", "samples"];
    let mut words = line.split_whitespace().skip(1);
    words.next() == Some("scrub") && words.next().is_some_and(|word| asking.contains(&word))
}

/// The last line of the demo, as it is printed with the binary at `sluice`.
pub fn last_of_demo(sluice: &str) -> String {
    let script = std::fs::read_to_string(root().join("scripts/demo.sh")).unwrap();
    let last = script.lines().last().unwrap();
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", last]).env("sluice", sluice).env_remove("SUDO_USER").output();
    String::from_utf8(output.unwrap().stdout).unwrap().trim().to_owned()
}

#[test]
fn examples_are_distinguished_from_other_text() {
    let page = "Text with `sluice top` in it.\n    sluice no code: it follows text\n\n\
        - item\n\n    $ sudo make\n    sudo sluice count eth0 \\\n        --json # how many\n    out\n\n\
        \x20   sluice capture\n\n```\nsluice lab up\nsluice top\n```\n";
    let units: Vec<_> =
        code_blocks(page).iter().flat_map(|block| of_block("page", block)).collect();
    let lines: Vec<_> = units.into_iter().map(|unit| unit.lines).collect();
    let expected: [&[&str]; 3] = [
        &["sluice count eth0 --json # how many"],
        &["sluice capture"],
        &["sluice lab up", "sluice top"],
    ];
    assert_eq!(lines, expected);
    assert_eq!(of_row("| a | `tcpdump` | `sluice top \\| cat` |").unwrap(), "sluice top | cat");
    assert_eq!(of_row("| `sluice top` | only at the end |"), None);
}

#[test]
fn every_row_of_the_page_for_users_of_other_tools_has_a_command() {
    let page = std::fs::read_to_string(root().join("docs/from-other-tools.md")).unwrap();
    let (offered, _) = page.split_once("## Left out").unwrap();
    let rows = offered.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| -"));
    let (heads, rows): (Vec<_>, Vec<_>) = rows.partition(|row| row.ends_with("| here |"));
    let without: Vec<_> = rows.iter().filter(|row| of_row(row).is_none()).collect();
    assert!(without.is_empty(), "{without:#?}");
    assert!(heads.len() >= 5 && rows.len() >= 60, "{} rows", rows.len());
}
