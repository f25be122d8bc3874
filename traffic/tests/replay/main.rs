//! Replaying files, at times that are given and not waited for.

mod addresses;
mod flows;
mod links;
mod support;
mod times;
mod whole;
