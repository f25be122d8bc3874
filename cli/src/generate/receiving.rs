//! The flags of a receiver beside the sender.

use std::time::Duration;

use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::port::{Kind, PortName};
use sluicegate_traffic::analyse::{Condition, inspect};
use sluicegate_traffic::plan::{FrameBuilder, Plan, StreamPlan};

use super::method::Target;
use crate::args::Common;
use crate::ports::is_any;
use crate::send::Receiver;
use crate::units::duration_in;

/// The longest wait for the last packets.
const MAX_DRAIN: Duration = Duration::from_secs(60);
/// Packets of a stream whose stamps are checked before the run.
const SAMPLED: usize = 16;

/// The flags of a receiver.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Receiving")]
pub struct ReceiveArgs {
    /// Receive the packets by this port and count them by stream: loss, order, duplicates, latency
    #[arg(long, value_name = "PORT")]
    receive: Option<PortName>,

    /// Network namespace of the port of --receive [default: that of --netns]
    #[arg(long, value_name = "NETNS", requires = "receive")]
    receive_netns: Option<String>,

    /// Wait for missing packets after the last one, at most this long
    #[arg(long, value_name = "TIME", value_parser = drain, default_value = "500ms")]
    drain: Duration,
}

fn drain(text: &str) -> std::result::Result<Duration, String> {
    duration_in(Duration::ZERO..=MAX_DRAIN, text, "the maximum is 1m")
}

impl ReceiveArgs {
    /// Reports whether a receiver is wanted.
    pub fn is_given(&self) -> bool {
        self.receive.is_some()
    }

    /// Opens the receiver, if one is wanted.
    ///
    /// # Errors
    /// A port that would count the packets as they leave; packets without a stamp where the receiver expects it;
    /// those of opening the port.
    pub fn open(
        &self,
        plan: &Plan,
        targets: &[Target<'_>],
        common: &Common,
    ) -> Result<Option<Receiver>> {
        let Some(port) = &self.receive else { return Ok(None) };
        let netns = self.receive_netns.clone().or_else(|| common.netns.clone());
        if netns == common.netns && targets.iter().any(|target| counts_leaving(port, target)) {
            return Err(port.error(
                "--receive: the interface also sends, so this port counts packets as they leave, or none; name the \
                 interface where they arrive, or add tx_copies=off if they come back",
            ));
        }
        for (number, stream) in plan.streams.iter().enumerate() {
            check_stamp(number, stream)?;
        }
        let common = Common { netns, threads: None, ..common.clone() };
        Receiver::open(port, &common, self.drain).map(Some)
    }
}

/// Returns true if a port receives copies of the packets that a target sends. On loopback they arrive again, and
/// a port has no copies.
fn counts_leaving(port: &PortName, target: &Target<'_>) -> bool {
    let without = matches!(port.option("tx_copies"), Some("off" | "0" | "no"));
    let has_copies = port.kind() == Kind::Packet && !without;
    let sends = |it: &Interface| (is_any(port) || it.name == port.name()) && !it.loopback;
    has_copies && target.interface.as_ref().is_some_and(sends)
}

/// Checks that a receiver finds the stamp of a stream's packets, and trusts it.
fn check_stamp(number: usize, stream: &StreamPlan) -> Result<()> {
    let plan = Plan::of_stream(stream);
    let mut room = vec![0; plan.longest()];
    let mut frames = FrameBuilder::new(&plan, 0, 1, || 0);
    for _ in 0..SAMPLED {
        let Some(bytes) = frames.next_into(&mut room) else { break };
        let found = inspect(&room[..bytes], true);
        let problem = match found.stamp {
            Some(stamp) if usize::from(stamp.stream) == number => match found.condition {
                Condition::Corrupt => {
                    "a checksum or a length is wrong, so its stamp proves nothing"
                }
                Condition::Intact | Condition::Unchecked => continue,
            },
            _ => "a receiver finds no stamp after its headers",
        };
        return Err(Error::Usage(format!(
            "--receive: stream {}: {problem}; use packets of UDP, TCP or ICMP with right checksums, or omit \
             --receive",
            stream.name
        )));
    }
    Ok(())
}
