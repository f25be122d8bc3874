//! Destinations of a result: the terminal, files, a place in a document.

use std::fs::{self, File};
use std::io::{self, Write, stderr, stdout};
use std::path::Path;

use serde::Serialize;
use sluicegate::error::Error;
use sluicegate_bench::compare::{Moved, compare};
use sluicegate_bench::machine::Machine;
use sluicegate_bench::page::chart::chart;
use sluicegate_bench::page::page;
use sluicegate_bench::report::Report;
use sluicegate_bench::table::Document;

use super::options::OutputOptions;
use super::table;

/// The destinations of a result.
pub struct Output<'a> {
    json: bool,
    /// An earlier result, to compare with.
    before: Option<Report>,
    files: Vec<(&'a Path, File, Render)>,
}

/// Writes a report as the text of a file.
type Render = Box<dyn Fn(&Report) -> String>;

impl<'a> Output<'a> {
    /// Opens all files before the bench starts, so that an error is reported at once. They stay unchanged
    /// until the result is written.
    pub fn prepare(options: &'a OutputOptions) -> anyhow::Result<Self> {
        let before = options.compare.as_deref().map(read).transpose()?;
        let mut files: Vec<(&Path, File, Render)> = Vec::new();
        for (path, render) in
            [(&options.html, page as fn(&Report) -> String), (&options.svg, chart)]
        {
            if let Some(path) = path {
                let file = File::options().write(true).create(true).truncate(false).open(path);
                let file = file.map_err(|error| Error::path("create", path, error))?;
                files.push((path, file, Box::new(render)));
            }
        }
        if let Some(path) = &options.markdown {
            let text = fs::read_to_string(path);
            let text = text.map_err(|error| Error::path("read", path, error))?;
            let document = Document::of(&text).ok_or_else(|| {
                let path = path.display();
                Error::Usage(format!(
                    "{path} has no place for a table: write the lines <!-- bench --> (or <!-- bench: all steps -->) \
                     and <!-- /bench --> there"
                ))
            })?;
            let file = File::options().write(true).open(path);
            let file = file.map_err(|error| Error::path("open", path, error))?;
            files.push((path, file, Box::new(move |report| document.with(report))));
        }
        Ok(Self { json: options.json, before, files })
    }

    /// Writes all of it.
    pub fn write(self, report: &Report) -> anyhow::Result<()> {
        for (path, mut file, render) in self.files {
            let is_file = file.metadata().is_ok_and(|it| it.is_file());
            let emptied = if is_file { file.set_len(0) } else { Ok(()) };
            let written = emptied.and_then(|()| file.write_all(render(report).as_bytes()));
            written.map_err(|error| Error::path("write", path, error))?;
        }
        match self.json {
            true => writeln!(stdout(), "{}", serde_json::to_string(report)?)?,
            false => table::print(report, &mut stdout().lock())?,
        }
        if let Some(before) = self.before {
            print_moved(&compare(&before, report), self.json)?;
        }
        Ok(())
    }
}

/// Prints changes for people: to stderr if JSON is on standard output.
pub fn print_moved(moved: &[Moved], json: bool) -> io::Result<()> {
    match json {
        true => table::print_moved(moved, &mut stderr()),
        false => table::print_moved(moved, &mut stdout()),
    }
}

/// Reads an earlier result.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    let text = fs::read(path).map_err(|error| Error::path("read", path, error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let path = path.display();
        Error::Usage(format!("{path} is no result of `sluice bench --json`: {error}")).into()
    })
}

/// Prints a result as one JSON object, with the command, the version, the date and the machine.
pub fn print_json(command: &'static str, result: &impl Serialize) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Headed<'a, T> {
        command: &'static str,
        version: &'static str,
        date: String,
        machine: Machine,
        #[serde(flatten)]
        result: &'a T,
    }
    let (version, date) = (env!("CARGO_PKG_VERSION"), super::now());
    let headed = Headed { command, version, date, machine: Machine::here(), result };
    writeln!(stdout(), "{}", serde_json::to_string(&headed)?)?;
    Ok(())
}
