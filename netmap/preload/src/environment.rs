//! Options of the engine, from the environment.
//!
//! - `SLUICE_NETMAP_BACKEND`: `xdp`, `live` or `packet` serves interfaces; by default the number of CPUs decides.
//! - `SLUICE_NETMAP_FILTER`: a pcap-filter expression; a registered interface takes only what matches.
//! - `SLUICE_NETMAP_ALLOW`: interfaces, with commas, that may be taken although they carry the default route.
//! - `SLUICE_NETMAP_LOG`: lines on stderr (see `log`).
//! - `SLUICE_NETMAP_SERVER`: the socket of the server to use, or `off`. By default /run/sluice/netmap.sock, if a
//!   server of this network namespace listens there and none of the first three is set.

use std::path::PathBuf;

use nix::errno::Errno;
use sluicegate_netmap::engine::{Backend, EngineOptions};
use sluicegate_netmap::shared;

use crate::log;

/// Variables that a server does not read.
const OPTIONS: [&str; 3] = ["SLUICE_NETMAP_BACKEND", "SLUICE_NETMAP_FILTER", "SLUICE_NETMAP_ALLOW"];

/// Sets which lines are printed.
///
/// # Errors
/// EINVAL: the variable has an invalid value, which is printed.
pub fn set_log_level() -> Result<(), Errno> {
    log::set_level(match variable("SLUICE_NETMAP_LOG").as_deref() {
        None | Some("error") => log::Level::Error,
        Some("off") => log::Level::Off,
        Some("debug") => log::Level::Debug,
        Some(other) => return invalid("SLUICE_NETMAP_LOG", other, "off, error or debug"),
    });
    Ok(())
}

/// Reads the options of the engine.
///
/// # Errors
/// EINVAL: a variable has an invalid value, which is printed.
pub fn engine_options() -> Result<EngineOptions, Errno> {
    let backend = match variable("SLUICE_NETMAP_BACKEND").as_deref() {
        None => None,
        Some("xdp") => Some(Backend::Xdp),
        Some("live") => Some(Backend::Live),
        Some("packet") => Some(Backend::Packet),
        Some(other) => return invalid("SLUICE_NETMAP_BACKEND", other, "xdp, live or packet"),
    };
    let allow = variable("SLUICE_NETMAP_ALLOW").unwrap_or_default();
    let allow = allow.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(EngineOptions {
        backend,
        filter: variable("SLUICE_NETMAP_FILTER"),
        allow: allow.map(str::to_owned).collect(),
        log: Some(log::from_engine),
        ..EngineOptions::default()
    })
}

/// Where to look for a server.
pub struct ServerAddress {
    pub path: PathBuf,
    /// The environment names it.
    pub is_named: bool,
}

/// Returns the path of the server to look for; None if this process has the engine.
pub fn server_path() -> Option<PathBuf> {
    match variable("SLUICE_NETMAP_SERVER").as_deref() {
        Some("off") => None,
        Some(path) => Some(path.into()),
        None if option().is_some() => None,
        None => Some(shared::default_path()),
    }
}

/// Returns the server to look for; None if this process has the engine.
///
/// # Errors
/// EINVAL: a server is named, beside an option that it does not read.
pub fn server() -> Result<Option<ServerAddress>, Errno> {
    let Some(path) = server_path() else { return Ok(None) };
    let is_named = variable("SLUICE_NETMAP_SERVER").is_some();
    if let (true, Some(option)) = (is_named, option()) {
        log::error(format_args!(
            "open /dev/netmap: {option} has no effect on the server at {}: unset it, and give the option to \
             `sluice netmap serve`",
            path.display()
        ));
        return Err(Errno::EINVAL);
    }
    Ok(Some(ServerAddress { path, is_named }))
}

/// Returns a variable that is set, and that a server does not read.
fn option() -> Option<&'static str> {
    OPTIONS.into_iter().find(|name| variable(name).is_some())
}

/// A variable that is set and not empty. Bytes that are not UTF-8 make its value invalid, not absent.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.to_string_lossy().into_owned())
}

fn invalid<T>(name: &str, value: &str, valid: &str) -> Result<T, Errno> {
    log::error(format_args!("open /dev/netmap: {name}={value} is invalid; set it to {valid}"));
    Err(Errno::EINVAL)
}
