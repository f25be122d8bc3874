//! Drops privileges after everything is open.

use std::path::Path;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{
    Gid, Uid, User, getgrouplist, getgroups, getresgid, getresuid, getuid, initgroups, setgid,
    setuid,
};
use sluicegate::error::{Error, Result};
use sluicegate::socket_file;

/// Prevents the process, its later threads and the programs it executes from gaining privileges.
///
/// # Errors
/// The kernel refuses.
pub fn gain_no_more() -> Result<()> {
    set_no_new_privs().map_err(|error| Error::system("set", "NoNewPrivs", error))?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        for capability in caps::all() {
            // An older kernel does not support all capabilities.
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
    Ok(())
}

/// The user and group IDs of a name; `None` if the user does not exist.
pub fn ids_of(name: &str) -> Option<(u32, u32)> {
    let user = User::from_name(name).ok().flatten()?;
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

/// Looks up an ordinary user that the process may become.
///
/// # Errors
/// The user does not exist or is root; the caller is neither root nor this user.
pub fn user(name: &str) -> Result<User> {
    let user = User::from_name(name).map_err(|error| failed(name, error))?;
    let Some(user) = user else {
        return Err(Error::Usage(format!("--user {name}: no such user")));
    };
    if user.uid.is_root() {
        return Err(Error::Usage(format!(
            "--user {name}: root has all privileges; name an ordinary user, or omit --user"
        )));
    }
    // If the command's file has capabilities, any caller could become any user.
    if !getuid().is_root() && getuid() != user.uid {
        return Err(Error::Privilege {
            operation: format!("--user {name}: becoming another user"),
            capability: "root as its caller",
            remedy: "run it with sudo, or name yourself".into(),
        });
    }
    Ok(user)
}

/// Changes the process to an ordinary user. Open files stay open.
///
/// # Errors
/// The errors of [`user`]; the change is not permitted; a thread still has privileges.
pub fn become_user(name: &str) -> Result<()> {
    let User { uid, gid, .. } = user(name)?;
    let text = std::ffi::CString::new(name)
        .map_err(|_| Error::Usage("--user: a name cannot contain a NUL byte".into()))?;
    let groups = getgrouplist(&text, gid).map_err(|error| failed(name, error))?;
    let ids = Ids { uid, gid, groups };
    // Not every process may do this.
    let _ = caps::clear(None, CapSet::Ambient);
    socket_file::give_to(uid.as_raw(), gid.as_raw())?;
    match change(&text, &ids) {
        // Only capabilities remain to be dropped, which `check` verifies.
        Err(nix::Error::EPERM) if ids.are_ours() => {}
        other => other.map_err(|error| failed(name, error))?,
    }
    // Clears this thread's remaining capabilities: a process that was never root keeps those of its file.
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::clear(None, set).map_err(|error| {
            Error::system("give up the privileges of", name, std::io::Error::other(error))
        })?;
    }
    check(name, &ids)?;
    socket_file::check_removable()
}

/// The user and group IDs of a process.
struct Ids {
    uid: Uid,
    gid: Gid,
    /// The user's groups; a process may be in fewer.
    groups: Vec<Gid>,
}

impl Ids {
    /// Returns true if the process has all these IDs already.
    fn are_ours(&self) -> bool {
        let Self { uid, gid, groups } = self;
        getresuid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [*uid; 3])
            && getresgid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [*gid; 3])
            && getgroups().is_ok_and(|ours| ours.iter().all(|group| groups.contains(group)))
    }
}

/// Changes to the user, in all threads (glibc does this).
fn change(name: &std::ffi::CStr, ids: &Ids) -> nix::Result<()> {
    initgroups(name, ids.gid)?;
    setgid(ids.gid)?;
    // The kernel removes capabilities only from a thread that stops being root (capabilities(7)), and
    // capset(2) changes only one thread. So a process with file capabilities first becomes root, if possible.
    let _ = setuid(Uid::from_raw(0));
    // The user comes last, because nothing can be changed afterwards.
    setuid(ids.uid)
}

