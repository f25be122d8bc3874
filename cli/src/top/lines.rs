//! Aligned lines for each interval: the interfaces, then the active queues and CPUs.
//!
//! Each line begins with the time and its subject, for `grep` and `awk`.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use sluicegate::link::{CpuRates, Direction, DirectionRates, InterfaceRates, QueueRates, Rates};

use super::keys::COLUMNS;
use crate::units::show_si as si;

/// Returns the lines of an interval that ends now.
pub fn text(rates: &Rates) -> String {
    at(rates, &jiff::Zoned::now().strftime("%H:%M:%S").to_string())
}

fn at(rates: &Rates, time: &str) -> String {
    let mut text = format!(
        "{time} {:<21} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "interface", "rx pkt/s", "rx bit/s", "drop/s", "tx pkt/s", "tx bit/s", "drop/s"
    );
    for interface in &rates.interfaces {
        let _ = write!(text, "{time} {:<21}", interface.name);
        if interface.reset {
            let _ = writeln!(text, " new: rates from the next interval on");
            continue;
        }
        for (_, rate) in COLUMNS {
            let _ = write!(text, " {:>8}", si(rate(interface)));
        }
        for (way, rates) in [("rx", &interface.rx), ("tx", &interface.tx)] {
            if rates.drops_total() > 0.0 {
                let _ = write!(text, "  {way} {}", causes(&rates.drops));
            }
        }
        text.push('\n');
        let at_work =
            |q: &&QueueRates| [q.packets, q.drops, q.xdp_drops].iter().any(|n| *n > Some(0.0));
        for queue in interface.queues.iter().filter(at_work) {
            let label = format!("{} {} {}", interface.name, way(queue), queue.queue);
            let indent =
                if queue.direction == Direction::Tx { " ".repeat(27) } else { String::new() };
            let (packets, bits) = (si_or_dash(queue.packets), si_or_dash(queue.bits_l2));
            let drops = si_or_dash(queue.drops);
            let _ = write!(text, "{time} {label:<21}{indent} {packets:>8} {bits:>8} {drops:>8}");
            if let Some(xdp) = queue.xdp_drops.filter(|xdp| *xdp > 0.0) {
                let _ = write!(text, "  xdp drops {}", si(xdp));
            }
            text.push('\n');
        }
    }
    let busy: Vec<_> =
        rates.cpus.iter().filter(|c| c.net_rx + c.net_tx + c.processed > 0.0).collect();
    if !busy.is_empty() {
        let _ = writeln!(
            text,
            "{time} {:<21} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "cpu (whole host)", "pkt/s", "busy", "softirq", "NET_RX/s", "NET_TX/s", "drop/s"
        );
    }
    for cpu in busy {
        let _ = writeln!(
            text,
            "{time} {:<21} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}{}",
            format!("cpu {}", cpu.cpu),
            si(cpu.processed),
            percent(cpu.busy),
            percent(cpu.softirq),
            si(cpu.net_rx),
            si(cpu.net_tx),
            si(cpu.dropped),
            match cpu.time_squeeze {
                squeeze if squeeze > 0.0 => format!("  squeezed {}", si(squeeze)),
                _ => String::new(),
            }
        );
    }
    text.push('\n');
    text
}

/// Formats a rate that may be unknown.
pub fn si_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), si)
}

