//! What changes under a port.
