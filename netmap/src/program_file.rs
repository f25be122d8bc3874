//! Files of programs: which of them load a library that `LD_PRELOAD` names.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sluicegate_base::error::{Error, Result};

/// The ELF machine of this build.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
/// The ELF machine of this build.
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Interpreters of interpreters that the kernel follows (fs/exec.c).
const MAX_INTERPRETERS: usize = 5;
/// The bytes that the kernel reads to find a script's interpreter (BINPRM_BUF_SIZE).
const FIRST_BYTES: u64 = 256;
/// The program header of a dynamic linker.
const PT_INTERP: u32 = 3;

/// Checks that a program loads the libraries of `LD_PRELOAD`: it is linked dynamically, for this machine, and
/// does not gain privileges when it starts. Of a script, the interpreter counts.
///
/// # Errors
/// It does not, or its file cannot be read.
pub fn check_preload(program: &Path) -> Result<()> {
    let mut path = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        match interpreter(&path)? {
            Some(interpreter) => path = interpreter,
            None => break,
        }
    }
    check_privileges(&path)?;
    check_linking(&path)
}

/// Returns the interpreter in the first line of a script.
fn interpreter(path: &Path) -> Result<Option<PathBuf>> {
    let file = open(path)?;
    let mut begin = Vec::new();
    let read = file.take(FIRST_BYTES).read_to_end(&mut begin);
    read.map_err(|error| Error::path("read", path, error))?;
    let Some(line) = begin.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|it| !it.is_empty());
    let name = words.next().unwrap_or_default().to_vec();
    Ok(Some(PathBuf::from(std::ffi::OsString::from_vec(name))))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::path("read", path, error))
}

/// The dynamic linker ignores LD_PRELOAD if the kernel says that a program gains privileges (AT_SECURE).
fn check_privileges(path: &Path) -> Result<()> {
    let file = path.metadata().map_err(|error| Error::path("read", path, error))?;
    // SAFETY: these functions only return numbers.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let set_user = file.mode() & libc::S_ISUID != 0 && file.uid() != user;
    let set_group = file.mode() & libc::S_ISGID != 0 && file.gid() != group;
    let remedy = format!("run it as root, or a copy without privileges: cp {} .", path.display());
    if set_user || set_group {
        return refuse(path, "setuid or setgid", remedy);
    }
    if user != 0 && has_capabilities(path) {
        return refuse(path, "setcap", remedy);
    }
    Ok(())
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both texts end with a NUL byte; without room the kernel returns only the size.
    let size = unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0)
    };
    size > 0
}

fn refuse<T>(path: &Path, kind: &str, remedy: impl Into<String>) -> Result<T> {
    let feature = format!("preloading a library into {}, which is {kind},", path.display());
    Err(Error::Unsupported { feature, remedy: remedy.into() })
}

fn check_linking(path: &Path) -> Result<()> {
    let file = open(path)?;
    let mut header = [0; 64];
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF") {
        // The kernel reports what is wrong with it.
        return Ok(());
    }
    let [is_64_bit, little_endian] = [header[4] == 2, header[5] == 1];
    let machine = u16::from_le_bytes([header[18], header[19]]);
    if !is_64_bit || !little_endian || machine != MACHINE {
        return refuse(
            path,
            "built for another machine",
            "build it for this machine's 64-bit mode",
        );
    }
    let table = u64::from_le_bytes(header[32..40].try_into().unwrap_or_default());
    let size = u64::from(u16::from_le_bytes([header[54], header[55]]));
    let count = u64::from(u16::from_le_bytes([header[56], header[57]]));
    let is_interpreter = |at: u64| {
        let mut kind = [0; 4];
        let place = table.saturating_add(at * size);
        file.read_exact_at(&mut kind, place).is_ok() && u32::from_le_bytes(kind) == PT_INTERP
    };
    if (0..count).any(is_interpreter) {
        return Ok(());
    }
    refuse(path, "linked statically", "link it dynamically: without -static")
}
