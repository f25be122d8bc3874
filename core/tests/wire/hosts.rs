//! Two hosts on one wire, `left` with the interface `left0` and `right` with `right0`: a scratch
//! lab, or two interfaces that lie on one wire, named by `SLUICE_TEST_WIRE=eth1,eth2`. Each of
//! these is moved into a namespace of its own for the time of one test, and then moved back.
//!
//! On a slow machine (an emulated one) `SLUICE_TEST_THIN=10` makes the rows with many packets send a tenth.

use std::time::{Duration, Instant};

use sluicegate::link::{self, Lab, Shape};

use crate::given::Given;
use crate::on::on;
use crate::scratch::lab_of;

const INTERFACES: &str = "SLUICE_TEST_WIRE";
const THIN: &str = "SLUICE_TEST_THIN";

/// Two hosts on one wire.
pub enum Wire {
    /// Namespaces and a veth pair.
    Lab(Lab),
    /// Interfaces of the machine's.
    Given(Box<Given>),
}

/// A wire, or the reason why there is none. A lab's has `queues` queues; of given interfaces one
/// is left if one is asked for, so that there is one order.
pub fn wire(queues: u32) -> Option<Wire> {
    let wire = wire_in_any_order(queues)?;
    if let Wire::Given(given) = &wire
        && queues == 1
        && given.adds_queues()
    {
        println!("skipped: with a program on it the interface has more receive queues than one");
        return None;
    }
    Some(wire)
}

/// The wire, for tests that need no order of packets: given interfaces may have several queues once a program
/// is attached.
pub fn wire_in_any_order(queues: u32) -> Option<Wire> {
    let Ok(names) = std::env::var(INTERFACES) else {
        return lab_of(Shape::Pair, queues).map(Wire::Lab);
    };
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root; get it by sudo");
        return None;
    }
    let names = names.split_once(',').expect("two interfaces, as in eth1,eth2");
    Some(Wire::Given(Box::new(Given::take([names.0, names.1], queues == 1))))
}

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Divides a number of packets by `SLUICE_TEST_THIN`.
pub fn thinned(packets: u32) -> u32 {
    let Ok(divisor) = std::env::var(THIN) else { return packets };
    let fewer = packets / divisor.parse::<u32>().expect("a number in SLUICE_TEST_THIN");
    println!("thinned: {fewer} packets instead of {packets}");
    fewer
}

impl Wire {
    /// Returns true if it is a veth pair, which has every ability of the kernel.
    pub fn is_lab(&self) -> bool {
        matches!(self, Self::Lab(_))
    }

    /// The name of a host's namespace.
    pub fn netns(&self, host: &str) -> String {
        match self {
            Self::Lab(lab) => lab.netns(host),
            Self::Given(given) => given.netns(host),
        }
    }

    /// Runs a command on a host; whether it succeeded.
    pub fn run(&self, host: &str, command: &str) -> bool {
        let words: Vec<&str> = command.split_whitespace().collect();
        on(&self.netns(host), &words).status.success()
    }

    /// Sets the MTU of both ends; false if they refuse it.
    pub fn set_mtu(&self, bytes: u32) -> bool {
        let can = [("left", "left0"), ("right", "right0")]
            .iter()
            .all(|(host, name)| self.run(host, &format!("ip link set {name} mtu {bytes}")));
        if !can {
            println!("skipped: the interfaces take no MTU of {bytes}");
        }
        can
    }

    /// Waits until both ends have a link: to attach a program takes that of some cards for
    /// seconds.
    pub fn wait_for_link(&self) {
        let deadline = Instant::now() + PATIENCE;
        for (host, name) in [("left", "left0"), ("right", "right0")] {
            while !link::interface(Some(&self.netns(host)), name).unwrap().running {
                assert!(Instant::now() < deadline, "{name} has no link");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Takes `right0` away: it is deleted, or its driver lets it go.
    pub fn remove_right0(&self) {
        match self {
            Self::Lab(_) => assert!(self.run("right", "ip link del right0")),
            Self::Given(given) => given.unbind_right0(),
        }
    }
}
