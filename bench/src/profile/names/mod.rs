//! From addresses to names of functions.

mod kernel;
mod user;

pub use kernel::Kernel;
pub use user::{ElfFile, Mapping, mappings};

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Files that have been looked at.
#[derive(Debug)]
pub struct Files {
    known: HashMap<PathBuf, ElfFile>,
    copies: Vec<(PathBuf, u64, &'static str)>,
}

impl Files {
    /// None yet.
    pub fn new() -> Self {
        Self { known: HashMap::new(), copies: user::copies() }
    }

    /// The functions of one.
    pub fn get(&mut self, path: &Path) -> &ElfFile {
        self.known.entry(path.to_owned()).or_insert_with(|| {
            let mut file = ElfFile::read(path);
            for (_, offset, name) in self.copies.iter().filter(|(of, ..)| of == path) {
                file.add(*offset, user::COPY_BYTES, name);
            }
            file
        })
    }
}

/// A function by a name that does not change from build to build: without what compilers add to
/// those they split, clone or move apart.
pub fn plain(name: &str) -> &str {
    let end = [".isra.", ".constprop.", ".part.", ".cold", ".llvm."]
        .iter()
        .filter_map(|mark| name.find(mark))
        .min();
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_compilers_add_to_names_is_left_out() {
        for (name, plain) in [
            ("memcpy", "memcpy"),
            ("veth_poll.isra.0", "veth_poll"),
            ("finish_task_switch.isra.0.cold", "finish_task_switch"),
            ("bpf_prog_6deef7357e7b4530_sluice_claim", "bpf_prog_6deef7357e7b4530_sluice_claim"),
        ] {
            assert_eq!(super::plain(name), plain);
        }
    }
}
