//! Serves programs written for netmap, unmodified, without netmap's kernel module.
//!
//! ```text
//!   program          open, ioctl, mmap, poll
//!      |
//!   a host           takes these calls: in the program's process, or in a server (shared)
//!      |
//!   abi              requests, port names, structures in shared memory: no I/O
//!      |
//!   engine           regions, ports, rings, syncs: no socket, no process
//!      |
//!   sluicegate       xdp:, live:, packet: and host: ports, for cards
//! ```
//!
//! A host opens an [`engine::OpenFile`] for each open of `/dev/netmap`, passes the program's ioctls to it, maps
//! the file's region for it, and polls and sleeps as the file says. Two ports of a switch, and no privilege:
//!
//! ```
//! use sluicegate_netmap::abi::bodies::{Register, modes};
//! use sluicegate_netmap::engine::{Engine, EngineOptions, NetmapFile};
//!
//! let engine = Engine::new(EngineOptions::default());
//! let files = ["vale0:a", "vale0:b"].map(|name| {
//!     let (file, mut answer) = (engine.open(), Register { mode: modes::ALL_NIC, ..Register::default() });
//!     file.register(&name.into(), &mut answer).map(|()| (file, answer))
//! });
//! for file in files {
//!     let (file, answer) = file?;
//!     assert_eq!((answer.tx_rings, answer.tx_slots), (1, 1024));
//!     assert_eq!(file.region()?.bytes, answer.memsize);
//!     file.txsync()?;
//! }
//! # Ok::<(), nix::errno::Errno>(())
//! ```
#![warn(unreachable_pub)]
#![deny(unsafe_code)]

pub mod abi;
pub mod engine;
pub mod program_file;
pub mod shared;
mod standard_streams;
