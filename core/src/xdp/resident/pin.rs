//! Keeping the program on an interface though nobody uses it: `sluice attach`, `sluice detach`.

use std::ffi::CString;
use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::{LOOK_AGAIN, Resident, privileged};
use crate::error::{Error, Result};
use crate::link::Interface;
use crate::xdp::bpf::{self, Attachment};

/// Where a BPF file system is mounted, by init systems for example.
const BPF_FS: &str = "/sys/fs/bpf";
/// Where programs are kept.
const PINS: &str = "/sys/fs/bpf/sluice";
/// The link's name there.
const LINK: &str = "link";
/// How long others may hold the lock: what is done with it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

impl Resident {
    /// Keeps the program on the interface though all users end, until [`detach`](Self::detach).
    ///
    /// # Errors
    /// No BPF file system, a missing privilege, or somebody who holds the lock on what is kept; the
    /// program is off by now. Nothing is kept then.
    pub fn keep(&self, interface: &Interface) -> Result<()> {
        let failed = |error| Error::system("keep the XDP program in", PINS, error);
        if !statfs(BPF_FS).is_ok_and(|it| it.filesystem_type() == BPF_FS_MAGIC) {
            return Err(Error::Unsupported {
                feature: format!("a BPF file system at {BPF_FS}"),
                remedy: format!(
                    "mount -t bpf bpf {BPF_FS}; under 'ip netns exec' or 'sluice lab exec', which hide \
                     it, use --netns from outside instead"
                ),
            });
        }
        let _alone = alone(made(Path::new(PINS)).map_err(failed)?, PATIENCE)?;
        // Who detaches has the lock, too: a program that is on now stays until this is done.
        self.check_attached()?;
        if self.is_pinned(interface) {
            return Ok(());
        }
        sweep();
        let folder = pins(interface)?;
        // The stages too: a map of programs is emptied when nobody has it. The link last: where
        // it is, all is.
        let objects = [("stages", self.stages.as_fd()), (LINK, self.link.as_fd())];
        replace(&folder, &objects).map_err(failed)
    }

    /// Whether it is kept though all users end. What was kept of a program that is off, or of an
    /// interface that is gone, does not count: another may have its number by now. Nor does what
    /// this process may not look at.
    pub fn is_pinned(&self, interface: &Interface) -> bool {
        let ours = Attachment { program: self.program, interface: interface.index };
        pins(interface)
            .and_then(|folder| {
                let link = bpf::open_pinned(&path_text(&folder.join(LINK)));
                link.map_err(|error| self.failed("look for the pins of", error))
            })
            .is_ok_and(|link| bpf::attachment(link.as_fd()).is_ok_and(|it| it == Some(ours)))
    }

    /// Takes the program off the interface, whoever uses it: their ports end with an error.
    ///
    /// # Errors
    /// The kernel refused, or somebody holds the lock on what is kept.
    pub fn detach(&self, interface: &Interface) -> Result<()> {
        take_off(interface, self.link.as_fd())?;
        self.control.set_detached();
        Ok(())
    }

    /// The same of a program that another version of the library may have attached, and whose
    /// users cannot be asked for. False: there is none. To be called in the interface's network
    /// namespace.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege, somebody who holds the lock on what
    /// is kept.
    pub fn detach_any(interface: &Interface) -> Result<bool> {
        let Some((program, ..)) = super::open_program(interface)? else { return Ok(false) };
        let link = bpf::link_of(program).map_err(|error| super::not_found(error, interface))?;
        let Some(link) = link else { return Ok(false) };
        take_off(interface, link.as_fd())?;
        Ok(true)
    }

