//! XDP on a driver: what it lets a port do, and what happens when the interface changes under
//! one. Made for two interfaces of real drivers (`SLUICE_TEST_WIRE`, see `wire`; `make vm-test`
//! gives them); in a lab they have a veth pair.

mod changes;
mod modes;
mod queues;
mod traffic;
#[allow(dead_code, reason = "each target uses its part of it")]
#[path = "../wire/mod.rs"]
mod wire;

/// The modes that can be asked for; the first asks for none.
const MODES: &[&str] = &["", "mode=zero-copy", "mode=copy", "mode=native", "mode=skb"];
