//! The host of the engine: a server, in threads of this process.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;

use nix::unistd::pipe;
use sluicegate_netmap::engine::{EngineOptions, NetmapFile};
use sluicegate_netmap::shared::{RemoteFile, Server};
use tempfile::TempDir;

/// A server, until it is dropped.
#[allow(dead_code)]
pub struct Host {
    folder: TempDir,
    log: fn(&str),
    /// Closing it ends the server.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[allow(dead_code)]
impl Host {
    pub const IS_SHARED: bool = true;

    pub fn new(options: EngineOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = options.log.unwrap_or(|line| println!("{line}"));
        // Its own lines are those that the clients log.
        let server = Server::bind(
            &folder.path().join("socket"),
            None,
            EngineOptions { log: None, ..options },
        );
        let (server, (end, keep)) = (server.unwrap(), pipe().unwrap());
        let serve = move || server.serve(&[end.as_fd()], |error| panic!("{error}")).unwrap();
        let thread = Some(std::thread::spawn(serve));
        Self { folder, log, end: Some(keep), thread }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn open(&self) -> Box<dyn NetmapFile> {
        Box::new(RemoteFile::open(&self.socket(), true, self.log).unwrap().unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end.take();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}
