//! A look at packets where they are counted: in the kernel.

use std::fmt;

use crate::filter::Frame;
use crate::filter::ebpf::Assembler;

/// A piece of program that looks at each packet of a port that only counts them (`xdp:` with
/// `action=drop` or `action=pass`), before it is counted. What it finds it leaves in maps of its own.
pub trait Inspect: fmt::Debug + Send + Sync {
    /// Writes the piece. It finds the registers of `frame` as they were loaded, and leaves them so;
    /// all others and the whole stack are free. It goes on behind itself.
    fn write(&self, asm: &mut Assembler, frame: &Frame);
}
