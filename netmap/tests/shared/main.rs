//! The tests of the engine once more, for programs of a server; and tests of the server.

#[path = "../engine/cards.rs"]
mod cards;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
#[path = "../engine/files.rs"]
mod files;
mod host;
#[path = "../engine/hostile.rs"]
mod hostile;
#[path = "../engine/pipes.rs"]
mod pipes;
#[path = "../engine/program.rs"]
mod program;
#[path = "../../../core/tests/lab/scratch.rs"]
mod scratch;
mod server;
mod test_server;
#[path = "../engine/vale.rs"]
mod vale;

use host::Host;
use sluicegate_netmap::engine::EngineOptions;

/// Starts a server without options.
pub fn engine() -> Host {
    Host::new(EngineOptions::default())
}
