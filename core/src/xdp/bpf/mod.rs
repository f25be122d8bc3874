//! Safe functions over bpf(2): maps, programs and links.
//!
//! Errors are the kernel's own ([`io::Error`]); callers add the operation and the object.
#![allow(unsafe_code)]

mod emit;
mod link;
mod map;
mod program;

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;

use libbpf_rs::{MapCore, MapHandle, Object};

pub(crate) use emit::{ShortCopy, write_add, write_lookup, write_short_copy};
pub use link::Mode;
pub(crate) use link::{
    AttachFailure, Attachment, TcxProgram, attach, attach_permanently, attached, attachment,
    detach, link, link_of, tcx_attach, tcx_attach_first, tcx_interface, tcx_programs,
};
pub use map::SharedCounters;
pub(crate) use map::{
    Write, create_interface_map, create_map_of_maps, create_mapped_array, create_per_cpu_value,
    create_ring_buffer, create_socket_map, liveness_socket, map_id, put, read_entry, remove,
    remove_socket, write_entry,
};
pub use program::{ProgInfo, ProgTestRun, RunStatistics};
pub(crate) use program::{
    ProgramMap, bind_map, is_limit, kernel_function, load, load_bound, load_tc, maps_of, program,
    program_id, program_name, run, run_live,
};

use crate::error::Error;

/// Turns a failed bpf(2) into an error for users. The error names the capabilities if access is denied.
pub(crate) fn privileged(
    error: io::Error,
    capability: &'static str,
    operation: &'static str,
    object: &str,
) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Privilege {
            operation: format!("permission to {operation} {object}"),
            capability,
            remedy: "run as root or with sudo".into(),
        },
        _ => Error::system(operation, object, error),
    }
}

/// Keeps libbpf from printing to the user's terminal; its errors are returned as values.
pub(crate) fn silence_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(None);
    });
}

/// Finds a map of a loaded object file.
pub(crate) fn map_in(object: &Object, name: &str) -> io::Result<MapHandle> {
    let map = object.maps().find(|map| map.name() == name);
    let map = map.ok_or_else(|| io::Error::other(format!("no map {name}")))?;
    MapHandle::try_from(&map).map_err(io::Error::other)
}

/// Turns a negative status into its errno.
fn checked(status: i32) -> io::Result<i32> {
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(status) }
}

/// Turns a status into a new file descriptor, or a negative one into its errno.
fn opened(status: i32) -> io::Result<OwnedFd> {
    let fd = checked(status)?;
    // SAFETY: the kernel has just made this file descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads a name, which ends at the first NUL or fills its field.
fn text(characters: &[libc::c_char]) -> String {
    let bytes = characters.iter().map(|c| c.cast_unsigned()).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Returns the kernel's description of the object behind a file descriptor.
///
/// # Safety
/// `T` is one of the kernel's info structures (linux/bpf.h); its pointers are null or point to live buffers
/// of the sizes it states.
unsafe fn info<T>(fd: BorrowedFd<'_>, mut info: T) -> io::Result<T> {
    let mut bytes = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most `bytes`, and through pointers as the caller guarantees.
    let status = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            fd.as_raw_fd(),
            (&raw mut info).cast::<c_void>(),
            &raw mut bytes,
        )
    };
    checked(status).map(|_| info)
}

/// Opens an object pinned in a BPF file system.
pub(crate) fn open_pinned(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `path` is terminated and outlives the call.
    opened(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Pins an object in a BPF file system, where it outlives every process that uses it.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CString) -> io::Result<()> {
    // SAFETY: `path` is terminated and outlives the call.
    checked(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(|_| ())
}
