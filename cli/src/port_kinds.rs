//! `sluice ports`: the kinds of port and their options, from the table that parses them.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};

use clap_mangen::roff::{Roff, bold, italic, roman};
use sluicegate::port::Kind;

/// List the kinds of port, and their options with their defaults
#[derive(clap::Args)]
#[command(after_help = table())]
pub struct Args {}

pub fn run() -> anyhow::Result<()> {
    Ok(stdout().lock().write_all(table().as_bytes())?)
}

/// Width of `name=values` beside what it does.
const WIDTH: usize = 38;

const FORM: &str =
    "A port is [KIND:]NAME[/QUEUES][,OPTION=VALUE...], without a kind packet: or a file.\n";

fn table() -> String {
    let mut text = String::from(FORM);
    // A write to memory cannot fail.
    for kind in Kind::all() {
        let head = format!("{}:{}", kind.prefix(), kind.name_form());
        let _ = writeln!(text, "\n{head:<16} {}", kind.about());
        for option in kind.options() {
            let form = format!("{}={}", option.name, option.values);
            let _ = write!(text, "  {form:<WIDTH$} {}", option.about);
            let _ = match option.default {
                "" => writeln!(text),
                default => writeln!(text, " [{default}]"),
            };
        }
    }
    text
}

/// Writes the kinds and their options into a manual page.
pub fn describe(roff: &mut Roff) {
    roff.text([roman(FORM.trim_end())]);
    for kind in Kind::all() {
        let head = format!("{}:{}", kind.prefix(), kind.name_form());
        roff.control("SS", [&*head]).text([roman(kind.about())]);
        for option in kind.options() {
            let head = [bold(option.name), roman("="), italic(option.values)];
            roff.control("TP", []).text(head);
            let default = match option.default {
                "" => String::new(),
                default => format!(" [{default}]"),
            };
            roff.text([roman(format!("{}{default}", option.about))]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_described_on_the_page_of_ports() {
        let page = include_str!("../../docs/ports.md");
        for kind in Kind::all() {
            for option in kind.options() {
                let (name, default) = (option.name, option.default);
                assert!(
                    page.contains(&format!("`{name}=")) || page.contains(&format!("`{name}`")),
                    "{kind:?}: {name}="
                );
                // The page has the defaults of options that several kinds share in words.
                let shared = Kind::all()
                    .filter(|kind| kind.options().iter().any(|it| it.name == name))
                    .count()
                    > 1;
                assert!(
                    shared || page.contains(&format!("`{name}={default}")),
                    "{kind:?}: {name}={default}"
                );
            }
        }
    }

    #[test]
    fn lines_fit_the_help() {
        for line in table().lines() {
            assert!(line.len() <= 100, "{line}");
        }
    }
}
