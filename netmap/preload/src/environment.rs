//! Options of the engine, from the environment.
//!
//! - `SLUICE_NETMAP_BACKEND`: `xdp`, `live` or `packet` serves interfaces; by default the number of CPUs decides.
//! - `SLUICE_NETMAP_FILTER`: a pcap-filter expression; a registered interface takes only what matches.
//! - `SLUICE_NETMAP_ALLOW`: interfaces, with commas, that may be taken although they carry the default route.
//! - `SLUICE_NETMAP_LOG`: lines on stderr (see `log`).

use nix::errno::Errno;
use sluicegate_netmap::engine::{Backend, EngineOptions};

use crate::log;

/// Reads the options.
///
/// # Errors
/// EINVAL: a variable has an invalid value, which is printed.
pub fn read() -> Result<EngineOptions, Errno> {
    log::set_level(match variable("SLUICE_NETMAP_LOG").as_deref() {
        None | Some("error") => log::Level::Error,
        Some("off") => log::Level::Off,
        Some("debug") => log::Level::Debug,
        Some(other) => return invalid("SLUICE_NETMAP_LOG", other, "off, error or debug"),
    });
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

/// A variable that is set and not empty. Bytes that are not UTF-8 make its value invalid, not absent.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.to_string_lossy().into_owned())
}

fn invalid<T>(name: &str, value: &str, valid: &str) -> Result<T, Errno> {
    log::error(format_args!("open /dev/netmap: {name}={value} is invalid; set it to {valid}"));
    Err(Errno::EINVAL)
}
