//! A device to try it with: the host in the middle of a lab, which passes on what it gets.

use std::str::FromStr;

use sluicegate::error::{Error, Result};
use sluicegate::link::{Lab, Shape};

use crate::bed::{Bed, Cpus, End, Side, list};
use crate::failure::Failure;
use crate::process::{BEGUN, Program, Running};
use crate::watch::Watch;

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

/// A lab of three hosts, of which the middle one is the device.
#[derive(Debug)]
pub struct Line {
    /// The two ends.
    pub bed: Bed,
    middle: Bed,
    /// It ends with this value, before the lab goes.
    forwarder: Option<Running>,
    _lab: Lab,
}

impl Line {
    /// Makes the lab.
    ///
    /// # Errors
    /// A missing privilege, as of [`Lab`].
    pub fn make() -> Result<Self> {
        let lab = Lab::scratch_with(Shape::Line, 1)?;
        let side = |host, interface: &str| Side {
            netns: Some(lab.netns(host)),
            interface: interface.to_owned(),
        };
        let middle = Bed::of(side("middle", "middle0"), side("middle", "middle1"))?;
        let bed = Bed::of(side("left", "left0"), side("right", "right0"))?;
        Ok(Self { bed, middle, forwarder: None, _lab: lab })
    }

    /// Starts the device.
    ///
    /// # Errors
    /// It does not start; of a bridge, `ip` is not there.
    pub fn start(&mut self, device: Device, cpus: &Cpus, watch: &dyn Watch) -> Result<(), Failure> {
        match device {
            Device::Forward => self.forwarder = Some(forward(&self.middle, cpus, watch)?),
            Device::Bridge => bridge(&self.middle)?,
        }
        Ok(())
    }
}

fn forward(middle: &Bed, cpus: &Cpus, watch: &dyn Watch) -> Result<Running, Failure> {
    let program = Program::sluice(["forward", "xdp:middle0", "xdp:middle1"]).and([
        "--cpus",
        &list(&cpus.receivers(1)),
        "--json",
        "--interval",
        "1s",
    ]);
    let mut running = program.start(middle, End::Left, None)?;
    running.until(&BEGUN, watch)?;
    Ok(running)
}

fn bridge(middle: &Bed) -> Result<(), Error> {
    for command in [
        "link add bridge type bridge",
        "link set middle0 master bridge",
        "link set middle1 master bridge",
        "link set bridge up",
    ] {
        Program::tool("ip", command.split(' ')).run(middle, End::Left)?;
    }
    Ok(())
}
