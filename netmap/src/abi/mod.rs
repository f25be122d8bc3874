//! netmap's interface to programs: structures in the shared region, requests and names of ports.
//!
//! ```text
//!   ioctl(fd, NIOCCTRL, nmreq_header)       ioctl(fd, NIOCREGIF or NIOCGINFO, nmreq)
//!             | request, options                      | legacy
//!             +------------------> IncomingRequest <--+
//!                                    port name, body, options
//!             <------------------ answer: body, statuses of options, or fields of the nmreq
//! ```
//!
//! Nothing here does I/O: a [`CallerMemory`] reads and writes what the program passed by address.

pub mod bodies;
mod caller_memory;
pub mod ioctls;
mod legacy;
mod options;
mod port_expression;
mod port_name;
mod request;
pub mod structures;

pub use caller_memory::CallerMemory;
pub use options::{OptionInHand, option_types};
pub use port_expression::PortExpression;
pub use port_name::{PipeRole, PortKind, PortName};
pub use request::{IncomingRequest, Request, read_request};
pub use structures::{InterfaceHeader, RingHeader, Slot, flags};
