//! What bpf(2) is asked here, each question a safe function: maps, programs, links.
//!
//! Errors are the kernel's own ([`io::Error`]); the callers know what they were about.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::filter::ebpf::Insn;

/// How a program is attached: `XDP_FLAGS_DRV_MODE` and `XDP_FLAGS_SKB_MODE` (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the driver, before the kernel has made anything of a packet.
    Native,
    /// By the kernel, on packets it has already taken in: works everywhere, and slowly.
    Skb,
}

impl Mode {
    fn flags(self) -> u32 {
        match self {
            Self::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Skb => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Skb => "skb",
        }
    }
}

/// How a map's entry is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Whatever was there.
    Any = libbpf_sys::BPF_ANY as isize,
    /// Only where nothing is (`EEXIST` otherwise): the kernel decides who was first.
    New = libbpf_sys::BPF_NOEXIST as isize,
}

/// A negative answer is an errno.
fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(answer) }
}

fn opened(answer: i32) -> io::Result<OwnedFd> {
    let fd = checked(answer)?;
    // SAFETY: the kernel just made this file descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn text(characters: &[libc::c_char]) -> String {
    let bytes = characters.iter().map(|c| c.cast_unsigned()).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// What the kernel says of an object behind a file descriptor.
///
/// # Safety
/// `T` is one of the kernel's info structures (linux/bpf.h); its pointers are null or lead to
/// live buffers of the sizes it states.
unsafe fn info<T>(fd: BorrowedFd<'_>, mut answer: T) -> io::Result<T> {
    let mut bytes = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most `bytes`, and through pointers as the caller has proved.
    let status = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            fd.as_raw_fd(),
            (&raw mut answer).cast::<c_void>(),
            &raw mut bytes,
        )
    };
    checked(status).map(|_| answer)
}

/// A socket that receives nothing: a sign in a map that its owner lives.
pub(crate) fn token() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this file descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // A ring of one entry: newer kernels (7.2 does, 6.18 does not) take no socket into a map
    // that could not receive.
    let entries = 1u32;
    // SAFETY: the value is a live integer of the size that is said; the kernel only reads it.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_RX_RING,
            (&raw const entries).cast(),
            size_of_val(&entries) as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// Makes an empty map of sockets, XSKMAP, with `entries` places.
pub(crate) fn create_socket_map(name: &CStr, entries: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is terminated and outlives the call; no options.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_XSKMAP,
            name.as_ptr(),
            4,
            4,
            entries,
            std::ptr::null(),
        )
    })
}

/// Makes an array that can be mapped, of `entries` values of zeros. Linux 5.5; values of more
/// than 4 MiB 5.15.
pub(crate) fn create_mapped_array(
    name: &CStr,
    value_bytes: u32,
    entries: u32,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    // SAFETY: `name` is terminated; it and `options`, which says its own size, outlive the call.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_ARRAY,
            name.as_ptr(),
            4,
            value_bytes,
            entries,
            &raw const options,
        )
    })
}

/// Makes an array of one value for each CPU, zeros.
pub(crate) fn create_per_cpu_value(name: &CStr, value_bytes: u32) -> io::Result<OwnedFd> {
    // SAFETY: `name` is terminated and outlives the call; no options.
    opened(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY,
            name.as_ptr(),
            4,
            value_bytes,
            1,
            std::ptr::null(),
        )
    })
}

/// Puts a program or a socket, by its descriptor, into a map of such.
pub(crate) fn put(
    map: BorrowedFd<'_>,
    key: u32,
    value: &impl AsRawFd,
    write: Write,
) -> io::Result<()> {
    write_entry(map, key, &value.as_raw_fd().to_ne_bytes(), write)
}

/// Writes an entry of a map. `EINVAL` if its keys have not 4 bytes, or its values not as many
/// as `value`.
pub(crate) fn write_entry(
    map: BorrowedFd<'_>,
    key: u32,
    value: &[u8],
    write: Write,
) -> io::Result<()> {
    let sizes = map_info(map)?;
    if (sizes.key_size, sizes.value_size as usize) != (4, value.len()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: key and value are as long as the map's, which is what the kernel reads.
    checked(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_ptr().cast(),
            write as u64,
        )
    })
    .map(|_| ())
}

