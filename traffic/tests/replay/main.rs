//! Replaying files, at times that are given and not waited for.

mod files;
mod flows;
#[path = "../../../core/tests/real_captures/mod.rs"]
mod real_captures;
mod support;
mod times;