/// Formats a share from 0 to 1: "34%".
pub fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Formats the causes that are not zero: "missed 3.0k, errors 2".
pub fn causes(drops: &[(&'static str, f64)]) -> String {
    let causes = drops.iter().filter(|(_, rate)| *rate > 0.0);
    let causes: Vec<String> =
        causes.map(|(cause, rate)| format!("{cause} {}", si(*rate))).collect();
    causes.join(", ")
}

/// Returns the JSON line of an interval that ends now.
pub fn json(rates: &Rates, netns: Option<&str>) -> String {
    let mut line = json!({
        "time": jiff::Timestamp::now().to_string(),
        "interval_s": rates.seconds,
    });
    if let Some(netns) = netns {
        line["netns"] = netns.into();
    }
    line["interfaces"] = rates.interfaces.iter().map(interface).collect();
    line["cpus"] = rates.cpus.iter().map(cpu).collect();
    format!("{line}\n")
}

fn interface(rates: &InterfaceRates) -> Value {
    let mut object = json!({
        "name": rates.name,
        "index": rates.index,
        "state": rates.state,
        "reset": rates.reset,
        "rx": direction(&rates.rx),
        "tx": direction(&rates.tx),
        "queues": rates.queues.iter().map(queue).collect::<Value>(),
    });
    if let Some(speed) = rates.speed {
        object["speed_bps"] = speed.into();
        object["rx"]["utilisation"] = rates.utilisation(&rates.rx).into();
        object["tx"]["utilisation"] = rates.utilisation(&rates.tx).into();
    }
    if !rates.driver_losses.is_empty() {
        let losses = rates.driver_losses.iter();
        let losses: Map<String, Value> =
            losses.map(|(name, rate)| (name.to_string(), (*rate).into())).collect();
        object["driver_drops_per_s"] = losses.into();
    }
    object
}

fn direction(rates: &DirectionRates) -> Value {
    let drops: Map<String, Value> =
        rates.drops.iter().map(|&(cause, rate)| (cause.to_owned(), rate.into())).collect();
    json!({
        "pps": rates.packets,
        "bps_l2": rates.bits_l2,
        "drops_per_s": drops,
        "fifo_per_s": rates.fifo,
    })
}

fn way(queue: &QueueRates) -> &'static str {
    match queue.direction {
        Direction::Rx => "rx",
        Direction::Tx => "tx",
    }
}

fn queue(rates: &QueueRates) -> Value {
    let mut queue = json!({"direction": way(rates), "queue": rates.queue});
    let rates = [
        ("pps", rates.packets),
        ("bps_l2", rates.bits_l2),
        ("drops_per_s", rates.drops),
        ("xdp_drops_per_s", rates.xdp_drops),
    ];
    for (name, rate) in rates {
        if let Some(rate) = rate {
            queue[name] = rate.into();
        }
    }
    queue
}

fn cpu(rates: &CpuRates) -> Value {
    json!({
        "cpu": rates.cpu,
        "busy": rates.busy,
        "softirq": rates.softirq,
        "net_rx_per_s": rates.net_rx,
        "net_tx_per_s": rates.net_tx,
        "packets_per_s": rates.processed,
        "dropped_per_s": rates.dropped,
        "time_squeeze_per_s": rates.time_squeeze,
    })
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::rates;
    use super::*;

    #[test]
    fn lines_are_aligned_and_name_the_causes() {
        let text = at(&rates(), "12:00:00");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "12:00:00 interface             rx pkt/s rx bit/s   drop/s tx pkt/s tx bit/s   drop/s",
                "12:00:00 left0                        0        0        0    1.20M     576M        0",
                "12:00:00 left0 tx 0                                          1.20M        -        -",
                "12:00:00 right0                   1.15M     552M    50.0k        0        0        0  rx missed 50.0k",
                "12:00:00 right0 rx 0              1.15M     552M        7  xdp drops 3",
                "12:00:00 tap9                  new: rates from the next interval on",
                "12:00:00 cpu (whole host)         pkt/s     busy  softirq NET_RX/s NET_TX/s   drop/s",
                "12:00:00 cpu 0                    1.15M      97%      91%    18.0k        0        0  squeezed 12",
                "",
            ]
        );
    }

    #[test]
    fn causes_without_packets_are_not_named() {
        assert_eq!(
            causes(&[("missed", 0.0), ("dropped", 1500.0), ("errors", 2.0)]),
            "dropped 1.50k, errors 2"
        );
        assert_eq!(causes(&[("missed", 0.0)]), "");
    }
}