/// Time for a thread that is about to exit: glibc no longer changes its user.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two looks at such a thread.
const EXIT_INTERVAL: Duration = Duration::from_millis(1);

/// Checks that no thread has a privilege left, so that no failure to drop one stays undetected.
fn check(name: &str, ids: &Ids) -> Result<()> {
    let failed = |error| Error::system("look at the threads of", "/proc/self/task", error);
    let deadline = Instant::now() + EXIT_TIMEOUT;
    for thread in std::fs::read_dir("/proc/self/task").map_err(failed)? {
        let path = thread.map_err(failed)?.path();
        while let Some(line) = remaining(&path, ids).map_err(failed)? {
            if Instant::now() > deadline {
                return Err(Error::Privilege {
                    operation: format!("--user {name}: dropping all privileges ({line} remains)"),
                    capability: "CAP_SETUID and CAP_SETGID",
                    remedy: "run it with sudo, or give its file cap_setuid and cap_setgid too"
                        .into(),
                });
            }
            std::thread::sleep(EXIT_INTERVAL);
        }
    }
    if setuid(Uid::from_raw(0)).is_ok() {
        return Err(Error::Privilege {
            operation: format!("--user {name}: giving up root"),
            capability: "CAP_SETUID and CAP_SETGID",
            remedy: "run it with sudo".into(),
        });
    }
    Ok(())
}

/// Returns the line of a thread's status that shows a privilege; none if it has exited.
fn remaining(thread: &Path, ids: &Ids) -> std::io::Result<Option<String>> {
    match std::fs::read_to_string(thread.join("status")) {
        Err(_) if !thread.exists() => Ok(None),
        status => Ok(privileged(&status?, ids).map(str::to_owned)),
    }
}

/// Returns the line of a thread's /proc/…/status that shows another user or a privilege.
fn privileged<'a>(status: &'a str, ids: &Ids) -> Option<&'a str> {
    const KEYS: [&str; 6] = ["Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapAmb"];
    let is_group = |word: &str| ids.groups.iter().any(|group| word == group.to_string());
    status.lines().find(|line| {
        let Some((key, value)) = line.split_once(':') else { return false };
        let mut words = value.split_whitespace();
        KEYS.contains(&key)
            && match key {
                "Uid" => !words.all(|word| word == ids.uid.to_string()),
                "Gid" => !words.all(|word| word == ids.gid.to_string()),
                "Groups" => !words.all(is_group),
                _ => !words.all(|word| word.bytes().all(|digit| digit == b'0')),
            }
    })
}

fn failed(name: &str, error: nix::Error) -> Error {
    if error == nix::Error::EPERM {
        return Error::Privilege {
            operation: format!("--user {name}"),
            capability: "CAP_SETUID and CAP_SETGID",
            remedy: "run it with sudo, or omit --user".into(),
        };
    }
    Error::system("become the user", name, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_any_privilege_is_seen() {
        let status = "Name:\tsluice\nUid:\t1\t1\t1\t1\nGid:\t2\t2\t2\t2\nGroups:\t2 3 \n\
                      CapInh:\t0000000000002000\nCapPrm:\t0000000000000000\n\
                      CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n\
                      CapAmb:\t0000000000000000\n";
        let groups = [2, 3, 4].map(Gid::from_raw).to_vec();
        let ids = Ids { uid: Uid::from_raw(1), gid: Gid::from_raw(2), groups };
        assert_eq!(privileged(status, &ids), None, "to inherit some is not to have them");
        for (from, to) in [
            ("Uid:\t1\t1\t1\t1", "Uid:\t1\t1\t0\t1"),
            ("Gid:\t2\t2\t2\t2", "Gid:\t2\t2\t2\t0"),
            ("Groups:\t2 3 ", "Groups:\t0 2 3 "),
            ("CapPrm:\t0000000000000000", "CapPrm:\t0000000000002000"),
            ("CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff"),
            ("CapAmb:\t0000000000000000", "CapAmb:\t8000000000000000"),
        ] {
            let changed = status.replace(from, to);
            assert_eq!(privileged(&changed, &ids), Some(to));
        }
    }
}
