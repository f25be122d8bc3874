//! netmap's interface to programs, on bytes at the offsets of netmap's headers.

mod layout;
mod legacy;
#[path = "../caller/memory.rs"]
mod memory;
mod options;
mod port_expression;
mod port_name;
mod request;
