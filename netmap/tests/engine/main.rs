//! Tests of the engine: programs that read and write rings in a region.

mod cards;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod embedded;
mod files;
mod host;
mod hostile;
mod pipes;
mod program;
#[path = "../../../core/tests/lab/scratch.rs"]
mod scratch;
mod vale;

use host::Host;
use sluicegate_netmap::engine::EngineOptions;

/// Creates an engine without options.
pub fn engine() -> Host {
    Host::new(EngineOptions::default())
}
