//! Programs that load no library.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::support::*;

/// The begin of an ELF file: its class, its machine, the type of its only program header.
fn elf(class: u8, machine: u16, program_header: u32) -> Vec<u8> {
    let mut file = vec![0; 120];
    file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[32] = 64;
    file[54] = 56;
    file[56] = 1;
    file[64..68].copy_from_slice(&program_header.to_le_bytes());
    file
}

const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;

fn program(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Running a program is refused, with this reason and a remedy.
fn is_refused(program: &Path, reason: &str, remedy: &str) {
    let ended = run(&["netmap", "run", "--", program.to_str().unwrap()]);
    assert_eq!(ended.status, Some(3), "{reason}: {}", ended.err);
    assert!(ended.err.contains(reason) && ended.err.contains(remedy), "{}", ended.err);
}

#[test]
fn a_program_that_cannot_load_the_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fixed = program(folder, "static", &elf(2, MACHINE, PT_LOAD));
    is_refused(&fixed, "linked statically", "without -static");
    is_refused(&program(folder, "small", &elf(1, 3, PT_INTERP)), "for another machine", "64-bit");
    is_refused(&program(folder, "other", &elf(2, 8, PT_INTERP)), "for another machine", "build it");
    let script = format!("#! {} -x\n", fixed.display());
    is_refused(&program(folder, "script", script.as_bytes()), "linked statically", "-static");
}

#[test]
fn a_program_that_gains_privileges_is_refused() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (mode, user, group, refused) in [
        (0o4755, 65534, 0, true),
        (0o2755, 0, 65534, true),
        (0o4755, 0, 0, false),
        (0o755, 65534, 65534, false),
    ] {
        let copy = folder.path().join("true");
        std::fs::copy("/bin/true", &copy).unwrap();
        chown(&copy, Some(user), Some(group)).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(mode)).unwrap();
        if refused {
            is_refused(&copy, "setuid or setgid", "run it as root");
        } else {
            let ended = run(&["netmap", "run", "--", copy.to_str().unwrap()]);
            assert_eq!(ended.status, Some(0), "{mode:o}: {}", ended.err);
        }
    }
}
