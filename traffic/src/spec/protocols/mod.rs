//! One file a protocol family: where its fields stand, and what follows from the layers around.

pub(crate) mod bytes;
pub(crate) mod ip;
pub(crate) mod link;
pub(crate) mod transport;
pub(crate) mod tunnel;
