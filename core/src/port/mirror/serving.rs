//! How an interface's driver runs the XDP program: whether one queue is one CPU's at a time.

use crate::link::{Ethtool, Interface};

/// The receive queues that the program sees (`rx_queue_index`), and the number of CPUs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serving {
    /// The driver's own, each on one CPU at a time.
    Apart,
    /// Its own, each on as many CPUs as there are processes that write to it.
    Together,
    /// Those of interfaces below it, each with numbers of its own from 0.
    Below,
}

impl Serving {
    /// In native mode. To be called in the interface's network namespace.
    pub fn of(interface: &Interface) -> Self {
        let driver = Ethtool::open(None).and_then(|mut it| it.driver(&interface.name));
        Self::by(&interface.kind, &driver.map(|it| it.name).unwrap_or_default())
    }

    fn by(kind: &str, driver: &str) -> Self {
        match (kind, driver) {
            // bond_xdp_set puts the program on each of its ports; netvsc_vf_setxdp on the virtual
            // function, too, beside which it goes on to receive itself.
            ("bond", _) | (_, "bonding" | "hv_netvsc") => Self::Below,
            // tun_build_skb runs the program where a process writes: macvtap has none.
            ("tun", _) | (_, "tun") => Self::Together,
            _ => Self::Apart,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_the_program_depends_on_the_driver() {
        for (kind, driver, expected, why) in [
            ("", "ice", Serving::Apart, "a card"),
            ("veth", "veth", Serving::Apart, "a pair"),
            ("", "", Serving::Apart, "nothing is said"),
            ("bond", "bonding", Serving::Below, "a bond: its ports do"),
            ("", "hv_netvsc", Serving::Below, "Hyper-V: the virtual function does, too"),
            ("tun", "tun", Serving::Together, "who writes to it does"),
        ] {
            assert_eq!(Serving::by(kind, driver), expected, "{why}");
        }
    }
}
