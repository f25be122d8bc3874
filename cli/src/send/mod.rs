//! Commands that send: what they share.
//!
//! ```text
//!   source: made, or read from a file --> worker: a thread and a transmit ring --+
//!   plan --> program in the kernel: live frames ---------------------------------+--> the wire
//!   run: time, signals, status        report: attempted, accepted, sent
//! ```

mod live;
mod rate;
mod report;
mod ring;
mod run;
mod safety;

use std::io::stdout;

use sluicegate::port::PortName;
use sluicegate_traffic::rate::Pace;

use crate::args::Common;
use crate::signals::Signals;
use crate::status::Status;
use report::Sent;

pub use live::LiveSender;
pub use rate::Rate;
pub use ring::{RingSender, monotonic_ns};
pub use run::{Orders, Sender};
pub use safety::{interface_of, link_speed, target};

/// Sends, and says what became of it: all of a command that has opened its sender.
///
/// # Errors
/// What failed first.
pub fn send(
    command: &'static str,
    port: &PortName,
    common: &Common,
    mut sender: Sender,
    pace: Option<Pace>,
) -> anyhow::Result<()> {
    let sent = Sent::of(command, port, common, &sender);
    common.become_user()?;
    let signals = Signals::catch()?;
    let mut status = Status::new(common, false);
    let ended = run::run(&mut sender, common, &signals, &mut status);
    status.done();
    let ended = ended?;
    let report = sent.count(&sender, ended.elapsed, pace);
    report.print(&mut stdout().lock(), common.json)?;
    Ok(ended.result?)
}
