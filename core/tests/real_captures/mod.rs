//! Captures of real traffic, which other programs sent, recorded and wrote.

use std::env;
use std::path::{Path, PathBuf};

/// The paths, sorted, of the captures that scripts/captures.sh made, and of those in the folder
/// that `SLUICE_CAPTURES` names. Reports a skip if none exist.
pub fn real_captures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let made = root.join(target).join("captures");
    let folders = [Some(made), env::var_os("SLUICE_CAPTURES").map(|own| root.join(own))];
    let entries = folders.iter().flatten().flat_map(|folder| folder.read_dir()).flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
    paths.sort();
    if paths.is_empty() {
        eprintln!("skipped: needs captures; get it by scripts/captures.sh");
    }
    paths
}
