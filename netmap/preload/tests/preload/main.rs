//! Programs that load the library: tests that run themselves a second time, under `LD_PRELOAD`.
#![allow(unsafe_code)]

mod descriptors;
mod exits;
mod forks;
mod messages;
mod passing;
mod port;
mod program;
#[path = "../../../../core/tests/lab/scratch.rs"]
mod scratch;
mod shared_forks;
#[path = "../../../tests/shared/test_server.rs"]
mod test_server;
mod waits;
