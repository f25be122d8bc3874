//! Reading capture files, checked against libpcap and tcpdump: nothing here decides by itself
//! what a file means.

#[path = "../child/limit.rs"]
mod child;
mod compressed;
mod damage;
mod examples;
mod oracle;
mod port;
#[path = "../real_captures/mod.rs"]
mod real_captures;
mod samples;
mod sink;
mod variants;
mod writer;
