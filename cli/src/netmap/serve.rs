//! `sluice netmap serve`: an engine that programs share.

use std::os::fd::AsFd;
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Group, daemon};
use sluicegate::error::{Error, Result};
use sluicegate_netmap::engine::{Backend, EngineOptions};
use sluicegate_netmap::shared::{ProcessEnd, Server, default_path};

use super::{PortOptions, run};
use crate::notice;
use crate::signals::Signals;

/// Options of `serve`.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Listen at this socket [default: /run/sluice/netmap.sock, where programs look for it]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Serve processes of this group, too, beside root and your own
    #[arg(long)]
    group: Option<String>,

    /// Serve in the background until this process exits; then remove the socket, and its folder if it is empty
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    until_exit: Option<i32>,

    #[command(flatten)]
    ports: PortOptions,
}

impl PortOptions {
    /// Returns the options of an engine that logs to standard error.
    ///
    /// # Errors
    /// The filter is invalid.
    fn engine(&self) -> Result<EngineOptions> {
        run::check_filter(self.filter.as_deref())?;
        let backend = self.backend.as_deref().map(|name| match name {
            "xdp" => Backend::Xdp,
            "live" => Backend::Live,
            _ => Backend::Packet,
        });
        let filter = self.filter.clone();
        // As the library reads SLUICE_NETMAP_ALLOW.
        let allow = self.allow.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
        let allow = allow.map(str::to_owned).collect();
        Ok(EngineOptions { backend, filter, allow, ..EngineOptions::default() })
    }
}

/// Serves programs until a signal, or the end of a process.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let path = args.socket.clone().unwrap_or_else(default_path);
    let group = args.group.as_deref().map(find_group).transpose()?;
    let options = args.ports.engine()?;
    let signals = Signals::catch()?;
    let Some(process) = args.until_exit else {
        let server = Server::bind(&path, group, options)?;
        notice::say(format_args!("serving netmap programs at {}", path.display()));
        while !signals.take() {
            server.serve(&[signals.as_fd()], |error| notice::say(error))?;
        }
        return Ok(());
    };
    let end = ProcessEnd::of(process)?;
    let server = Server::bind(&path, group, options)?;
    // The caller waits for the process that this ends.
    daemon(true, true).map_err(|errno| Error::start("the server", std::io::Error::from(errno)))?;
    // A process that has exited stays readable.
    let has_exited = || poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO);
    while !signals.take() && has_exited() == Ok(0) {
        server.serve(&[signals.as_fd(), end.as_fd()], |error| notice::say(error))?;
    }
    drop(server);
    if let Some(folder) = path.parent() {
        let _ = std::fs::remove_dir(folder);
    }
    Ok(())
}

fn find_group(name: &str) -> Result<Gid> {
    let found = Group::from_name(name).ok().flatten();
    let unknown = || Error::Usage(format!("--group {name}: no such group; see `getent group`"));
    found.map(|it| it.gid).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_may_have_blanks() {
        let allow = ["eth0", " eth1 ", " ", ""].map(str::to_owned).to_vec();
        let options = PortOptions { backend: None, filter: None, allow };
        assert_eq!(options.engine().unwrap().allow, ["eth0", "eth1"]);
    }
}
