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

use std::collections::BTreeMap;

use serde::Serialize;
use sluicegate::link::{Direction, DirectionRates, InterfaceRates, Rates};

#[derive(Serialize)]
struct SampleJson<'a> {
    time: String,
    interval_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    netns: Option<&'a str>,
    interfaces: Vec<InterfaceJson<'a>>,
    cpus: Vec<Cpu>,
}

#[derive(Serialize)]
struct InterfaceJson<'a> {
    name: &'a str,
    index: u32,
    state: &'static str,
    reset: bool,
    rx: DirectionJson,
    tx: DirectionJson,
    queues: Vec<Queue>,
}

#[derive(Serialize)]
struct DirectionJson {
    pps: f64,
    bps_l2: f64,
    drops_per_s: BTreeMap<&'static str, f64>,
    fifo_per_s: f64,
}

#[derive(Serialize)]
struct Queue {
    direction: &'static str,
    queue: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bps_l2: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp_drops_per_s: Option<f64>,
}

#[derive(Serialize)]
struct Cpu {
    cpu: u32,
    busy: f64,
    softirq: f64,
    net_rx_per_s: f64,
    net_tx_per_s: f64,
    packets_per_s: f64,
    dropped_per_s: f64,
    time_squeeze_per_s: f64,
}

/// The line of one interval that ends now.
pub fn line(rates: &Rates, netns: Option<&str>) -> anyhow::Result<String> {
    let cpu = |cpu: &sluicegate::link::CpuRates| Cpu {
        cpu: cpu.cpu,
        busy: cpu.busy,
        softirq: cpu.softirq,
        net_rx_per_s: cpu.net_rx,
        net_tx_per_s: cpu.net_tx,
        packets_per_s: cpu.processed,
        dropped_per_s: cpu.dropped,
        time_squeeze_per_s: cpu.time_squeeze,
    };
    let line = SampleJson {
        time: jiff::Timestamp::now().to_string(),
        interval_s: rates.seconds,
        netns,
        interfaces: rates.interfaces.iter().map(interface).collect(),
        cpus: rates.cpus.iter().map(cpu).collect(),
    };
    Ok(serde_json::to_string(&line)? + "\n")
}

fn interface(rates: &InterfaceRates) -> InterfaceJson<'_> {
    let queue = |queue: &sluicegate::link::QueueRates| Queue {
        direction: match queue.direction {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        },
        queue: queue.queue,
        pps: queue.packets,
        bps_l2: queue.bits_l2,
        drops_per_s: queue.drops,
        xdp_drops_per_s: queue.xdp_drops,
    };
    InterfaceJson {
        name: &rates.name,
        index: rates.index,
        state: rates.state,
        reset: rates.reset,
        rx: way(&rates.rx),
        tx: way(&rates.tx),
        queues: rates.queues.iter().map(queue).collect(),
    }
}

fn way(rates: &DirectionRates) -> DirectionJson {
    DirectionJson {
        pps: rates.packets,
        bps_l2: rates.bits_l2,
        drops_per_s: rates.drops.iter().copied().collect(),
        fifo_per_s: rates.fifo,
    }
}
