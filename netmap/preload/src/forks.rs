//! Forks of this process: which files a child may have.
//!
//! Between `before_fork` and the end of the fork no call begins, and a call that was in progress before keeps all
//! files with the parent: its locks stay locked in the child.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_netmap::shared;

use crate::calls::{self, OPEN_AND_CLOSE};
use crate::epoll_set::EpollSet;
use crate::file::File;
use crate::host::{self, EngineGuard};
use crate::ownership;
use crate::table::{self, Object};

/// A thread forks.
static IN_PROGRESS: AtomicBool = AtomicBool::new(false);
/// This process has attached a port to a switch.
static KEEPS_ALL: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The engine's lock while this thread forks: no other thread may have it then.
    static GUARD: Cell<ManuallyDrop<Option<EngineGuard>>> = const { Cell::new(ManuallyDrop::new(None)) };
}

/// Begins to follow forks; once for all.
pub fn follow() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        ownership::set_process();
        // SAFETY: the functions stay loaded as long as the process, and unwind never.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

/// Leaves all files with this process at its forks, because threads serve a switch.
pub fn keep_all_files() {
    KEEPS_ALL.store(true, Ordering::Relaxed);
}

/// Returns true while a thread forks.
pub fn are_in_progress() -> bool {
    // SeqCst: pairs with `before_fork`. A call sees the fork, or the fork sees the call.
    IN_PROGRESS.load(Ordering::SeqCst)
}

/// Waits for the end of a fork.
pub fn wait() {
    drop(host::lock());
}

extern "C" fn before_fork() {
    note_sharing();
    // A handler that forks in the middle of a call of its own thread leaves all files with this process.
    if calls::is_interrupted() {
        return;
    }
    GUARD.set(ManuallyDrop::new(Some(host::lock())));
    calls::enter();
    IN_PROGRESS.store(true, Ordering::SeqCst);
    for_each_set(EpollSet::wait_for_calls);
    if is_busy() {
        return;
    }
    for_each_file(|file| file.release(KEEPS_ALL.load(Ordering::Relaxed)));
}

/// Returns true if a thread is in a call.
fn is_busy() -> bool {
    let mut busy = OPEN_AND_CLOSE.are_in_progress();
    for_each_file(|file| busy |= file.calls().are_in_progress());
    busy
}

fn for_each_file(mut work: impl FnMut(&File)) {
    for object in table::objects() {
        if let Object::Netmap(file) = &*object {
            work(file);
        }
    }
}

fn for_each_set(mut work: impl FnMut(&EpollSet)) {
    for object in table::objects() {
        if let Object::Epoll(set) = &*object {
            work(set);
        }
    }
}

/// Notes that both processes have the files.
fn note_sharing() {
    for_each_file(File::note_sharing);
}

extern "C" fn in_parent() {
    // Again: another thread may have opened one since, before this one had the lock.
    note_sharing();
    if let Some(guard) = ManuallyDrop::into_inner(GUARD.take()) {
        IN_PROGRESS.store(false, Ordering::SeqCst);
        calls::leave();
        drop(guard);
    }
}

extern "C" fn in_child() {
    ownership::set_process();
    shared::forget_thread();
    KEEPS_ALL.store(false, Ordering::Relaxed);
    for_each_set(EpollSet::forget_calls);
    if IN_PROGRESS.load(Ordering::SeqCst) {
        // The threads of these calls stay behind, and this one is in none.
        OPEN_AND_CLOSE.reset();
        for_each_file(|file| file.calls().reset());
    }
    in_parent();
}
