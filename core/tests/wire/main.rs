//! Ports on two hosts with a wire between them: a scratch lab's veth pair, or two interfaces of the
//! machine's (`SLUICE_TEST_WIRE`, see `hosts`; `make vm-test` gives those of real drivers). What
//! every backend shows (`conformance`), what a driver lets an XDP port do, and what happens when
//! the interface changes under one.

mod changes;
#[path = "../child/limit.rs"]
mod child;
mod conformance;
mod given;
mod hosts;
mod modes;
#[path = "../exchange/numbered.rs"]
mod numbered;
#[path = "../lab/on.rs"]
mod on;
#[path = "../lab/program.rs"]
mod program;
mod queues;
#[path = "../exchange/rings.rs"]
mod rings;
#[path = "../lab/scratch.rs"]
mod scratch;
mod traffic;

/// The modes that can be asked for; the first asks for none.
const MODES: &[&str] = &["", "mode=zero-copy", "mode=copy", "mode=native", "mode=skb"];
