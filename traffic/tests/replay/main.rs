//! Tests of replay, with given times instead of waits.

mod files;
mod flows;
#[path = "../../../core/tests/real_captures/mod.rs"]
mod real_captures;
mod support;
mod times;
