//! The command as its users run it: against traffic, tools and readers that nobody here wrote. What
//! needs root, a tool or a folder that is not there says so and passes.

mod bench;
mod capture;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod examples;
mod exits;
mod forward;
mod lab;
mod ledger;
#[path = "../../../core/tests/child/lines.rs"]
mod lines;
mod memif;
mod quiet;
#[path = "../../../core/tests/real_captures/mod.rs"]
mod real_captures;
#[path = "../../../core/tests/lab/scratch.rs"]
mod scratch;
mod screen;
mod send;
mod signals;
mod support;
mod switch;
mod top;
