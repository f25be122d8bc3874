//! Pins, which keep the program attached without a user: `sluice attach`, `sluice detach`.

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::shared::SCRUB;
use super::{RETRY_INTERVAL, Resident, privileged};
use crate::error::{Error, Result};
use crate::link::Interface;
use crate::xdp::bpf::{self, Attachment};

/// Mount point of the BPF file system.
const BPF_FS: &str = "/sys/fs/bpf";
/// Directory of the pins.
const PINS: &str = "/sys/fs/bpf/sluice";
/// File name of a pinned link.
const LINK: &str = "link";
/// A folder beside the pins, if only the scrub stage needs them.
const ONLY_SCRUB: &str = "only-scrub";
/// The capabilities to pin and unpin, as in docs/running.md.
const PIN_CAPABILITIES: &str =
    "CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN and, as another user than root, CAP_DAC_OVERRIDE";
/// Time to wait for the lock, which is held for milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

impl Resident {
    /// Pins the program, so that it stays attached without users until [`detach`](Self::detach).
    ///
    /// # Errors
    /// No BPF file system, a missing privilege, another holder of the lock, or a program that is
    /// detached already. Nothing is pinned then.
    pub fn keep(&self, interface: &Interface) -> Result<()> {
        self.pin(interface, false)
    }

    /// Pins the program as [`keep`](Self::keep) does, for a scrubber that is kept, here or at an interface that sends by this
    /// one: until [`unpin_of_scrub`](Self::unpin_of_scrub), unless [`keep`](Self::keep) pins it too.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn pin_for_scrub(&self, interface: &Interface) -> Result<()> {
        self.pin(interface, true)
    }

    fn pin(&self, interface: &Interface, only_scrub: bool) -> Result<()> {
        let failed = |error| failed(error, "keep the XDP program in", PINS);
        if !statfs(BPF_FS).is_ok_and(|it| it.filesystem_type() == BPF_FS_MAGIC) {
            return Err(Error::Unsupported {
                feature: format!("a BPF file system at {BPF_FS}"),
                remedy: format!(
                    "mount -t bpf bpf {BPF_FS}; under 'ip netns exec' or 'sluice lab exec', which hide \
                     it, use --netns from outside instead"
                ),
            });
        }
        let _lock = lock(create(Path::new(PINS)).map_err(failed)?, LOCK_TIMEOUT)?;
        // A detaching process takes the lock, too: a program that is attached now stays attached until this
        // is done.
        self.check_attached()?;
        let mark = self.pins.join(ONLY_SCRUB);
        if self.is_pinned(interface) {
            return if only_scrub { Ok(()) } else { clear(&mark).map_err(failed) };
        }
        sweep();
        // The map of stages is pinned, too, because it is emptied when its last descriptor is closed. The
        // link comes last: if its pin exists, the pins are complete, and so is their mark.
        let objects = [("stages", self.stages.as_fd()), (LINK, self.link.as_fd())];
        replace(&self.pins, only_scrub.then_some(ONLY_SCRUB), &objects).map_err(failed)
    }

    /// Removes the pins if only a scrubber needed them, and none is kept at the scrub stage. The program stays attached until
    /// its last user ends.
    pub fn unpin_of_scrub(&self) {
        let is_marked =
            || self.pins.join(ONLY_SCRUB).exists() && !self.control.is_kept(SCRUB.start);
        if !is_marked() {
            return;
        }
        if let Ok(Some(folder)) = open(Path::new(PINS))
            && let Ok(_lock) = lock(folder, LOCK_TIMEOUT)
            && is_marked()
        {
            // Pins that stay do no harm.
            let _ = clear(&self.pins);
        }
    }

    /// Returns true if the program is pinned. Pins of a detached program do not count. Neither do pins of a
    /// removed interface, whose index another may have by now, nor pins that this process may not read.
    pub fn is_pinned(&self, interface: &Interface) -> bool {
        let ours = Attachment { program: self.program, interface: interface.index };
        bpf::open_pinned(&path_text(&self.pins.join(LINK)))
            .is_ok_and(|link| bpf::attachment(link.as_fd()).is_ok_and(|it| it == Some(ours)))
    }

    /// Detaches the program and removes its pins. Ports that use it end with an error.
    ///
    /// # Errors
    /// The kernel refused, or another process holds the lock.
    pub fn detach(&self, interface: &Interface) -> Result<()> {
        unpin_and_detach(interface, &self.pins, self.link.as_fd())?;
        self.control.set_detached();
        Ok(())
    }

    /// Detaches the interface's program, even one of another version of the library. Returns false if it
    /// has none. Call it in the interface's network namespace.
    ///
    /// # Errors
    /// A foreign program on the interface, a missing privilege, another holder of the lock.
    pub fn detach_any(interface: &Interface) -> Result<bool> {
        let Some((program, ..)) = super::open_program(interface)? else { return Ok(false) };
        let link = bpf::link_of(program).map_err(|error| super::not_found(error, interface))?;
        let Some(link) = link else { return Ok(false) };
        unpin_and_detach(interface, &pins(interface)?, link.as_fd())?;
        Ok(true)
    }

    /// Fails if the program is not attached any more: for users that receive no packets. Takes one system
    /// call, which may wait for the rtnl lock.
    ///
    /// # Errors
    /// [`Error::Removed`]: the program was detached or the interface removed.
    pub fn check_attached(&self) -> Result<()> {
        // Kernels before 5.19 do not answer a process without privileges; the mark shows that sluice
        // detached it.
        let link = bpf::attachment(self.link.as_fd());
        let off = matches!(link, Ok(Some(Attachment { interface: 0, .. })));
        if off || self.control.is_detached() {
            return Err(Error::Removed {
                object: format!("the XDP program of {}", self.interface),
                remedy: "it was detached, as by `sluice detach`: start again to attach it anew"
                    .into(),
            });
        }
        Ok(())
    }
}

