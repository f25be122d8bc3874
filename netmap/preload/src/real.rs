//! The functions of libc that this library replaces: the next definitions after its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, mmsghdr, mode_t, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, ssize_t,
    timespec, timeval,
};
use nix::errno::Errno;

/// Returns the next definition of a function. Other libraries may call it before the constructors of this one
/// run, so each function is looked up when it is first called.
fn resolve(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let found = known.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name ends with a NUL byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    known.store(found, Ordering::Relaxed);
    found
}

/// Defines functions that call libc's of the same names. Without one in libc: -1, and ENOSYS.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// Calls libc's function of this name.
        ///
        /// # Safety
        /// The conditions of libc's function.
        pub unsafe fn $name($($argument: $type),*) -> $result {
            static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let name = concat!(stringify!($name), "\0").as_bytes();
            let name = CStr::from_bytes_with_nul(name).unwrap_or_default();
            let found = resolve(&KNOWN, name);
            if found.is_null() {
                Errno::ENOSYS.set();
                return -1_isize as $result;
            }
            // SAFETY: libc's function of this name has this type: the rows below follow glibc's headers. A
            // variadic function takes these arguments in the same registers (x86-64 and AArch64 on Linux).
            let function = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(found)
            };
            // SAFETY: the caller's.
            unsafe { function($($argument),*) }
        }
    )*};
}

functions! {
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    mmap64(at: *mut c_void, bytes: size_t, access: c_int, flags: c_int, fd: c_int, from: off_t) -> *mut c_void;
    poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __poll_chk(list: *mut pollfd, count: nfds_t, timeout_ms: c_int, bytes: size_t) -> c_int;
    ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __ppoll_chk(
        list: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        bytes: size_t
    ) -> c_int;
    select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t
    ) -> c_int;
    epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int;
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(
        socket: c_int,
        messages: *mut mmsghdr,
        room: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int;
}

/// Calls libc's `closefrom`.
///
/// # Safety
/// The conditions of libc's function.
pub unsafe fn closefrom(first: c_int) {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = resolve(&KNOWN, c"closefrom");
    if !found.is_null() {
        // SAFETY: `void closefrom(int)` (glibc 2.34).
        let function = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int)>(found)
        };
        // SAFETY: the caller's.
        unsafe { function(first) }
    }
}
