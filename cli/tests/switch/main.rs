//! `sluice switch` as its users run it: hosts of a lab around it, traffic that nobody here wrote.
//! What needs root or a tool that is not there says so and passes.

#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod control;
mod hosts;
mod loss;
mod slow;
mod star;
#[path = "../capture/support.rs"]
#[allow(dead_code, reason = "shared with the tests of capture, which use all of it")]
mod support;
mod vlans;
mod watch;
