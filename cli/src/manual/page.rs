//! The page of a command.

use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::document::{DOCUMENTS, blocks, details};
use super::text::{begin, example, finish, item};
use super::{Edition, text};
use crate::port_kinds;

/// Begins a paragraph of the help that has a section of its own.
const EXIT_STATUS: &str = "Exit status: ";
/// Begins the examples in the help.
const EXAMPLES: &str = "Examples:";

/// Adds the names and texts of the pages of a command and all its commands, which a user may see.
pub fn of_all(
    root: &Command,
    edition: &Edition,
    docs: Option<&Path>,
    pages: &mut Vec<(String, String)>,
) {
    add(&[root], edition, docs, pages);
}

fn add(
    path: &[&Command],
    edition: &Edition,
    docs: Option<&Path>,
    pages: &mut Vec<(String, String)>,
) {
    let Some(command) = path.last() else { return };
    let page = Page { path, command };
    pages.push((format!("{}.1", page.name()), page.text(edition, docs)));
    for inner in visible(command) {
        add(&[path, &[inner]].concat(), edition, docs, pages);
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

struct Page<'a> {
    /// The command and those above it, from `sluice` on.
    path: &'a [&'a Command],
    command: &'a Command,
}

/// The paragraphs of a command's notes in the help.
fn paragraphs(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    help.split("\n\n").map(str::to_owned).collect()
}

impl Page<'_> {
    fn name(&self) -> String {
        self.path.iter().map(|command| command.get_name()).collect::<Vec<_>>().join("-")
    }

    fn text(&self, edition: &Edition, docs: Option<&Path>) -> String {
        let about = self.command.get_about().map(ToString::to_string).unwrap_or_default();
        let mut roff = begin(&self.name(), "1", &about, edition);
        self.synopsis(&mut roff);
        self.description(&mut roff, &about);
        self.options(&mut roff);
        self.commands(&mut roff);
        self.details(&mut roff, docs);
        self.examples(&mut roff);
        self.exit_status(&mut roff);
        self.see_also(&mut roff, docs.is_some());
        finish(&roff)
    }

    fn synopsis(&self, roff: &mut Roff) {
        roff.control("SH", ["SYNOPSIS"]);
        let usage = self.command.clone().render_usage().to_string();
        let words = self.name().replace('-', " ");
        for (index, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
            if index > 0 {
                roff.control("br", []);
            }
            let line = line.trim();
            let rest = line.strip_prefix(&words).unwrap_or(line);
            roff.text([bold(words.as_str()), roman(rest)]);
        }
    }

    fn description(&self, roff: &mut Roff, about: &str) {
        roff.control("SH", ["DESCRIPTION"]);
        if self.command.get_name() == "ports" {
            return port_kinds::describe(roff);
        }
        let long = self.command.get_long_about().map(ToString::to_string).unwrap_or_default();
        let notes = paragraphs(self.command);
        let described = long.split("\n\n").skip(1).chain(notes.iter().map(String::as_str));
        roff.text([roman(format!("{about}."))]);
        for paragraph in described.filter(|text| !text.is_empty()) {
            let shown_elsewhere =
                [EXAMPLES, EXIT_STATUS].iter().any(|it| paragraph.starts_with(it));
            let lead = paragraph.lines().next().unwrap_or_default();
            if shown_elsewhere {
                continue;
            }
            roff.control("PP", []);
            if paragraph.contains("\n  ") {
                roff.text([roman(lead)]);
                example(roff, paragraph.lines().skip(1));
            } else {
                paragraph.lines().for_each(|line| _ = roff.text([roman(line)]));
            }
        }
        for argument in self.command.get_positionals().filter(|it| !it.is_hide_set()) {
            describe(roff, argument);
        }
    }

    fn options(&self, roff: &mut Roff) {
        let all = self.command.get_arguments();
        let options: Vec<&Arg> =
            all.filter(|it| !it.is_hide_set() && !it.is_positional()).collect();
        let mut headings: Vec<Option<&str>> = vec![None];
        for heading in options.iter().map(|it| it.get_help_heading()) {
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        roff.control("SH", ["OPTIONS"]);
        for heading in headings {
            if let Some(heading) = heading {
                roff.control("SS", [heading]);
            }
            let own = options.iter().filter(|it| it.get_help_heading() == heading);
            own.for_each(|option| describe(roff, option));
        }
    }

    fn commands(&self, roff: &mut Roff) {
        for (index, inner) in visible(self.command).enumerate() {
            if index == 0 {
                roff.control("SH", ["COMMANDS"]);
            }
            let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
            item(roff, &format!("{}-{}(1)", self.name(), inner.get_name()), &about);
        }
    }

    /// Adds the document about the command, if there is one.
    fn details(&self, roff: &mut Roff, docs: Option<&Path>) {
        let [_, command] = self.path else { return };
        let path = match command.get_name() {
            "ports" => "ports.md".to_owned(),
            name => format!("commands/{name}.md"),
        };
        let text = docs.and_then(|docs| fs::read_to_string(docs.join(&path)).ok());
        if let Some(text) = text {
            roff.control("SH", ["NOTES"]);
            blocks(roff, details(&text), "SS", &path);
        }
    }

    /// Shows the command's own examples, or those of the commands above it that run this one.
    fn examples(&self, roff: &mut Roff) {
        let words = format!("  {}", self.name().replace('-', " "));
        let all = self.path.iter().flat_map(|command| {
            let own = command.get_name() == self.command.get_name();
            let shown = paragraphs(command).into_iter().filter(|it| it.starts_with(EXAMPLES));
            let lines: Vec<String> = shown
                .flat_map(|it| it.lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
                .collect();
            let runs = |line: &String| {
                own || line
                    .strip_prefix(&words)
                    .is_some_and(|rest| rest.starts_with(' ') || rest.is_empty())
            };
            lines.into_iter().filter(runs).collect::<Vec<_>>()
        });
        let lines: Vec<String> = all.collect();
        if !lines.is_empty() {
            roff.control("SH", ["EXAMPLES"]);
            example(roff, lines.iter().map(|line| line.trim_start()));
        }
    }

    fn exit_status(&self, roff: &mut Roff) {
        // It exits with the status of another command.
        if ["sluice-lab-exec", "sluice-netmap-run"].contains(&self.name().as_str()) {
            return;
        }
        let paragraphs = self.path.first().map(|root| paragraphs(root)).unwrap_or_default();
        let Some(text) = paragraphs.iter().find_map(|it| it.strip_prefix(EXIT_STATUS)) else {
            return;
        };
        roff.control("SH", ["EXIT STATUS"]);
        for status in text.trim_end_matches('.').replace('\n', " ").split(", ") {
            let (number, meaning) = status.split_once(' ').unwrap_or((status, ""));
            item(roff, number, meaning);
        }
    }

    fn see_also(&self, roff: &mut Roff, documents: bool) {
        let takes = |names: &[&str]| {
            let of = |it: &Arg| it.get_value_names().map(|all| all.join(" ")).unwrap_or_default();
            self.command.get_arguments().any(|it| names.contains(&of(it).as_str()))
        };
        let has = |id: &str| self.command.get_arguments().any(|it| it.get_id() == id);
        let mut pages: Vec<String> = Vec::new();
        for end in 1..self.path.len() {
            let above: Vec<&str> = self.path[..end].iter().map(|it| it.get_name()).collect();
            pages.push(format!("{}(1)", above.join("-")));
        }
        if matches!(self.name().as_str(), "sluice-attach" | "sluice-detach") {
            pages.push("sluice-claims(1)".into());
        }
        if takes(&["PORT", "PORT|FILTER", "[NAME=]PORT"]) {
            pages.push("sluice-ports(1)".into());
        }
        if takes(&["EXPR", "FILTER", "PORT|FILTER"]) {
            pages.push("pcap-filter(7)".into());
        }
        let about = DOCUMENTS.iter().filter(|_| documents);
        let about = about.filter(|it| self.path.len() == 1 || has(it.argument));
        pages.extend(about.map(|it| format!("{}(7)", it.name)));
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(pages.join(", "))]);
    }
}

