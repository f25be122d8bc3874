//! Commands that send: what they share.
//!
//! ```text
//!   source: made, or read from a file --> worker: a thread and a transmit ring --+
//!   plan --> program in the kernel: live frames ---------------------------------+--> the wire
//!   run: time, signals, status        report: attempted, accepted, sent
//!   steering: rate, file, keys, ramp --> dial, which workers look at
//! ```

mod keys;
mod live;
mod rate;
mod report;
mod ring;
mod run;
mod steering;
mod target;

use sluicegate::port::{Kind, PortName};

use crate::args::Common;
use crate::notice;
use crate::signals::Signals;
use crate::status::Status;
use report::SendReport;
use target::Carrier;

pub use live::LiveSender;
pub use rate::{Measure, Rate};
pub use report::Paced;
pub use ring::{RingSender, Supply, monotonic_ns};
pub use run::{Orders, Sender};
pub use steering::{Changes, Steering};
pub use target::{
    Wish, best, common_hop, destination, interface_of, link_speed, short, target, zero_copy,
};

/// Sends, and says what became of it: all of a command that has opened its sender.
///
/// # Errors
/// What failed first.
pub fn send(
    command: &'static str,
    port: &PortName,
    common: &Common,
    mut sender: Sender,
    mut steering: Option<Steering>,
) -> anyhow::Result<()> {
    let sent = SendReport::of(command, port, common, &sender);
    let carrier = Carrier::of(port, common.netns.as_deref());
    common.become_user()?;
    let signals = Signals::catch()?;
    let mut status = Status::new(common, false);
    let ended =
        run::run(&mut sender, steering.as_mut(), common, &signals, carrier, &mut status, &sent);
    status.done();
    let ended = ended?;
    let mut report = sent.count(&sender, &ended, steering.as_ref());
    report.notices.iter().for_each(notice::say);
    // Those have been said.
    report.notices.splice(0..0, ended.notices);
    // Where packets go to standard output, that is for them alone.
    report.publish(port.kind() == Kind::Pcap && port.name() == "-", common.json)?;
    ended.result?;
    report.check_sent()
}
