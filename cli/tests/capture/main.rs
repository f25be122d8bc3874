//! `sluice capture` and `sluice count` as their users run them, against traffic and readers that
//! nobody here wrote. What needs root, a tool or a folder that is not there says so and passes.

mod analyze;
#[path = "../../../core/tests/child/limit.rs"]
mod child;
mod ends;
mod files;
mod generate;
mod keys;
mod live;
mod live_ring;
mod messages;
mod mirror;
mod privileges;
mod replay;
#[path = "../screen/mod.rs"]
mod screen;
mod snaplen;
mod support;
