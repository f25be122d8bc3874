//! Keeping the program on an interface though nobody uses it: `sluice attach`, `sluice detach`.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::Resident;
use crate::error::{Error, Result};
use crate::link::Interface;
use crate::xdp::bpf;

/// Where programs are kept.
const PINS: &str = "/sys/fs/bpf/sluice";

impl Resident {
    /// Keeps the program on the interface though all users end, until [`detach`](Self::detach).
    ///
    /// # Errors
    /// No BPF file system, or a missing privilege.
    pub fn keep(&self, interface: &Interface) -> Result<()> {
        let folder = self.pins(interface)?;
        let failed = |error| {
            Error::system("keep the XDP program in", folder.display().to_string(), error)
                .remedy("a BPF file system is needed: mount -t bpf bpf /sys/fs/bpf")
        };
        std::fs::create_dir_all(&folder).map_err(failed)?;
        // The stages too: a map of programs is emptied when nobody has it.
        for (object, name) in [(&self.stages, "stages"), (&self.link, "link")] {
            let path = path_text(&folder.join(name));
            match bpf::pin(object.as_fd(), &path) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    // Of a program that is no more: the interface was made anew.
                    std::fs::remove_file(folder.join(name)).map_err(failed)?;
                    bpf::pin(object.as_fd(), &path).map_err(failed)?;
                }
                other => other.map_err(failed)?,
            }
        }
        Ok(())
    }

    /// Whether it is kept though all users end.
    pub fn is_kept(&self, interface: &Interface) -> bool {
        self.pins(interface).is_ok_and(|folder| folder.join("link").exists())
    }

    /// Takes the program off the interface, whoever uses it.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn detach(&self, interface: &Interface) -> Result<()> {
        let folder = self.pins(interface)?;
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed("take the pins away of", error));
            }
            _ => {}
        }
        bpf::detach(self.link.as_fd()).map_err(|error| self.failed("detach from", error))
    }

    /// Interfaces of several network namespaces may have the same name and number.
    fn pins(&self, interface: &Interface) -> Result<PathBuf> {
        let netns = std::fs::read_link("/proc/thread-self/ns/net")
            .map_err(|error| self.failed("find the network namespace of", error))?;
        let netns = netns.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
        Ok(Path::new(PINS).join(format!("{}-{}", netns, interface.index)))
    }
}

fn path_text(path: &Path) -> CString {
    // Made of our own words and numbers: no NUL is in it.
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
}