    /// Whether the program is still on the interface: for a reader to which no packets came, or
    /// sends. One system call, which may wait for a lock (rtnl).
    ///
    /// # Errors
    /// [`Error::Removed`]: somebody took it off, or the interface is gone.
    pub(crate) fn check_attached(&self) -> Result<()> {
        // Without privileges, kernels before 5.19 do not tell; the mark does in any case, of
        // those who took it off with us.
        let link = bpf::attachment(self.link.as_fd());
        let off = matches!(link, Ok(Some(Attachment { interface: 0, .. })));
        if off || self.control.is_detached() {
            return Err(Error::Removed {
                object: format!("the XDP program of {}", self.interface),
                remedy:
                    "somebody took it off (`sluice detach` does): start again to attach it anew"
                        .into(),
            });
        }
        Ok(())
    }
}

/// Takes what is kept of a program away, and the program off the interface.
fn take_off(interface: &Interface, link: BorrowedFd<'_>) -> Result<()> {
    let failed = |operation| move |error| privileged(error, operation, &interface.name);
    // Where there is no folder nothing is kept, and nobody there to be disturbed.
    let folder = existing(Path::new(PINS)).map_err(failed("take the pins away of"))?;
    let _alone = folder.map(|folder| alone(folder, PATIENCE)).transpose()?;
    sweep();
    clear(&pins(interface)?).map_err(failed("take the pins away of"))?;
    bpf::detach(link).map_err(failed("detach from"))
}

/// The folder of what is kept, made where there is none. Only its owner may open it: whoever can,
/// can hold the lock.
fn made(folder: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let folder = File::open(folder)?;
    // It may have been there before. Where it is not ours to close, the lock has a limit.
    let _ = folder.set_permissions(Permissions::from_mode(0o700));
    Ok(folder)
}

/// The same, if there is one.
fn existing(folder: &Path) -> io::Result<Option<File>> {
    match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Lets nobody else change what is kept, as long as the answer lives: of two that attach at once,
/// one that fails would take away what the other has pinned.
fn alone(folder: File, patience: Duration) -> Result<File> {
    let end = Instant::now() + patience;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) => {
                let remedy = format!("`fuser -v {PINS}` shows who holds it, with flock(2)");
                return Err(Error::system("lock", PINS, io::Error::from(error)).remedy(remedy));
            }
        }
    }
}

/// [Sweeps](sweep), unless another process changes pins at this moment.
pub(super) fn sweep_now() {
    if let Ok(Some(folder)) = existing(Path::new(PINS))
        && folder.try_lock().is_ok()
    {
        sweep();
    }
}

/// Removes the pins of programs whose interfaces were removed, because the kernel keeps them, and pins
/// without a link, which a killed process did not complete. The caller has the lock. Pins that this
/// process may not look at stay.
fn sweep() {
    let folders = std::fs::read_dir(PINS).into_iter().flatten().flatten();
    for folder in folders.filter(|folder| is_ours(&folder.file_name().to_string_lossy())) {
        let link = bpf::open_pinned(&path_text(&folder.path().join(LINK)));
        let useless = match link.and_then(|link| bpf::attachment(link.as_fd())) {
            Ok(attachment) => matches!(attachment, Some(Attachment { interface: 0, .. })),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if useless {
            // It is in nobody's way.
            let _ = clear(&folder.path());
        }
    }
}

/// Whether [`pins`] makes such names.
fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.split_once('-').is_some_and(|(netns, index)| is_number(netns) && is_number(index))
}

/// Interfaces of several network namespaces may have the same name and number.
pub(super) fn pins(interface: &Interface) -> Result<PathBuf> {
    let netns = std::fs::read_link("/proc/thread-self/ns/net")
        .map_err(|error| privileged(error, "find the network namespace of", &interface.name))?;
    let netns = netns.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
    Ok(Path::new(PINS).join(format!("{}-{}", netns, interface.index)))
}