/// Reads an entry of a map; none if there is none. `EINVAL` as in [`write_entry`].
pub(crate) fn read_entry(map: BorrowedFd<'_>, key: u32, value: &mut [u8]) -> io::Result<bool> {
    let sizes = map_info(map)?;
    if (sizes.key_size, sizes.value_size as usize) != (4, value.len()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: key and value are as long as the map's, which is what the kernel reads and writes.
    let status = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_mut_ptr().cast(),
        )
    };
    match checked(status) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes an entry out of a map; that there is none is no error.
pub(crate) fn remove(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    if map_info(map)?.key_size != 4 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the key has 4 bytes, which is what the kernel reads.
    let status =
        unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), (&raw const key).cast()) };
    match checked(status) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Takes a socket out of a map of such, as [`remove`] does, for who may have given up its
/// privileges since it put it in: kernels before 5.19 answer no bpf(2) without CAP_BPF where
/// kernel.unprivileged_bpf_disabled is set (later ones ask for it where objects are made only).
/// Then the socket stays there until it is closed.
pub(crate) fn remove_socket(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    match remove(map, key) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

/// A map's type, sizes and name.
fn map_info(map: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_map_info> {
    // SAFETY: a structure of numbers; its pointers are null.
    unsafe { info(map, libbpf_sys::bpf_map_info::default()) }
}

/// A map of a program: its name, its size in bytes where it can be mapped, a hold on it.
#[derive(Debug)]
pub(crate) struct Map {
    pub name: String,
    pub entries: u32,
    pub fd: OwnedFd,
}

/// The maps a program uses.
pub(crate) fn maps_of(program: BorrowedFd<'_>) -> io::Result<Vec<Map>> {
    let mut ids = [0u32; 64];
    let question = libbpf_sys::bpf_prog_info {
        nr_map_ids: ids.len() as u32,
        map_ids: ids.as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    // SAFETY: `map_ids` leads to as many numbers as `nr_map_ids` says.
    let count = unsafe { info(program, question) }?.nr_map_ids as usize;
    ids.iter()
        .take(count)
        .map(|&id| {
            // SAFETY: takes numbers only.
            let fd = opened(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })?;
            let info = map_info(fd.as_fd())?;
            Ok(Map { name: text(&info.name), entries: info.max_entries, fd })
        })
        .collect()
}

/// Makes a map one of the program's, though its code does not use it.
pub(crate) fn tie(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only; no options.
    checked(unsafe {
        libbpf_sys::bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), std::ptr::null())
    })
    .map(|_| ())
}

/// A hold on a program by its number.
pub(crate) fn program(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    opened(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

/// A program's name: 15 characters at most.
pub(crate) fn program_name(program: BorrowedFd<'_>) -> io::Result<String> {
    // SAFETY: a structure of numbers; its pointers are null.
    let info = unsafe { info(program, libbpf_sys::bpf_prog_info::default()) }?;
    Ok(text(&info.name))
}

/// A program's number.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: a structure of numbers; its pointers are null.
    let info = unsafe { info(program, libbpf_sys::bpf_prog_info::default()) }?;
    Ok(info.id)
}

/// The number of the XDP program on an interface of this thread's network namespace, and how
/// it is attached.
pub(crate) fn attached(interface: u32) -> io::Result<Option<(u32, Mode)>> {
    let mut answer = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: `answer` is live and says its own size.
    checked(unsafe { libbpf_sys::bpf_xdp_query(interface.cast_signed(), 0, &raw mut answer) })?;
    // A program in a card's own processor is a foreign one, whatever it is.
    let found = [
        (answer.drv_prog_id, Mode::Native),
        (answer.skb_prog_id, Mode::Skb),
        (answer.hw_prog_id, Mode::Native),
        (answer.prog_id, Mode::Native),
    ];
    Ok(found.into_iter().find(|(id, _)| *id != 0))
}

/// Attaches a program to an interface of this thread's network namespace, as long as somebody
/// holds what is returned. `EBUSY` or `EEXIST`: there is a program.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as u64,
        flags: mode.flags(),
        ..Default::default()
    };
    // SAFETY: `options` is live and says its own size.
    opened(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            interface.cast_signed(),
            libbpf_sys::BPF_XDP,
            &raw const options,
        )
    })
}

/// The link by which a program is attached; none if it is attached otherwise, or no more.
pub(crate) fn link_of(program: u32) -> io::Result<Option<OwnedFd>> {
    let mut id = 0u32;
    // SAFETY: takes and writes a number.
    while unsafe { libbpf_sys::bpf_link_get_next_id(id, &raw mut id) } == 0 {
        // SAFETY: takes numbers only.
        let link = match opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) }) {
            Ok(link) => link,
            // It ended between the two questions, or is being made just now.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        if attachment(link.as_fd())?.is_some_and(|found| found.program == program) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// Takes a link's program off the interface, whoever else holds the link.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only.
    checked(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }).map(|_| ())
}