/// Removes a program's pins, and detaches it.
fn unpin_and_detach(interface: &Interface, pins: &Path, link: BorrowedFd<'_>) -> Result<()> {
    let failed = |error| failed(error, "take the pins away of", &interface.name);
    // Without the folder no pins exist, and no lock is needed.
    let folder = open(Path::new(PINS)).map_err(failed)?;
    let _lock = folder.map(|folder| lock(folder, LOCK_TIMEOUT)).transpose()?;
    sweep();
    clear(pins).map_err(failed)?;
    bpf::detach(link).map_err(|error| privileged(error, "detach from", &interface.name))
}

/// Turns a failure in the folder of pins into an error for users. The folder belongs to its creator.
fn failed(error: io::Error, operation: &'static str, object: &str) -> Error {
    bpf::privileged(error, PIN_CAPABILITIES, operation, object)
}

/// Opens the folder of pins, creating it if necessary. Only its owner may open it, because opening it is
/// enough to hold the lock.
fn create(folder: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let folder = open(folder)?.ok_or(io::ErrorKind::NotFound)?;
    // An existing folder may have another mode. If it cannot be changed, the lock still has its timeout.
    let _ = folder.set_permissions(Permissions::from_mode(0o700));
    Ok(folder)
}

/// Opens the folder of pins, if it exists. Every user may create names in a BPF file system that is mounted with
/// its default mode, so a symbolic link and another user's folder are refused.
fn open(folder: &Path) -> io::Result<Option<File>> {
    let options = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let opened = match OpenOptions::new().read(true).custom_flags(options).open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let owner = opened.metadata()?.uid();
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        let folder = folder.display();
        return Err(io::Error::other(format!(
            "user {owner} has created {folder}: remove it first"
        )));
    }
    Ok(Some(opened))
}

/// Locks the pins until the returned file is closed. Without the lock, if two processes attach at once, the
/// one that fails would remove the other's pins.
fn lock(folder: File, timeout: Duration) -> Result<File> {
    let end = Instant::now() + timeout;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(error) => {
                let remedy = format!("`fuser -v {PINS}` shows who holds it, with flock(2)");
                return Err(Error::system("lock", PINS, io::Error::from(error)).remedy(remedy));
            }
        }
    }
}

/// [Sweeps](sweep) if no other process holds the lock.
pub(super) fn sweep_now() {
    if let Ok(Some(folder)) = open(Path::new(PINS))
        && folder.try_lock().is_ok()
    {
        sweep();
    }
}

/// Removes pins of removed interfaces, which the kernel keeps, and pins without a link, which a killed
/// process did not complete. The caller holds the lock. Pins that this process may not read stay.
fn sweep() {
    let folders = std::fs::read_dir(PINS).into_iter().flatten().flatten();
    for folder in folders.filter(|folder| is_ours(&folder.file_name().to_string_lossy())) {
        let link = bpf::open_pinned(&path_text(&folder.path().join(LINK)));
        let useless = match link.and_then(|link| bpf::attachment(link.as_fd())) {
            Ok(attachment) => matches!(attachment, Some(Attachment { interface: 0, .. })),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if useless {
            // A pin that stays does no harm.
            let _ = clear(&folder.path());
        }
    }
}

/// Returns true for names that [`pins`] creates.
fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.split_once('-').is_some_and(|(netns, index)| is_number(netns) && is_number(index))
}

/// Returns the folder of an interface's pins, named by namespace and index, because interfaces of several
/// namespaces may have the same index.
pub(super) fn pins(interface: &Interface) -> Result<PathBuf> {
    let netns = std::fs::read_link("/proc/thread-self/ns/net")
        .map_err(|error| privileged(error, "find the network namespace of", &interface.name))?;
    let netns = netns.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
    Ok(Path::new(PINS).join(format!("{}-{}", netns, interface.index)))
}

