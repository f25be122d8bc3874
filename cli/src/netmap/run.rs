//! `sluice netmap run`: becomes a program that has loaded the library.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::libc;
use nix::unistd::{AccessFlags, access, mkdtemp};
use sluicegate::error::Error;
use sluicegate::filter::Filter;
use sluicegate::port::LINKTYPE_ETHERNET;
use sluicegate_netmap::program_file;

use super::{PortOptions, RunArgs, library};
use crate::notice::{ExitStatus, say};

/// Runs the program; returns only if it cannot be run.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        anyhow::bail!("no command to run is named");
    };
    // The library would report it at the program's first port.
    let ports = args.ports.or_environment()?;
    check_filter(ports.filter.as_deref())?;
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
    let server = match args.server.as_deref() {
        _ if args.shared => Some(start_server(&ports)?),
        Some(path) if !["", "off"].contains(&path) => Some(absolute(Path::new(path))?),
        server => server.map(PathBuf::from),
    };
    let PortOptions { backend, filter, allow } = &ports;
    let allow = (!allow.is_empty()).then(|| allow.join(","));
    for (variable, value) in [
        ("SLUICE_NETMAP_BACKEND", backend),
        ("SLUICE_NETMAP_FILTER", filter),
        ("SLUICE_NETMAP_ALLOW", &allow),
    ] {
        match value {
            // The server has them.
            _ if args.shared => _ = command.env_remove(variable),
            Some(value) => _ = command.env(variable, value),
            None => {}
        }
    }
    command.envs(args.log.as_ref().map(|level| ("SLUICE_NETMAP_LOG", level)));
    command.envs(server.map(|path| ("SLUICE_NETMAP_SERVER", path)));
    fails(&path, &command.exec())
}

/// Starts a server that ends with this process, which becomes the program. Returns its socket.
fn start_server(ports: &PortOptions) -> anyhow::Result<PathBuf> {
    let folder = private_folder()?;
    let socket = folder.join("socket");
    let started = std::env::current_exe().and_then(|sluice| {
        let mut server = Command::new(sluice);
        server.args(["netmap", "serve", "--until-exit", &std::process::id().to_string()]);
        server.arg("--socket").arg(&socket).args(ports.arguments());
        server.stdin(Stdio::null()).stdout(Stdio::null()).status()
    });
    // It goes on in the background when it listens.
    match started {
        Ok(status) if status.success() => Ok(socket),
        other => {
            let _ = std::fs::remove_dir(&folder);
            let status = other.map_err(|error| Error::start("the server", error))?;
            // It has printed the reason.
            Err(ExitStatus(status.code().and_then(|it| u8::try_from(it).ok()).unwrap_or(1)).into())
        }
    }
}

/// Returns a path that stays valid when a program changes its directory.
fn absolute(path: &Path) -> sluicegate::Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::path("find", path, error))
}

/// Creates a folder of this user's, for a server's socket.
pub fn private_folder() -> sluicegate::Result<PathBuf> {
    // mkdtemp(3) fills the six letters in, so that the name is new.
    let template = std::env::temp_dir().join(format!("sluice-netmap-{}", "X".repeat(6)));
    let template = absolute(&template)?;
    mkdtemp(&template).map_err(|errno| Error::path("create a folder", &template, errno.into()))
}

/// Checks a filter that is not empty.
///
/// # Errors
/// It is invalid.
pub fn check_filter(filter: Option<&str>) -> sluicegate::Result<()> {
    match filter.filter(|filter| !filter.is_empty()) {
        Some(filter) => Filter::compile(filter, LINKTYPE_ETHERNET).map(drop),
        None => Ok(()),
    }
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
