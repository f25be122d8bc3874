//! A server, in threads of this process.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;

use nix::unistd::pipe;
use sluicegate_netmap::engine::EngineOptions;
use sluicegate_netmap::shared::Server;
use tempfile::TempDir;

/// A server, until it is dropped.
pub struct TestServer {
    folder: TempDir,
    /// Closing it ends the server.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub fn new(options: EngineOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::bind(&folder.path().join("socket"), None, options);
        let (server, (end, keep)) = (server.unwrap(), pipe().unwrap());
        let serve = move || server.serve(&[end.as_fd()], |error| panic!("{error}")).unwrap();
        let thread = Some(std::thread::spawn(serve));
        Self { folder, end: Some(keep), thread }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end.take();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}
