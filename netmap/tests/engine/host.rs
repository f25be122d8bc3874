//! The host of the engine: this process.

use std::sync::Arc;

use sluicegate_netmap::engine::{Engine, EngineOptions, NetmapFile};

/// An engine in this process.
pub struct Host(Arc<Engine>);

impl Host {
    pub const IS_SHARED: bool = false;

    pub fn new(options: EngineOptions) -> Self {
        Self(Engine::new(options))
    }

    pub fn open(&self) -> Box<dyn NetmapFile> {
        Box::new(self.0.open())
    }
}
