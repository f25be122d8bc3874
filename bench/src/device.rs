//! The host between two others as a device that forwards: a bridge or a router.

use std::str::FromStr;

use sluicegate::error::{Error, Result};

use crate::failure::Failure;
use crate::process::{BEGUN, Program, Running};
use crate::rounds::BenchObserver;
use crate::step::Order;
use crate::testbed::{Cpus, End, Line, Testbed, list};

/// How the host in the middle passes packets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `sluice forward` between two `xdp:` ports.
    Forward,
    /// The kernel's bridge.
    Bridge,
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "forward" => Ok(Self::Forward),
            "bridge" => Ok(Self::Bridge),
            _ => Err("a device is forward or bridge".into()),
        }
    }
}

/// A device that runs. It ends with this value, before its lab goes.
#[derive(Debug)]
pub struct Started {
    /// None where the kernel is the device.
    forwarder: Option<Running>,
}

impl Started {
    /// An error where it has ended by itself.
    ///
    /// # Errors
    /// It has.
    pub fn still_runs(&mut self) -> Result<(), Failure> {
        self.forwarder.as_mut().map_or(Ok(()), Running::still_runs)
    }
}

impl Device {
    /// Starts it on the host in the middle of a testbed.
    ///
    /// # Errors
    /// It does not start; of a bridge, `ip` is not there.
    pub fn start(
        self,
        testbed: &Testbed,
        cpus: &Cpus,
        watch: &dyn BenchObserver,
    ) -> Result<Started, Failure> {
        let line = testbed.line.as_ref().ok_or_else(no_middle)?;
        let forwarder = match self {
            Self::Forward => Some(forward(line, testbed, cpus, watch)?),
            Self::Bridge => {
                for Order { end, program } in bridge(line) {
                    program.run(testbed, end)?;
                }
                None
            }
        };
        Ok(Started { forwarder })
    }
}

fn no_middle() -> Error {
    Error::Usage("there is no host between two existing interfaces".into())
}

fn forward(
    line: &Line,
    testbed: &Testbed,
    cpus: &Cpus,
    watch: &dyn BenchObserver,
) -> Result<Running, Failure> {
    let [from, to] = [&line.from, &line.to].map(|interface| format!("xdp:{interface}"));
    let cpus = list(&cpus.receivers(1, 1));
    let flags = ["--cpus", &cpus, "--json", "--interval", "1s"];
    let program = Program::sluice(["forward", &from, &to]).and(flags);
    let mut running = program.start(testbed, End::Middle, None)?;
    running.until(&BEGUN, watch)?;
    Ok(running)
}

/// Commands that make the host in the middle a bridge.
pub fn bridge(line: &Line) -> Vec<Order> {
    [
        "link add bridge type bridge".to_owned(),
        format!("link set {} master bridge", line.from),
        format!("link set {} master bridge", line.to),
        "link set bridge up".to_owned(),
    ]
    .map(|command| ip(&command))
    .into()
}

/// The command that removes the bridge.
pub fn no_bridge() -> Order {
    ip("link del bridge")
}

/// Orders that make the device route packets to `address` behind it; the neighbour there has `mac`.
pub fn router(line: &Line, address: &str, mac: &str) -> Vec<Order> {
    let out = &line.to;
    vec![
        ip(&format!("route add {address}/32 dev {out}")),
        ip(&format!("neigh replace {address} lladdr {mac} dev {out} nud permanent")),
        forwarding("1"),
    ]
}

/// Commands that undo [`router`].
pub fn no_router(line: &Line, address: &str) -> [Order; 3] {
    let out = &line.to;
    [
        forwarding("0"),
        ip(&format!("neigh del {address} dev {out}")),
        ip(&format!("route del {address}/32 dev {out}")),
    ]
}

fn ip(command: &str) -> Order {
    Order { end: End::Middle, program: Program::tool("ip", command.split(' ')) }
}

fn forwarding(on: &str) -> Order {
    let program =
        Program::tool("tee", ["/proc/sys/net/ipv4/ip_forward"]).reading(format!("{on}\n"));
    Order { end: End::Middle, program }
}
