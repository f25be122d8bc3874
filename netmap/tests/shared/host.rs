//! The host of the engine: a server.

use std::path::PathBuf;

use sluicegate_netmap::engine::{EngineOptions, NetmapFile};
use sluicegate_netmap::shared::RemoteFile;

use crate::test_server::TestServer;

/// A server, until it is dropped, and what logs its clients' lines.
pub struct Host {
    server: TestServer,
    log: fn(&str),
}

impl Host {
    pub const IS_SHARED: bool = true;

    pub fn new(options: EngineOptions) -> Self {
        let log = options.log.unwrap_or(|line| println!("{line}"));
        Self { server: TestServer::new(options), log }
    }

    pub fn socket(&self) -> PathBuf {
        self.server.socket()
    }

    pub fn open(&self) -> Box<dyn NetmapFile> {
        Box::new(RemoteFile::open(&self.socket(), true, self.log).unwrap().unwrap())
    }
}
