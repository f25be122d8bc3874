//! Lost packets of an interface by cause, with those since the start.

use std::collections::HashMap;

use sluicegate::link::{InterfaceRates, Rates};

/// A cause of losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The owner of the counter: the interface, its driver, or the whole host.
    pub counter_of: &'static str,
    pub cause: String,
    /// Packets per second.
    pub rate: f64,
    /// Packets since the start.
    pub sum: f64,
}

/// The host's counters are of no interface.
const HOST: &str = "whole host";

/// Sums of losses since the start, by the number of the interface, the counter's owner and the cause.
#[derive(Debug, Default)]
pub struct Losses(HashMap<(u32, &'static str, String), f64>);

impl Losses {
    /// Adds an interval's losses.
    pub fn add(&mut self, rates: &Rates) {
        self.0.retain(|(index, of, _), _| {
            *of == HOST || rates.interfaces.iter().any(|it| it.index == *index)
        });
        let interfaces = rates.interfaces.iter();
        let own = interfaces.flat_map(|it| of_interface(it).map(move |loss| (it.index, loss)));
        for (index, (of, cause, rate)) in own.chain([(0, of_host(rates))]) {
            if rate > 0.0 {
                *self.0.entry((index, of, cause)).or_default() += rate * rates.seconds;
            }
        }
    }

    /// Returns the losses of an interface and the host, the highest first.
    pub fn of(&self, rates: &Rates, interface: &InterfaceRates) -> Vec<Loss> {
        let own = of_interface(interface).map(|loss| (interface.index, loss));
        let all = own.chain([(0, of_host(rates))]).map(|(index, (counter_of, cause, rate))| {
            let key = (index, counter_of, cause);
            let sum = self.0.get(&key).copied().unwrap_or(0.0);
            Loss { counter_of, cause: key.2, rate, sum }
        });
        let mut all: Vec<Loss> = all.collect();
        all.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(b.sum.total_cmp(&a.sum)));
        all
    }
}

type Counted = (&'static str, String, f64);

fn of_interface(interface: &InterfaceRates) -> impl Iterator<Item = Counted> {
    let ways = [("rx", &interface.rx), ("tx", &interface.tx)].into_iter();
    let own = ways.flat_map(|(way, rates)| {
        let causes = rates.drops.iter().copied().chain([("fifo", rates.fifo)]);
        causes.map(move |(cause, rate)| ("interface", format!("{way} {cause}"), rate))
    });
    let driver = interface.driver_losses.iter();
    own.chain(driver.map(|(name, rate)| ("driver", name.to_string(), *rate)))
}

/// The queue before the stack is each CPU's, and counts all namespaces.
fn of_host(rates: &Rates) -> Counted {
    let dropped = rates.cpus.iter().map(|cpu| cpu.dropped).sum();
    (HOST, "softnet: backlog of a CPU full".into(), dropped)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::rates;
    use super::*;

    #[test]
    fn losses_are_summed_and_the_highest_come_first() {
        let mut rates = rates();
        rates.seconds = 2.0;
        rates.cpus[0].dropped = 10.0;
        let mut losses = Losses::default();
        losses.add(&rates);
        losses.add(&rates);
        rates.cpus[0].dropped = 0.0;
        let right0 = &rates.interfaces[1];
        let of = losses.of(&rates, right0);
        let rows: Vec<_> =
            of.iter().map(|it| (it.counter_of, &*it.cause, it.rate, it.sum)).collect();
        assert_eq!(
            rows[..4],
            [
                ("interface", "rx missed", 50_000.0, 200_000.0),
                ("driver", "rx_queue_0_drops", 7.0, 28.0),
                ("whole host", "softnet: backlog of a CPU full", 0.0, 40.0),
                ("interface", "rx dropped", 0.0, 0.0),
            ]
        );
        losses.add(&Rates::default());
        losses.add(&rates);
        let missed = losses.of(&rates, &rates.interfaces[1])[0].sum;
        assert_eq!(missed, 100_000.0, "a new interface begins at 0");
    }
}
