//! Random policies and frames from a seed, to compare implementations with. The same seed gives the same ones.
//!
//! ```
//! # use sluicegate_scrub::testing::{FrameGenerator, Random, random_policy};
//! let mut random = Random::new(1);
//! let policy = random_policy(&mut random);
//! let frames = FrameGenerator::new(&policy);
//! let frame = frames.frame(&mut random);
//! ```

mod frame;
mod generator;
mod policies;
mod random;
mod rule_lists;
mod tcp;
mod udp;

pub use frame::{Fragment, FrameSpec, TunnelSpec};
pub use generator::FrameGenerator;
pub use policies::random_policy;
pub use random::Random;
pub use rule_lists::{drawn_packet, rule_list};
pub use tcp::TcpScenario;
pub use udp::{UdpScenario, a2s_query, dns_query};