/// Keeps some objects in a folder, and nothing else there; all of them, or the folder is not
/// there when this returns.
fn replace(folder: &Path, objects: &[(&str, BorrowedFd<'_>)]) -> io::Result<()> {
    // Of a program that is no more: the interface was made anew.
    clear(folder)?;
    std::fs::create_dir_all(folder)?;
    let pin =
        |(name, object): &(&str, BorrowedFd<'_>)| bpf::pin(*object, &path_text(&folder.join(name)));
    let pinned = objects.iter().try_for_each(pin);
    if pinned.is_err() {
        // Why nothing is kept matters more than what may be left of it.
        let _ = clear(folder);
    }
    pinned
}

/// Removes a folder, if there is one.
fn clear(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn path_text(path: &Path) -> CString {
    // Made of our own words and numbers: no NUL is in it.
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder in a BPF file system, or the reason why there is none.
    fn folder(name: &str) -> Option<PathBuf> {
        let folder = Path::new(PINS).join(format!("test-{}-{name}", std::process::id()));
        match std::fs::create_dir_all(&folder) {
            Ok(()) => Some(folder),
            Err(error) => {
                println!(
                    "skipped: needs a BPF file system; get it by mount -t bpf bpf /sys/fs/bpf: {error}"
                );
                None
            }
        }
    }

    #[test]
    fn what_is_not_there_is_not_made_to_be_looked_at() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("sluice");
        assert!(existing(&path).unwrap().is_none());
        assert!(!path.exists());
        let file = above.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(existing(&file.join("sluice")).is_err(), "it cannot be told");
        for before in [None, Some(0o755)] {
            if let Some(mode) = before {
                std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            let mode = made(&path).unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{before:?}: it is its owner's alone");
        }
        assert!(existing(&path).unwrap().is_some());
    }

    #[test]
    fn a_lock_that_somebody_holds_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let open = || existing(folder.path()).unwrap().unwrap();
        let patience = Duration::from_millis(30);
        let held = alone(open(), patience).unwrap();
        let error = alone(open(), patience).unwrap_err().to_string();
        assert!(error.contains("lock /sys/fs/bpf/sluice"), "{error}");
        assert!(error.contains("fuser -v /sys/fs/bpf/sluice"), "{error}");
        drop(held);
        // A child of another test may hold it until it has become its command.
        alone(open(), Duration::from_secs(60)).expect("it was let go");
    }

    #[test]
    fn pins_that_a_killed_process_did_not_complete_are_swept() {
        let Some(folder) = folder("killed") else { return };
        let map = bpf::create_socket_map(c"test", 1).unwrap();
        replace(&folder, &[("stages", map.as_fd())]).unwrap();
        // A name of the form that pins have, of no namespace.
        let pins = Path::new(PINS).join(format!("0-{}", std::process::id()));
        std::fs::rename(&folder, &pins).unwrap();
        let held = alone(existing(Path::new(PINS)).unwrap().unwrap(), PATIENCE).unwrap();
        sweep_now();
        assert!(pins.exists(), "another process may be about to complete them");
        drop(held);
        // A child of another test may hold the lock until it has become its command.
        let swept = (0..500).any(|_| {
            sweep_now();
            std::thread::sleep(LOOK_AGAIN);
            !pins.exists()
        });
        let _ = clear(&pins);
        assert!(swept);
    }

    #[test]
    fn what_can_only_be_kept_in_part_is_not_kept() {
        let Some(folder) = folder("part") else { return };
        let map = bpf::create_socket_map(c"test", 1).unwrap();
        // A plain file is nothing that a BPF file system keeps.
        let other = std::fs::File::open("/dev/null").unwrap();
        let error = replace(&folder, &[("stages", map.as_fd()), (LINK, other.as_fd())]);
        assert!(error.is_err());
        assert!(!folder.exists(), "nothing is left of what could be kept");
        replace(&folder, &[("stages", map.as_fd())]).unwrap();
        replace(&folder, &[("stages", map.as_fd())]).expect("what was there is replaced");
        clear(&folder).unwrap();
        assert!(clear(&folder).is_ok(), "none is as good as removed");
    }
}
