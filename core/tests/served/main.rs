//! Queues whose rings a program in another process has, and what becomes of it when that program
//! writes into them what it likes.

mod buffers;
#[path = "../child/limit.rs"]
mod child;
mod corruptions;
mod program;
mod roles;
#[path = "../lab/scratch.rs"]
mod scratch;
mod unprivileged;
mod wire;

use sluicegate::memory::PoolConfig;
use sluicegate::port::{OpenOptions, Region, Served};

/// A region of so many buffers.
pub const BUFFERS: u32 = 4096;

/// A program's region, and the port that it has, a queue each.
pub fn served(name: &str, options: &OpenOptions) -> (Region, Vec<Served>) {
    let region =
        Region::new(PoolConfig { buffers: BUFFERS, ..PoolConfig::default() }).expect("a region");
    let (_, queues) = region.open(&name.parse().unwrap(), options).expect(name);
    (region, queues)
}
