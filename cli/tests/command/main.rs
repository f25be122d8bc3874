//! The command as its users run it: against foreign traffic, tools and readers. A test without the root
//! privilege, tool or folder that it needs prints that and passes.

mod bench;
mod capture;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod edit;
mod examples;
mod exits;
mod forward;
mod installed;
mod lab;
mod ledger;
#[path = "../../../core/tests/child/lines.rs"]
mod lines;
mod memif;
mod names;
mod netmap;
mod quiet;
#[path = "../../../core/tests/real_captures/mod.rs"]
mod real_captures;
#[path = "../../../core/tests/lab/scratch.rs"]
mod scratch;
mod screen;
mod scrub;
mod send;
mod signals;
mod support;
mod switch;
mod top;
