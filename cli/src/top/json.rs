//! One JSON object a line for each interval.
//!
//! ```text
//! {
//!   "time": "2026-05-01T12:00:00.123456789Z",   when the interval ended
//!   "interval_s": 1.0,                          how long it was
//!   "netns": "lab-right",                       absent for the command's own namespace
//!   "interfaces": [{
//!     "name": "right0", "index": 2,
//!     "state": "up" | "no carrier" | "down",
//!     "reset": false,        true: new or reset within the interval, rates are zero
//!     "rx": {
//!       "pps": 1000.0,       packets per second
//!       "bps_l2": 480000.0,  bits per second of layer 2, without frame check sequence
//!       "drops_per_s": {"missed": 0.0, "dropped": 0.0, "errors": 0.0, "nohandler": 0.0},
//!       "fifo_per_s": 0.0    the card's queue overflowed; may be among the drops as well
//!     },
//!     "tx": {…, "drops_per_s": {"dropped": 0.0, "errors": 0.0}, …},
//!     "queues": [{           where the driver counts by queue
//!       "direction": "rx" | "tx", "queue": 0,
//!       "pps": 1000.0, "bps_l2": 480000.0, "drops_per_s": 0.0, "xdp_drops_per_s": 0.0
//!     }]                     each absent where the driver does not count it, or only a part
//!   }],
//!   "cpus": [{
//!     "cpu": 0, "busy": 0.25, "softirq": 0.1,            shares from 0 to 1
//!     "net_rx_per_s": 100.0, "net_tx_per_s": 0.0,        softirqs
//!     "packets_per_s": 1000.0,                           handled in softirqs
//!     "dropped_per_s": 0.0, "time_squeeze_per_s": 0.0    backlog full, budget used up
//!   }]
//! }
//! ```

use serde_json::{Map, Value, json};
use sluicegate::link::{CpuRates, Direction, DirectionRates, InterfaceRates, QueueRates, Rates};

/// The line of one interval that ends now.
pub fn line(rates: &Rates, netns: Option<&str>) -> String {
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
    json!({
        "name": rates.name,
        "index": rates.index,
        "state": rates.state,
        "reset": rates.reset,
        "rx": direction(&rates.rx),
        "tx": direction(&rates.tx),
        "queues": rates.queues.iter().map(queue).collect::<Value>(),
    })
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

fn queue(rates: &QueueRates) -> Value {
    let direction = match rates.direction {
        Direction::Rx => "rx",
        Direction::Tx => "tx",
    };
    let mut queue = json!({"direction": direction, "queue": rates.queue});
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
