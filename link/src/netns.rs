//! Network namespaces: by the name that `ip netns` uses (a mount at `/run/netns/NAME`), by the path of a file
//! such as `/proc/PID/ns/net`, or by the PID of a process in one.
//!
//! A text with a `/` is a path. Any other text is a name if such a namespace exists; otherwise digits are a
//! PID. Only a name can be created or deleted.
//!
//! Each thread has its own namespace. So work in another namespace runs on a new thread, and the caller's
//! thread never moves. Sockets and processes that the work creates stay in that namespace.
//!
//! Entering, making and deleting need `CAP_SYS_ADMIN`. Sources: setns(2), namespaces(7),
//! ip-netns(8).

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{io, thread};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use sluicegate_base::error::{Error, Result};

use super::records::names_in;
use super::refused;

const FOLDER: &str = "/run/netns";
const ADMIN: &str = "CAP_SYS_ADMIN";
/// A user other than root needs it to create and remove files in root's folder.
const FILES: &str = "CAP_DAC_OVERRIDE";
/// Also needed to inspect another user's process (proc(5)).
const PTRACE: &str = "CAP_SYS_PTRACE and CAP_SYS_ADMIN";
const NO_PATH: Option<&Path> = None;

/// Runs `work` in the namespace `name` (a name, a path or a PID); without a name, in this thread's.
///
/// # Errors
/// No namespace of that name (the error lists those that exist), path or PID; a missing `CAP_SYS_ADMIN`; no
/// thread can be started; or an error of `work`.
pub fn run_in<T, F>(name: Option<&str>, work: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> Result<T> + Send,
{
    match name {
        None => work(),
        Some(name) => {
            let namespace = open(name)?;
            on_own_thread(|| {
                setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|e| match e {
                    Errno::EINVAL => not_one(name),
                    _ => refused("enter", object(name), ADMIN, e),
                })?;
                work()
            })
        }
    }
}

/// Runs `work` in a new namespace without a name, which exists as long as its descriptor.
///
/// # Errors
/// A missing `CAP_SYS_ADMIN`, no thread can be started, or an error of `work`.
pub fn private(work: impl FnOnce() -> Result<()> + Send) -> Result<File> {
    on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|e| refused("make", "a network namespace", ADMIN, e))?;
        work()?;
        let path = Path::new("/proc/thread-self/ns/net");
        File::open(path).map_err(|e| Error::path("open", path, e))
    })
}

/// Returns the names of all named namespaces, sorted.
pub fn list() -> Vec<String> {
    names_in(Path::new(FOLDER))
}

/// True if a namespace with this name, path or PID exists.
pub fn exists(name: &str) -> bool {
    Reference::of(name).is_ok_and(|reference| reference.path().exists())
}

/// Creates a namespace like `ip netns add`: with only a loopback interface, which is down.
///
/// # Errors
/// The name is taken or invalid; a missing `CAP_SYS_ADMIN`.
pub fn create(name: &str) -> Result<()> {
    let path = path(name)?;
    share_folder()?;
    OpenOptions::new().write(true).create_new(true).mode(0o000).open(&path).map_err(|e| {
        let taken = e.kind() == io::ErrorKind::AlreadyExists;
        let error = refused("create", object(name), FILES, e);
        if taken {
            error.remedy(format!("take another name, or remove it with `ip netns delete {name}`"))
        } else {
            error
        }
    })?;
    let made = on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .and_then(|()| {
                let own = Some("/proc/thread-self/ns/net");
                mount(own, &path, Some("none"), MsFlags::MS_BIND, NO_PATH)
            })
            .map_err(|e| refused("create", object(name), ADMIN, e))
    });
    if made.is_err() {
        // The name without a namespace is useless. The first error is the one to report.
        let _ = fs::remove_file(&path);
    }
    made
}

/// Removes a namespace's name. The kernel removes the namespace and its interfaces when the last process and
/// socket in it end.
///
/// # Errors
/// No namespace of that name, a missing `CAP_SYS_ADMIN`.
pub fn delete(name: &str) -> Result<()> {
    let path = path(name)?;
    if !path.exists() {
        return Err(unknown(name));
    }
    match umount2(&path, MntFlags::MNT_DETACH) {
        // EINVAL: the name of a removed namespace is an ordinary file.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(e) => return Err(refused("unmount", object(name), ADMIN, e)),
    }
    fs::remove_file(&path).map_err(|e| refused("delete", object(name), FILES, e))
}