/// Where a link is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub program: u32,
    /// The interface's number; 0 when it was taken off, or the interface is gone.
    pub interface: u32,
}

/// Where an XDP program's link is attached; none if it is a link of another kind.
pub(crate) fn attachment(link: BorrowedFd<'_>) -> io::Result<Option<Attachment>> {
    // SAFETY: a structure of numbers; its pointers are null.
    let info = unsafe { info(link, libbpf_sys::bpf_link_info::default()) }?;
    if info.type_ != libbpf_sys::BPF_LINK_TYPE_XDP {
        return Ok(None);
    }
    // SAFETY: of an XDP link the kernel fills in this part; it is a number in any case.
    let interface = unsafe { info.__bindgen_anon_1.xdp.ifindex };
    Ok(Some(Attachment { program: info.prog_id, interface }))
}

/// A hold on an object that is kept in a BPF file system.
pub(crate) fn kept(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `path` is terminated and outlives the call.
    opened(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Keeps an object in a BPF file system, whoever holds it.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CString) -> io::Result<()> {
    // SAFETY: `path` is terminated and outlives the call.
    checked(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(|_| ())
}

/// Loads an XDP program made at run time; on failure with what the verifier said.
pub(crate) fn load(name: &CStr, instructions: &[Insn], frags: bool) -> Result<OwnedFd, Refused> {
    load_for(None, name, instructions, frags)
}

/// The same for one interface of this thread's network namespace, none other: its program may
/// ask the driver for what it knows of a packet (`BPF_F_XDP_DEV_BOUND_ONLY`). Linux 6.3.
pub(crate) fn load_bound(
    interface: u32,
    name: &CStr,
    instructions: &[Insn],
    frags: bool,
) -> Result<OwnedFd, Refused> {
    load_for(Some(interface), name, instructions, frags)
}

fn load_for(
    interface: Option<u32>,
    name: &CStr,
    instructions: &[Insn],
    frags: bool,
) -> Result<OwnedFd, Refused> {
    let bound = if interface.is_some() { libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
    let fragments = if frags { libbpf_sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
    let load = |log: &mut [u8]| {
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as u64,
            prog_flags: bound | fragments,
            prog_ifindex: interface.unwrap_or_default(),
            expected_attach_type: libbpf_sys::BPF_XDP,
            log_level: u32::from(!log.is_empty()),
            log_size: size_of_val(log) as u32,
            log_buf: if log.is_empty() { std::ptr::null_mut() } else { log.as_mut_ptr().cast() },
            ..Default::default()
        };
        // SAFETY: all that `options` and the arguments point at is live; an instruction is 8
        // bytes (struct bpf_insn) and the kernel reads `instructions.len()` of them.
        opened(unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_XDP,
                name.as_ptr(),
                c"Dual BSD/GPL".as_ptr(),
                instructions.as_ptr().cast(),
                instructions.len() as u64,
                &raw mut options,
            )
        })
    };
    load(&mut []).map_err(|error| {
        // Before Linux 6.4 a log that is too long keeps its beginning, not its end.
        let mut log = vec![0; 1 << 20];
        let _ = load(&mut log);
        // What it said of ways that it left again stands behind the end, for before Linux 6.4 it
        // goes back in the log, too.
        let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
        let said = String::from_utf8_lossy(said);
        let said = said.trim_end_matches('\n').lines().rev().take(4).collect::<Vec<_>>();
        Refused { error, said: said.into_iter().rev().collect::<Vec<_>>().join("; ") }
    })
}

/// A program that the kernel did not take.
#[derive(Debug)]
pub(crate) struct Refused {
    pub error: io::Error,
    /// The end of the verifier's log.
    pub said: String,
}

/// Runs an XDP program on a packet (`BPF_PROG_TEST_RUN`): its answer, and what then begins at
/// `data_meta`.
pub(crate) fn run(program: BorrowedFd<'_>, packet: &[u8]) -> io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0; 4096];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ..Default::default()
    };
    // SAFETY: `options` and the buffers it names, with their sizes, outlive the call.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) })?;
    out.truncate(options.data_size_out as usize);
    Ok((options.retval.cast_signed(), out))
}
