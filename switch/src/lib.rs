//! A learning Ethernet switch over the ports of `sluicegate`.
//!
//! A [`Switch`] has ports and a [`Table`](table::Table) of which hosts are behind which. Its owner
//! calls [`turn`](Switch::turn) again and again; a [`Worker`] does so on a thread, and a [`Handle`]
//! is for those who have something to ask it.
//!
//! ```
//! use sluicegate::port::{OpenOptions, Use};
//! use sluicegate_switch::{MemberConfig, Opened, Switch, SwitchConfig};
//!
//! let mut switch = Switch::new(SwitchConfig::default());
//! for (id, name) in ["a", "b"].into_iter().enumerate() {
//!     let opened = Opened::open(&"null:".parse()?, Some(Use::Send), &OpenOptions::default())?;
//!     switch.add(name, id as u64, opened, MemberConfig::default())?;
//! }
//! assert_eq!(switch.turn(), 0, "nothing has come");
//! switch.remove("b")?;
//! # Ok::<(), sluicegate::Error>(())
//! ```
//!
//! | module | what it knows |
//! | --- | --- |
//! | `switch` | ports in turns, a batch of each; what has become of them |
//! | `run` | a switch on a thread of its own |
//! | `forward` | where each packet goes; its way there |
//! | [`table`] | which hosts are behind which ports |
//! | [`vlan`] | the header fields a switch reads; VLANs of a port |
//! | `member` | a port in the switch: its counters and flood limit; the pool of all ports |
#![forbid(unsafe_code)]

mod forward;
mod member;
mod run;
mod switch;
pub mod table;
pub mod vlan;

pub use forward::Rules;
pub use member::{CAUSES, Counts, LossCause, MemberConfig, MemberState, Opened, shared_pool};
pub use run::{Handle, SwitchOutcome, Worker};
pub use switch::{Event, Switch, SwitchConfig};
