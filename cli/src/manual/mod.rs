//! `sluice manual`: the manual pages, written from the same descriptions as the help, and from the documents.

mod document;
mod page;
mod text;

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::Context as _;
use clap::Command;
use jiff::Timestamp;

use crate::new_file::NewFile;
use document::DOCUMENTS;

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Args {
    /// Folder: /usr/local/share/man
    folder: PathBuf,

    /// Folder of the documents, to add the notes on commands, and pages of section 7
    #[arg(long, value_name = "FOLDER")]
    docs: Option<PathBuf>,
}

/// The parts of a page's title that all pages share.
struct Edition {
    /// The day of the text, "2026-11-27".
    date: String,
    /// The program and its version.
    source: String,
}

impl Edition {
    fn of(command: &Command) -> Self {
        // A package that can be reproduced sets the time.
        let fixed = env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
        let time =
            fixed.and_then(|s| Timestamp::from_second(s).ok()).unwrap_or_else(Timestamp::now);
        let version = command.get_version().unwrap_or_default();
        Self { date: time.strftime("%Y-%m-%d").to_string(), source: format!("sluice {version}") }
    }
}

pub fn run(args: &Args, command: Command) -> anyhow::Result<()> {
    let edition = Edition::of(&command);
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    page::of_all(&command, &edition, args.docs.as_deref(), &mut pages);
    for (file, text) in pages {
        write(&args.folder.join("man1").join(file), &text)?;
    }
    let Some(docs) = &args.docs else { return Ok(()) };
    for document in DOCUMENTS {
        let path = docs.join(document.path);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let page = document.page(&text, &edition);
        write(&args.folder.join("man7").join(format!("{}.7", document.name)), &page)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("write the manual page {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(failed)?;
    Ok(NewFile::create(path, None)?.write(text.as_bytes())?)
}
