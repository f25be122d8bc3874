//! `host:` ports on hosts of labs: with the wire's side by `xdp:` a program is between a host and
//! its wire, and the host does not notice.

mod bridge;
#[path = "../child/limit.rs"]
mod child;
mod edges;
mod flows;
mod killed;
#[path = "../lab/on.rs"]
mod on;
#[path = "../lab/program.rs"]
mod program;
#[path = "../lab/scratch.rs"]
mod scratch;
mod through;

use sluicegate::link::{Lab, Shape};
use sluicegate::port::{Directions, OpenOptions, Port};

/// The modes that XDP has on a veth.
pub const MODES: &[&str] = &["native", "skb"];

/// A lab for one test, or the reason why there is none.
pub fn lab() -> Option<Lab> {
    scratch::lab_of(Shape::Pair, 1)
}

/// Opens a port on the host `right`.
pub fn open(lab: &Lab, name: &str, usage: Directions) -> sluicegate::Result<Port> {
    let options = OpenOptions { usage, netns: Some(lab.netns("right")), ..OpenOptions::default() };
    Port::open(&name.parse()?, &options)
}

/// Runs a command on a host, whose words are apart; whether it succeeded.
pub fn run(lab: &Lab, host: &str, command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    on::on(&lab.netns(host), &words).status.success()
}
