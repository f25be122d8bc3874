//! Giving up privileges, once everything is open.

use nix::unistd::{Gid, Uid, User, geteuid, initgroups, setgid, setuid};
use sluicegate::error::{Error, Result};

/// Makes the process an ordinary user's, for good. What is open stays open.
///
/// # Errors
/// No such user; not allowed to change.
pub fn become_user(name: &str) -> Result<()> {
    let user = User::from_name(name).map_err(|error| failed(name, error))?;
    let Some(User { uid, gid, .. }) = user else {
        return Err(Error::Usage(format!("--user {name}: there is no such user")));
    };
    let text = std::ffi::CString::new(name)
        .map_err(|_| Error::Usage("--user: a NUL byte is in no name".into()))?;
    // The user last: then nothing can be changed any more. glibc changes all threads.
    initgroups(&text, gid)
        .and_then(|()| setgid(gid))
        .and_then(|()| setuid(uid))
        .map_err(|error| failed(name, error))?;
    check(name, uid, gid)
}

/// A process that believes it has given up its privileges and has not is worse than one that
/// has not tried.
fn check(name: &str, uid: Uid, gid: Gid) -> Result<()> {
    let came_back = !uid.is_root() && setuid(Uid::from_raw(0)).is_ok();
    if geteuid() != uid || nix::unistd::getegid() != gid || came_back {
        return Err(Error::Usage(format!("--user {name}: the privileges are still there")));
    }
    Ok(())
}

fn failed(name: &str, error: nix::Error) -> Error {
    if error == nix::Error::EPERM {
        return Error::Privilege {
            operation: format!("--user {name}"),
            capability: "CAP_SETUID and CAP_SETGID",
            remedy: "run it with sudo, or leave --user out".into(),
        };
    }
    Error::system("become the user", name, error)
}
