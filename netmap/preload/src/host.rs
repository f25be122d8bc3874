//! The engine in this process or a server, and the descriptors of its files.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use sluicegate_netmap::engine::{Engine, NetmapFile};
use sluicegate_netmap::shared::RemoteFile;

use crate::calls::{self, Call, OPEN_AND_CLOSE};
use crate::environment::{self, ServerAddress};
use crate::file::File;
use crate::standard_streams::Reserved;
use crate::table::Object;
use crate::{exit, forks, log, real, table};

/// The engine, and the process that made it. A child makes its own: the copy of its parent's has the parent's
/// memory.
static ENGINE: Mutex<Known> = Mutex::new(None);

type Known = Option<(u32, Arc<Engine>)>;

/// Keeps other threads from opening files.
pub type EngineGuard = MutexGuard<'static, Known>;

/// Locks the engine for opens.
pub fn lock() -> EngineGuard {
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from forking, until it is dropped: a fork copies the table to the child after the descriptors.
pub struct ForkLock(Option<EngineGuard>);

/// Waits for the end of another thread's fork, and keeps others out. None in a signal handler in the middle of a call,
/// which may have the lock.
pub fn lock_out_forks() -> Option<ForkLock> {
    if calls::is_interrupted() {
        return None;
    }
    // Before the lock: a signal handler of this thread must not wait for it.
    calls::enter();
    Some(ForkLock(Some(lock())))
}

impl Drop for ForkLock {
    fn drop(&mut self) {
        self.0.take();
        calls::leave();
    }
}

fn engine() -> Result<Arc<Engine>, Errno> {
    let mut known = lock();
    let process = std::process::id();
    if let Some((owner, engine)) = &*known
        && *owner == process
    {
        return Ok(Arc::clone(engine));
    }
    let engine = Engine::new(environment::engine_options()?);
    if let Some(before) = known.replace((process, Arc::clone(&engine))) {
        // Closing the parent's ports is not this process's to do.
        std::mem::forget(before);
    }
    Ok(engine)
}

/// Opens a file of the server that the environment names, or that listens at the default path; otherwise of the engine
/// in this process.
fn open_file() -> Result<Box<dyn NetmapFile>, Errno> {
    if let Some(ServerAddress { path, is_named }) = environment::server()? {
        let _reserved = Reserved::new();
        match RemoteFile::open(&path, !is_named, log::from_engine) {
            Ok(Some(file)) => return Ok(Box::new(file)),
            Ok(None) if is_named => {
                log::error(format_args!(
                    "open /dev/netmap: no server listens at {}: start it by `sluice netmap serve`",
                    path.display()
                ));
                return Err(Errno::ENXIO);
            }
            Ok(None) => {}
            // It is for others.
            Err(Errno::EACCES) if !is_named => {}
            Err(errno) => {
                let remedy = match errno {
                    Errno::EACCES => "; run as its user, or in its --group",
                    _ => "",
                };
                log::error(format_args!(
                    "open /dev/netmap: the server at {}: {}{remedy}",
                    path.display(),
                    errno.desc()
                ));
                return Err(errno);
            }
        }
    }
    Ok(Box::new(engine()?.open()))
}

/// Begins a call that opens a file.
///
/// # Errors
/// An environment variable is invalid.
pub fn begin() -> Result<Call<'static>, Errno> {
    forks::follow();
    exit::close_at_exit();
    let call = OPEN_AND_CLOSE.begin();
    environment::set_log_level()?;
    Ok(call)
}

/// Opens /dev/netmap. Returns the descriptor.
///
/// # Errors
/// The limit of open files is reached; an environment variable is invalid.
pub fn open(flags: c_int) -> Result<c_int, Errno> {
    let _call = begin()?;
    let file = File::new(open_file()?)?;
    let close_on_exec = if flags & libc::O_CLOEXEC == 0 { 0 } else { libc::EPOLL_CLOEXEC };
    // SAFETY: makes a new descriptor, which becomes the program's.
    let fd = Errno::result(unsafe { libc::epoll_create1(close_on_exec) })?;
    if flags & libc::O_NONBLOCK != 0 {
        // SAFETY: a descriptor of our own. The flag only shows in F_GETFL: netmap's calls never sleep.
        unsafe { real::fcntl64(fd, libc::F_SETFL, i64::from(libc::O_NONBLOCK)) };
    }
    let inserted = {
        // Not during a fork: the child would have the file without its descriptors, which the kernel copies first.
        let _alone = lock();
        table::insert(fd, Object::Netmap(Arc::new(file)))
    };
    if let Err(error) = inserted {
        log::error(
            "open /dev/netmap: more than 1024 are open, or the descriptor is above 65535; close some",
        );
        // SAFETY: a descriptor of our own that nobody else knows.
        unsafe { real::close(fd) };
        return Err(error);
    }
    Ok(fd)
}
