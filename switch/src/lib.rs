//! A learning Ethernet switch over the ports of `sluicegate`.
//!
//! A [`Switch`] has ports and a [`MacTable`](mac_table::MacTable) of the hosts at each port. Its owner calls
//! [`run_once`](Switch::run_once) repeatedly. A [`SwitchRunner`] does this on a thread, and a [`Handle`]
//! passes requests from other threads.
//!
//! ```
//! use sluicegate::port::{Directions, OpenOptions};
//! use sluicegate_switch::{MemberConfig, OpenedPort, Switch, SwitchConfig};
//!
//! let mut switch = Switch::new(SwitchConfig::default());
//! for (id, name) in ["a", "b"].into_iter().enumerate() {
//!     let opened = OpenedPort::open(&"null:".parse()?, Some(Directions::Send), &OpenOptions::default())?;
//!     switch.add(name, id as u64, opened, MemberConfig::default())?;
//! }
//! assert_eq!(switch.run_once(), 0, "nothing has come");
//! switch.remove("b")?;
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `switch` | the switch: one batch of each queue per turn; events of ports |
//! | `run` | a switch on its own thread, and its handle |
//! | `forward` | the decision on each packet, and its forwarding |
//! | [`mac_table`] | the learned and static hosts of each port |
//! | [`vlan`] | the header fields that a switch reads; the VLANs of a port |
//! | `member` | a port in the switch; the pool of all ports |
//! | `counts` | a port's counts, and the causes of its losses |
//! | `storm` | the limit of a port's flooded packets |
#![forbid(unsafe_code)]

mod counts;
mod forward;
pub mod mac_table;
mod member;
mod run;
mod storm;
mod switch;
pub mod vlan;

pub use counts::{CAUSES, LossCause, SwitchCounts};
pub use forward::Rules;
pub use member::{MemberConfig, MemberState, OpenedPort, shared_pool};
pub use run::{Handle, SwitchOutcome, SwitchRunner};
pub use switch::{Event, Switch, SwitchConfig};
