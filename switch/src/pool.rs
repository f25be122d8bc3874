//! One pool for the ports of a switch, so that packets swap.

use std::sync::Arc;

use sluicegate::error::Result;
use sluicegate::memory::Pool;
use sluicegate::port::{Kind, OpenOptions, Port, PortName, Use};

/// A pool for all ports that can share one, and for one more that is added later. None where no
/// port gains by it: without `xdp:` ports all is copied from the kernel in any case.
///
/// # Errors
/// No such interface; no memory.
pub fn shared_pool(ports: &[PortName], options: &OpenOptions) -> Result<Option<Arc<Pool>>> {
    let Some(spare) = ports.iter().find(|port| port.kind() == Kind::Xdp) else { return Ok(None) };
    let shared = ports.iter().chain([spare]).map(|port| (port.clone(), Use::Both));
    Port::pool_for(&shared.collect::<Vec<_>>(), options).map(Some)
}
