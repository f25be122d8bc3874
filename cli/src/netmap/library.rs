//! The preload library: beside the command, or where `SLUICE_NETMAP_LIBRARY` says.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::libc;
use sluicegate::error::{Error, Result};

const VARIABLE: &str = "SLUICE_NETMAP_LIBRARY";
const FILE: &str = "libsluice_netmap.so";
/// Its folder from that of the command: installed, copied with it, and as cargo builds both.
const FOLDERS: [&str; 3] = ["../lib/sluice", ".", "deps"];

/// Finds the library.
///
/// # Errors
/// It does not exist, or its path has a character that separates names in LD_PRELOAD.
pub fn find() -> Result<PathBuf> {
    let path = match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => named(&PathBuf::from(path))?,
        None => beside_command()?,
    };
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(Error::Usage(format!(
            "{}: the dynamic linker cannot load a library with a blank or colon in its path; copy it, and name the \
             copy in {VARIABLE}",
            path.display()
        )));
    }
    Ok(path)
}

fn named(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| Error::path("load", path, error))
}

fn beside_command() -> Result<PathBuf> {
    let command =
        std::env::current_exe().map_err(|error| Error::system("find", "sluice", error))?;
    let folder = command.parent().unwrap_or(&command);
    let found = FOLDERS.iter().find_map(|it| folder.join(it).join(FILE).canonicalize().ok());
    found.ok_or_else(|| {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let path = folder.join(FOLDERS[0]).join(FILE);
        let remedy =
            format!("build it with make, install it with make install, or name it in {VARIABLE}");
        Error::path("load", &path, missing).remedy(remedy)
    })
}

/// Puts the library before those that are preloaded already.
pub fn before(library: &Path, preloaded: Option<OsString>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = preloaded.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
