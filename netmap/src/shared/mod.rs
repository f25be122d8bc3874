//! An engine that several programs share: the server's side, and the programs'.
//!
//! ```text
//!   program (client)                                server
//!   RemoteFile  --- socket: requests, descriptors --->  Session: a thread for each open file
//!               --- doorbell: calls in shared memory ->    OpenFile of the one engine
//!               <-- a socket for each thread that sleeps
//!   program's mapping  ======= region =======  engine's mapping
//! ```
//!
//! - *Requests* (REGISTER and all that change something) are messages of a socket (`message`). The end of the socket,
//!   also by kill -9, is the last close of the file: forked processes share it, and those that were sent it.
//! - *Calls* (the syncs of ioctl and poll, and the preparation of a sleep) are entries in memory that both map
//!   (`doorbell`): a system call is made only if the other side sleeps.
//! - The server validates everything that a client writes: it reads a value once. A client's calls occupy only the
//!   thread of its own file; its requests wait for each other, as in netmap.

mod client;
mod connection;
mod doorbell;
mod message;
mod open_files;
mod process_end;
mod request_lock;
mod server;
mod session;

pub use client::{RemoteFile, forget_thread};
pub use connection::{list, server_of};
pub use process_end::ProcessEnd;
pub use request_lock::ThreadLock;
pub use server::{Server, default_path};
