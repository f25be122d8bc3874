//! The relay that forwarders are measured beside in `sluice bench cost`: two ports, one thread, and
//! poll(2).

use std::io::{Write, stdout};
use std::time::Duration;

use sluicegate::error::Error;
use sluicegate::forward::forward;
use sluicegate::link::pin_thread;
use sluicegate::port::{OpenOptions, Port, PortName, Queue, Use, wait_any};
use sluicegate::ring::Wait;
use sluicegate_bench::cost::RELAYING;

use crate::signals::Signals;

/// How often it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Args {
    /// The two ports, of one queue each
    #[arg(value_name = "PORT", num_args = 2)]
    ports: Vec<PortName>,

    /// The CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Moves what comes in at one port to the other, both ways, until a signal comes.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    args.cpu.map_or(Ok(()), pin_thread)?;
    let wanted: Vec<_> = args.ports.iter().map(|name| (name.clone(), Use::Both)).collect();
    let mut ports = Port::open_all(&wanted, &OpenOptions { queues: 1, ..OpenOptions::default() })?;
    let mut queues: Vec<&mut Queue> = ports.iter_mut().flat_map(|port| &mut port.queues).collect();
    let [left, right] = &mut queues[..] else {
        return Err(Error::Usage("a relay has two ports of one queue each".into()).into());
    };
    writeln!(stdout(), "{RELAYING}")?;
    while !signals.take() {
        if pass(left, right)? + pass(right, left)? == 0 {
            wait_any(&mut [left, right], Wait::Sleep, LOOK)?;
        }
    }
    Ok(())
}

/// Moves what has come. Returns how many packets.
fn pass(from: &mut Queue, to: &mut Queue) -> sluicegate::Result<u32> {
    from.sync_rx()?;
    let moved = forward(from.rx_mut(), to.tx_mut());
    to.sync_tx()?;
    Ok(moved.packets())
}
