//! `sluice capture` and `sluice count`.

mod analyze;
mod any;
mod ends;
mod files;
mod json;
mod keep;
mod live;
mod messages;
mod mirror;
mod privileges;
mod recorded;
mod rotation;
mod snaplen;
mod stats;
mod tcpdump;
