//! Tests of queues whose rings are shared with a program that may write anything into them.

mod buffers;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod corruptions;
mod program;
mod roles;
#[path = "../../../core/tests/lab/scratch.rs"]
mod scratch;
mod unprivileged;
mod wire;

use sluicegate::port::OpenOptions;
use sluicegate_netmap::{Region, RegionConfig, Served};

/// Buffers of a region.
pub const BUFFERS: u32 = 4096;

/// Creates a program's region, and the queues of its port.
pub fn served(name: &str, options: &OpenOptions) -> (Region, Vec<Served>) {
    let region = Region::new(RegionConfig { buffers: BUFFERS, ..RegionConfig::default() })
        .expect("a region");
    let (_, queues) = region.open(&name.parse().unwrap(), options).expect(name);
    (region, queues)
}
