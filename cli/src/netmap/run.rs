//! `sluice netmap run`: becomes a program that has loaded the library.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::libc;
use nix::unistd::{AccessFlags, access};
use sluicegate::error::Error;
use sluicegate::filter::Filter;
use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate_netmap::program_file;

use super::{RunArgs, library};
use crate::notice::{ExitStatus, say};

/// Runs the program; returns only if it cannot be run.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        anyhow::bail!("no command to run is named");
    };
    // The library would report it at the program's first port.
    let variable = || std::env::var_os("SLUICE_NETMAP_FILTER");
    let filter = args.filter.clone().map(Into::into).or_else(variable);
    if let Some(filter) = filter.filter(|filter| !filter.is_empty()) {
        Filter::compile(&filter.to_string_lossy(), LINKTYPE_ETHERNET)?;
    }
    let library = library::find()?;
    let Some(path) = find_program(Path::new(program)) else {
        return fails(Path::new(program), &io::Error::from_raw_os_error(libc::ENOENT));
    };
    match program_file::check_preload(&path) {
        // The kernel decides whether it can run what this user cannot read.
        Ok(()) | Err(Error::Path { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut command = Command::new(&path);
    command.arg0(program).args(arguments);
    command.env("LD_PRELOAD", library::before(&library, std::env::var_os("LD_PRELOAD")));
    let allow = (!args.allow.is_empty()).then(|| args.allow.join(","));
    for (variable, value) in [
        ("SLUICE_NETMAP_BACKEND", &args.backend),
        ("SLUICE_NETMAP_FILTER", &args.filter),
        ("SLUICE_NETMAP_ALLOW", &allow),
        ("SLUICE_NETMAP_LOG", &args.log),
    ] {
        if let Some(value) = value {
            command.env(variable, value);
        }
    }
    fails(&path, &command.exec())
}

/// As in a shell: 127 if the command does not exist, 126 if it cannot be run.
fn fails(program: &Path, error: &io::Error) -> anyhow::Result<()> {
    say(format_args!("run {}: {error}", program.display()));
    let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Err(ExitStatus(status).into())
}

/// Finds a program as execvp(3) does: in the folders of PATH if its name has no `/`.
fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 || name.is_absolute() {
        return Some(name.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let paths: Vec<PathBuf> = std::env::split_paths(&folders).map(|it| it.join(name)).collect();
    let runs = |it: &&PathBuf| it.is_file() && access(*it, AccessFlags::X_OK).is_ok();
    // One that exists, but may not be run, explains the failure.
    paths.iter().find(runs).or_else(|| paths.iter().find(|it| it.is_file())).cloned()
}
