//! `libsluice_netmap.so`: a program that loads it by `LD_PRELOAD` finds netmap at `/dev/netmap`.
//!
//! ```text
//!   program: open, ioctl, mmap, poll, select, epoll, close, dup, fcntl, sendmsg, recvmsg
//!      |
//!   interpose: is the descriptor in the table? --no--> libc (real)
//!      | yes
//!   table: descriptor number -> description, counted over dup and close
//!      |                           |
//!   File: an open of /dev/netmap   EpollSet: the netmap files in an epoll instance
//!      |
//!   engine (crate sluicegate-netmap): in this process, or in a server
//! ```
//!
//! - The program's descriptor is a real one, an empty epoll instance: the kernel's fcntl, dup and poll
//!   work on it, its number is taken, and read and write fail with EINVAL, as on netmap's device.
//! - A call on any other descriptor costs one look into the table, which takes no lock: calls that are
//!   safe in signal handlers stay so. recvmsg asks for the type of each socket that it has received.
//! - A wait (`wait`) syncs the netmap files, then sleeps on the engine's descriptors and the program's
//!   others with the remaining time, and syncs again.
//! - After a fork, the first of the two processes that syncs a file goes on with it (`ownership`).
//! - A message to another process has the file's socket to its server in place of the descriptor (`passing`).
//!
//! Static programs, raw system calls and io_uring are not seen. A program that closes descriptors it does
//! not know, after it has opened a port, also closes those of the engine.
#![deny(unsafe_code)]

mod caller_memory;
mod calls;
mod environment;
mod epoll_set;
mod exit;
mod file;
mod forks;
mod host;
mod interpose;
mod log;
mod ownership;
mod passing;
mod real;
mod requests;
mod signals;
mod standard_streams;
mod table;
mod wait;
mod wait_list;
