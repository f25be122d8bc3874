//! What bpf(2) is asked here, each question a safe function.
//!
//! Errors are the kernel's own ([`io::Error`](std::io::Error)); the callers know what they were
//! about.
//!
//! | file | what is asked for |
//! | --- | --- |
//! | `object` | what an object is, and that it be kept in a BPF file system |
//! | `map` | maps, their entries; a socket that is a sign in a map |
//! | `program` | loading and running programs; their names, numbers, maps and runs |
//! | `link` | which XDP program an interface has; attaching and detaching, and why an attempt fails |
//! | `tcx` | the same of programs where packets enter and leave the host's stack |

mod link;
mod map;
mod object;
mod program;
mod tcx;

pub(crate) use link::AttachFailure;
pub use link::Mode;
pub(crate) use link::{Attachment, attach, attach_for_good, attached, attachment, detach, link_of};
pub(crate) use map::{
    LruHash, Write, create_interface_map, create_map_of_maps, create_mapped_array,
    create_per_cpu_value, create_ring_buffer, create_socket_map, map_id, put, read_entry, remove,
    remove_socket, token, write_entry,
};
pub(crate) use object::{kept, pin, silence_libbpf};
pub(crate) use program::{
    Map, count_runs, load, load_bound, load_tc, maps_of, program, program_id, program_info,
    program_name, run, run_live, run_times, tie,
};
pub(crate) use tcx::{TcxProgram, link, tcx_attach, tcx_interface, tcx_programs};