/// Replaces the pins in a folder by a folder as a mark, and `objects`. If that fails, the folder does not exist afterwards.
fn replace(
    folder: &Path,
    mark: Option<&str>,
    objects: &[(&str, BorrowedFd<'_>)],
) -> io::Result<()> {
    // Old pins belong to an earlier interface with this index.
    clear(folder)?;
    std::fs::create_dir_all(folder)?;
    let pin =
        |(name, object): &(&str, BorrowedFd<'_>)| bpf::pin(*object, &path_text(&folder.join(name)));
    let marked = mark.map_or(Ok(()), |mark| std::fs::create_dir(folder.join(mark)));
    let pinned = marked.and_then(|()| objects.iter().try_for_each(pin));
    if pinned.is_err() {
        // The first error is the one to report.
        let _ = clear(folder);
    }
    pinned
}

/// Removes a folder, if it exists.
fn clear(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn path_text(path: &Path) -> CString {
    // Built from constants and numbers: it contains no NUL.
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a folder in a BPF file system, or prints why it cannot.
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
    fn a_missing_folder_is_not_created_by_opening_it() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("sluice");
        assert!(open(&path).unwrap().is_none());
        assert!(!path.exists());
        let file = above.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(open(&file.join("sluice")).is_err(), "not a folder");
        for before in [None, Some(0o755)] {
            if let Some(mode) = before {
                std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            let mode = create(&path).unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{before:?}: only the owner may open it");
        }
        assert!(open(&path).unwrap().is_some());
    }

    #[test]
    fn what_another_user_may_have_prepared_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let (target, link) = (above.path().join("target"), above.path().join("link"));
        DirBuilder::new().mode(0o755).create(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(create(&link).is_err() && open(&link).is_err());
        let mode = target.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "the target of a link stays as it is");
        if std::os::unix::fs::chown(&target, Some(65534), None).is_err() {
            println!("skipped: only root can give a folder to another user");
            return;
        }
        let error = create(&target).unwrap_err().to_string();
        assert!(error.contains("user 65534 has created"), "{error}");
    }

    #[test]
    fn waiting_for_a_held_lock_ends() {
        let folder = tempfile::tempdir().unwrap();
        let open_it = || open(folder.path()).unwrap().unwrap();
        let timeout = Duration::from_millis(30);
        let held = lock(open_it(), timeout).unwrap();
        let error = lock(open_it(), timeout).unwrap_err().to_string();
        assert!(error.contains("lock /sys/fs/bpf/sluice"), "{error}");
        assert!(error.contains("fuser -v /sys/fs/bpf/sluice"), "{error}");
        drop(held);
        // A child of another test may hold the lock until its exec.
        lock(open_it(), Duration::from_secs(60)).expect("it was released");
    }

    #[test]
    fn pins_that_a_killed_process_did_not_complete_are_swept() {
        let Some(folder) = folder("killed") else { return };
        let map = bpf::create_socket_map(c"test", 1).unwrap();
        replace(&folder, None, &[("stages", map.as_fd())]).unwrap();
        // A name with the format of pins, but of no existing namespace.
        let pins = Path::new(PINS).join(format!("0-{}", std::process::id()));
        std::fs::rename(&folder, &pins).unwrap();
        let held = lock(open(Path::new(PINS)).unwrap().unwrap(), LOCK_TIMEOUT).unwrap();
        sweep_now();
        assert!(pins.exists(), "another process may be about to complete them");
        drop(held);
        // A child of another test may hold the lock until its exec.
        let swept = (0..500).any(|_| {
            sweep_now();
            std::thread::sleep(RETRY_INTERVAL);
            !pins.exists()
        });
        let _ = clear(&pins);
        assert!(swept);
    }

    #[test]
    fn pins_are_complete_or_absent() {
        let Some(folder) = folder("part") else { return };
        let map = bpf::create_socket_map(c"test", 1).unwrap();
        // A plain file cannot be pinned.
        let other = std::fs::File::open("/dev/null").unwrap();
        let error = replace(&folder, None, &[("stages", map.as_fd()), (LINK, other.as_fd())]);
        assert!(error.is_err());
        assert!(!folder.exists(), "the part that succeeded is removed");
        // The kernel refuses this mark, and a pin may not stay without its mark.
        let error = replace(&folder, Some("no/mark"), &[("stages", map.as_fd())]);
        assert!(error.is_err());
        assert!(!folder.exists(), "nothing is pinned without its mark");
        replace(&folder, Some(ONLY_SCRUB), &[("stages", map.as_fd())]).unwrap();
        assert!(folder.join(ONLY_SCRUB).exists());
        replace(&folder, None, &[("stages", map.as_fd())]).expect("old pins are replaced");
        assert!(!folder.join(ONLY_SCRUB).exists(), "the mark, too");
        clear(&folder).unwrap();
        assert!(clear(&folder).is_ok(), "an absent folder counts as removed");
    }
}
