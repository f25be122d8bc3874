//! Where a result goes to, and one of before comes from: the terminal, files, a place in a document.

use std::fs::File;
use std::io::{self, Read, Seek, Write, stderr, stdout};
use std::path::Path;

use sluicegate::error::Error;
use sluicegate_bench::compare::{Moved, compare};
use sluicegate_bench::page::chart::chart;
use sluicegate_bench::page::page;
use sluicegate_bench::report::Report;
use sluicegate_bench::table::Document;

use super::options::OutputOptions;
use super::table;

/// Where a result goes to.
pub struct Output<'a> {
    shown: &'a OutputOptions,
    /// A result of before, to compare with.
    before: Option<Report>,
    html: Option<Written<'a>>,
    svg: Option<Written<'a>>,
    markdown: Option<(Written<'a>, Document)>,
}

impl<'a> Output<'a> {
    /// Opens all files before the bench starts, so that an error is reported at once.
    pub fn prepare(shown: &'a OutputOptions) -> anyhow::Result<Self> {
        let before = shown.compare.as_deref().map(read).transpose()?;
        let html = shown.html.as_deref().map(Written::create).transpose()?;
        let svg = shown.svg.as_deref().map(Written::create).transpose()?;
        let markdown = shown.markdown.as_deref().map(Written::document).transpose()?;
        Ok(Self { shown, before, html, svg, markdown })
    }

    /// Writes it all.
    pub fn write(self, report: &Report) -> anyhow::Result<()> {
        if let Some(html) = self.html {
            html.write(&page(report))?;
        }
        if let Some(svg) = self.svg {
            svg.write(&chart(report))?;
        }
        if let Some((markdown, document)) = self.markdown {
            markdown.write(&document.with(report))?;
        }
        if self.shown.json {
            let mut out = stdout().lock();
            serde_json::to_writer(&mut out, report)?;
            writeln!(out)?;
        } else {
            table::print(report, &mut stdout().lock())?;
        }
        if let Some(before) = self.before {
            tell_moved(&compare(&before, report), self.shown.json)?;
        }
        Ok(())
    }
}

/// Says what moved: beside JSON on standard output it is for people all the same.
pub fn tell_moved(moved: &[Moved], json: bool) -> io::Result<()> {
    match json {
        true => table::print_moved(moved, &mut stderr()),
        false => table::print_moved(moved, &mut stdout()),
    }
}

/// A file that is written at the end. An existing file stays unchanged until then.
struct Written<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Written<'a> {
    fn create(path: &'a Path) -> Result<Self, Error> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Error::path("create", path, error))?;
        Ok(Self { path, file })
    }

    /// One that has a place for the table.
    fn document(path: &'a Path) -> Result<(Self, Document), Error> {
        let file = File::options().read(true).write(true).open(path);
        let mut file = file.map_err(|error| Error::path("open", path, error))?;
        let mut text = String::new();
        let read = file.read_to_string(&mut text).and_then(|_| file.rewind());
        read.map_err(|error| Error::path("read", path, error))?;
        let document = Document::of(&text).ok_or_else(|| {
            let path = path.display();
            Error::Usage(format!(
                "{path} has no place for a table: write the lines <!-- bench --> (or <!-- bench: all steps -->) and \
                 <!-- /bench --> there"
            ))
        })?;
        Ok((Self { path, file }, document))
    }

    fn write(mut self, text: &str) -> Result<(), Error> {
        let is_file = self.file.metadata().is_ok_and(|it| it.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| Error::path("write", self.path, error))
    }
}

/// A result of before.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(path).map_err(|error| Error::path("read", path, error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let path = path.display();
        Error::Usage(format!("{path} is no result of `sluice bench --json`: {error}")).into()
    })
}