/// Adds an option or argument to a list.
fn describe(roff: &mut Roff, argument: &Arg) {
    roff.control("TP", []).text(head(argument));
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut body: Vec<&str> = help.lines().filter(|line| !line.is_empty()).collect();
    // Lines of a list: a word, blanks, its meaning.
    let list = body.iter().position(|line| line.contains("  ")).unwrap_or(body.len());
    let list = body.split_off(list);
    let mut words = body.join(" ");
    let values = argument.get_possible_values();
    let shown = !argument.is_hide_possible_values_set();
    let names: Vec<&str> =
        values.iter().filter(|it| shown && !it.is_hide_set()).map(|it| it.get_name()).collect();
    if !names.is_empty() && argument.get_action().takes_values() {
        words += &format!(" [possible values: {}]", names.join(", "));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    if !defaults.is_empty()
        && argument.get_action().takes_values()
        && !argument.is_hide_default_value_set()
    {
        words += &format!(" [default: {}]", defaults.join(","));
    }
    roff.text([roman(words.trim_start())]);
    if !list.is_empty() {
        roff.control("RS", []);
        for (term, about) in list.iter().filter_map(|line| line.split_once("  ")) {
            text::item(roff, term, about.trim_start());
        }
        roff.control("RE", []);
    }
}

/// An option's names and value: "-w, --write FILE".
fn head(argument: &Arg) -> Vec<Inline> {
    let mut head = Vec::new();
    if let Some(short) = argument.get_short() {
        head.push(bold(format!("-{short}")));
    }
    if let Some(long) = argument.get_long() {
        if !head.is_empty() {
            head.push(roman(", "));
        }
        head.push(bold(format!("--{long}")));
    }
    let values = argument.get_num_args().unwrap_or_default();
    if !values.takes_values() {
        return head;
    }
    let id = argument.get_id().as_str().to_uppercase();
    let names = argument.get_value_names().map_or(id, |names| names.join(" "));
    let (begin, end) = match (values.min_values(), argument.is_require_equals_set()) {
        (0, true) => ("[=", "]"),
        (0, false) if !head.is_empty() => (" [", "]"),
        _ if head.is_empty() => ("", ""),
        _ => (" ", ""),
    };
    head.extend([roman(begin), italic(names), roman(end)]);
    head
}