/// Runs `work` in a namespace, with a `/sys` that shows that namespace's interfaces. Processes that it starts
/// inherit this view.
///
/// # Errors
/// The errors of [`run_in`].
pub fn run_in_with_mounts<T, F>(name: &str, work: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> Result<T> + Send,
{
    run_in(Some(name), || {
        show_in_sysfs(name)?;
        work()
    })
}

/// Starts a command in a namespace, with a `/sys` that shows that namespace's interfaces.
///
/// # Errors
/// The errors of [`run_in`]; the command cannot be started.
pub fn spawn(name: &str, command: &mut Command) -> Result<Child> {
    run_in_with_mounts(name, || command.spawn().map_err(|e| not_started(command, e)))
}

/// Replaces this process by a command in a namespace. Returns only on failure. The command keeps the
/// process's exit status, signals and standard streams.
pub fn exec(name: &str, command: &mut Command) -> Error {
    let replaced = run_in_with_mounts(name, || {
        let error = command.exec();
        Err::<std::convert::Infallible, _>(not_started(command, error))
    });
    match replaced {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn not_started(command: &Command, error: io::Error) -> Error {
    Error::start(command.get_program().display().to_string(), error)
}

/// Opens `/sys/class/net` with the interfaces of this thread's network namespace, regardless of this
/// process's mounts. The result stays valid when the thread moves to another namespace.
pub fn sysfs_interfaces() -> Result<File> {
    on_own_thread(|| {
        show_in_sysfs("this network namespace")?;
        let folder = "/sys/class/net";
        File::open(folder).map_err(|e| refused("open", folder, ADMIN, e))
    })
}

/// Mounts a sysfs of this thread's network namespace over `/sys`, in a new mount namespace that children
/// inherit, because programs look for interfaces in `/sys/class/net`.
fn show_in_sysfs(name: &str) -> Result<()> {
    let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(Some(""), "/", Some("none"), slave, NO_PATH))
        .and_then(|()| {
            // This hides other mounts below `/sys` (cgroups, tracefs) with the old one, as `ip netns exec`
            // does.
            let _ = umount2("/sys", MntFlags::MNT_DETACH);
            mount(Some(name), "/sys", Some("sysfs"), MsFlags::empty(), NO_PATH)
        })
        .map_err(|e| refused("show /sys of", object(name), ADMIN, e))
}

/// Makes `/run/netns` a mount shared with other mount namespaces, so that new names appear there and can be
/// deleted everywhere. iproute2 takes the same lock.
fn share_folder() -> Result<()> {
    let failed = |e: io::Error| refused("prepare", FOLDER, ADMIN, e);
    let folder = fs::DirBuilder::new().recursive(true).mode(0o755).create(FOLDER);
    folder.map_err(failed)?;
    let lock = File::open(FOLDER).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let shared = MsFlags::MS_SHARED | MsFlags::MS_REC;
    let share = || mount(Some(""), FOLDER, Some("none"), shared, NO_PATH);
    match share() {
        // EINVAL: the folder is not a mount point yet.
        Err(Errno::EINVAL) => {
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(FOLDER), FOLDER, Some("none"), bind, NO_PATH)
                .and_then(|()| share())
                .map_err(|e| failed(e.into()))
        }
        other => other.map_err(|e| failed(e.into())),
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)
            .map_err(|e| Error::start("a thread for a network namespace", e))?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Opens a namespace as a descriptor for setns(2) and rtnetlink.
pub(super) fn open(name: &str) -> Result<File> {
    let reference = Reference::of(name)?;
    File::open(reference.path()).map_err(|e| match (e.kind(), &reference) {
        (io::ErrorKind::NotFound, Reference::Path(_)) => {
            Error::Usage(format!("no network namespace '{name}': there is no such file"))
        }
        (io::ErrorKind::NotFound, Reference::Pid(_)) => Error::Usage(format!(
            "no network namespace '{name}': no namespace has this name, and no process this PID"
        )),
        (io::ErrorKind::NotFound, Reference::Name(_)) => unknown(name),
        (_, Reference::Pid(_)) => {
            refused("open", format!("the network namespace of process {name}"), PTRACE, e)
        }
        _ => refused("open", object(name), ADMIN, e),
    })
}

/// A reference to a namespace, with the file that opens it.
enum Reference {
    Name(PathBuf),
    Path(PathBuf),
    Pid(PathBuf),
}

impl Reference {
    fn of(text: &str) -> Result<Self> {
        if text.contains('/') && !text.contains('\0') {
            return Ok(Self::Path(text.into()));
        }
        let named = path(text)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        Ok(if digits && !named.exists() {
            Self::Pid(format!("/proc/{text}/ns/net").into())
        } else {
            Self::Name(named)
        })
    }

    fn path(&self) -> &Path {
        let (Self::Name(path) | Self::Path(path) | Self::Pid(path)) = self;
        path
    }
}

fn path(name: &str) -> Result<PathBuf> {
    let fits = !name.is_empty() && name.len() <= 255 && name != "." && name != "..";
    if !fits || name.contains(['/', '\0']) {
        return Err(Error::Usage(format!(
            "'{name}' cannot be a network namespace's name: it is a file name in {FOLDER}"
        )));
    }
    Ok(Path::new(FOLDER).join(name))
}

fn object(name: &str) -> String {
    format!("network namespace '{name}'")
}

/// Returns the error for a file that can be opened but is not a network namespace.
fn not_one(name: &str) -> Error {
    Error::Usage(format!(
        "'{name}' is not a network namespace; a process has one as /proc/PID/ns/net"
    ))
}

fn unknown(name: &str) -> Error {
    let names = list();
    let there = if names.is_empty() {
        "none exist; `sluice lab up` creates some".to_owned()
    } else {
        format!("available: {}", names.join(", "))
    };
    Error::Usage(format!("no network namespace '{name}'; {there}"))
}

/// Returns the namespaces of all processes that this one may inspect, and those held by a mount in this mount
/// namespace (`ip netns`, containers). Namespaces held only by a socket or another mount namespace are
/// missing.
///
/// # Errors
/// No /proc.
pub fn live_namespaces() -> io::Result<HashSet<u64>> {
    // Paths in it may contain any bytes.
    let mounts = fs::read("/proc/self/mountinfo")?;
    let mounts = String::from_utf8_lossy(&mounts);
    let mut namespaces: HashSet<u64> = mounts.lines().filter_map(mounted).collect();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path().join("ns/net");
        // Some entries are not processes, have just exited, or may not be inspected.
        namespaces.extend(fs::metadata(&path).map(|namespace| namespace.ino()));
    }
    Ok(namespaces)
}

/// Returns the namespace of a line of mountinfo: the fourth field is `net:[4026532208]`.
fn mounted(line: &str) -> Option<u64> {
    let root = line.split(' ').nth(3)?;
    root.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_file_name_is_refused() {
        let long = "n".repeat(256);
        for name in ["", ".", "..", "a/b", "../etc/passwd", "a\0b", long.as_str()] {
            let error = create(name).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{name:?}: {error}");
        }
    }

    #[test]
    fn an_unknown_name_is_said_with_what_there_is() {
        let error = run_in(Some("no-such-namespace"), || Ok(())).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("no network namespace 'no-such-namespace'; "), "{text}");
        assert!(["; available: ", "; none exist"].iter().any(|list| text.contains(list)), "{text}");
    }

    #[test]
    fn a_namespace_is_told_by_name_path_or_pid() {
        let own = std::process::id().to_string();
        for (sentence, text, expected) in [
            ("a text with a slash is a path", "/proc/self/ns/net", "/proc/self/ns/net"),
            ("also a relative one", "./lab", "./lab"),
            ("digits that are no name are a PID", &own, &format!("/proc/{own}/ns/net")),
            ("digits and more are a name", "4711a", "/run/netns/4711a"),
            ("any other is a name", "lab-left", "/run/netns/lab-left"),
        ] {
            let reference = Reference::of(text).unwrap();
            assert_eq!(reference.path(), Path::new(expected), "{sentence}");
        }
    }

    #[test]
    fn an_error_says_which_kind_of_reference_failed() {
        for (sentence, text, said) in [
            ("a path without a file", "/run/no-such/net", "there is no such file"),
            ("a file of another kind", "/dev/null", "is not a network namespace"),
            (
                "a PID above all",
                "4294967295",
                "no namespace has this name, and no process this PID",
            ),
        ] {
            let error = run_in(Some(text), || Ok(())).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{sentence}: {error}");
            assert!(error.to_string().contains(said), "{sentence}: {error}");
        }
    }

    #[test]
    fn without_a_name_the_work_runs_on_the_callers_thread() {
        let here = thread::current().id();
        let there = run_in(None, || Ok(thread::current().id())).unwrap();
        assert_eq!(here, there);
    }

    #[test]
    fn a_mount_of_a_network_namespace_is_told_from_others() {
        for (sentence, line, expected) in [
            (
                "ip netns",
                "97 61 0:4 net:[4026532208] /run/netns/a rw - nsfs nsfs rw",
                Some(4026532208),
            ),
            ("another kind", "98 61 0:4 mnt:[4026532209] /run/mnt/a rw - nsfs nsfs rw", None),
            ("a folder", "25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw", None),
            ("half a line", "25 30", None),
        ] {
            assert_eq!(mounted(line), expected, "{sentence}");
        }
    }

    #[test]
    fn the_namespace_of_this_process_exists() {
        let here = fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert!(live_namespaces().unwrap().contains(&here));
    }
}
