//! Tests of the engine: programs that read and write rings in a region.

mod cards;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod files;
mod hostile;
mod pipes;
mod program;
#[path = "../../../core/tests/lab/scratch.rs"]
mod scratch;
mod vale;

use std::sync::Arc;

use sluicegate_netmap::engine::{Engine, EngineOptions};

/// Creates an engine without options.
pub fn engine() -> Arc<Engine> {
    Engine::new(EngineOptions::default())
}
