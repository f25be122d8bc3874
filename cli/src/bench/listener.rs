//! The lowest step of dropping: a program that reads what comes to a UDP socket, and forgets it.

use std::io::{ErrorKind, Write, stdout};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use serde_json::json;
use sluicegate::error::Error;

use crate::signals::Signals;

/// How often it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Args {
    /// The UDP port
    #[arg(long, value_name = "PORT")]
    port: u16,
}

/// Reads until a signal comes; then prints how many datagrams there were.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    let failed = |error| Error::system("listen on", format!("UDP port {}", args.port), error);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, args.port)).map_err(failed)?;
    socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
    writeln!(stdout(), "listening")?;
    let mut received = 0_u64;
    let mut bytes = [0; 2048];
    loop {
        match socket.recv(&mut bytes) {
            Ok(_) => received += 1,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if signals.take() {
                    break;
                }
            }
            Err(error) => return Err(failed(error).into()),
        }
        // Now and then, for it is no part of the work.
        if received.is_multiple_of(1024) && signals.take() {
            break;
        }
    }
    writeln!(stdout(), "{}", json!({ "received": received }))?;
    Ok(())
}
