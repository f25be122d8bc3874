//! Filters as eBPF: every verdict is that of the interpreter.
//!
//! Each program runs in three machines: in rbpf, which needs no privilege, and in the kernel,
//! loaded as for drivers without fragments and as for those with.
#![allow(unsafe_code)]

mod assembled;
#[path = "../corpus/mod.rs"]
mod corpus;
mod generated;
mod kernel;
mod machines;
mod rbpf_machine;
mod real;
#[path = "../real_captures/mod.rs"]
mod real_captures;
mod refused;
mod shape;
