//! `sluice manual`: the manual pages, written from the same descriptions as the help.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Command;

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Args {
    /// Folder: /usr/local/share/man/man1
    folder: PathBuf,
}

pub fn run(args: &Args, command: Command) -> anyhow::Result<()> {
    let failed = || format!("write manual pages into {}", args.folder.display());
    fs::create_dir_all(&args.folder).with_context(failed)?;
    clap_mangen::generate_to(command, &args.folder).with_context(failed)
}
