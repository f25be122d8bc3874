//! xdp-tools: the XDP project's own programs. xdp-trafficgen sends live frames, xdp-filter drops.

use super::{Peer, Version, Work};
use crate::process::{Program, Ready};
use crate::process_output::Count;
use crate::step::{Intake, Job, Setting, Step, To, Way};
use crate::suite::drop::{ports, rules};
use crate::suite::{Kind, StepContext};
use crate::testbed::NOBODY;

pub const PEER: Peer = Peer {
    command: "xdp-filter",
    version: Version::Package,
    ..Peer::new(
        "xdp-tools",
        &[
            Work::Sends { how: "xdp-trafficgen", program: trafficgen },
            Work::Other(Kind::Drop, filter),
        ],
    )
};

/// Each rule takes a call of xdp-filter.
const RULES_MAX: u32 = 100;

/// Its packets have one size.
fn trafficgen(place: &StepContext<'_>) -> Option<Program> {
    let flags = ["udp", place.left(), "-m", NOBODY, "-P", "9", "-p", "9", "-t", "1"];
    (place.setting.size == 60).then(|| Program::tool("xdp-trafficgen", flags))
}

/// It keeps its maps in a file system that has to be where it looks for it, and goes with the script.
fn filter(place: &StepContext<'_>) -> Option<Step> {
    let (device, rules) = (place.right(), rules(place));
    let port = |port| format!("xdp-filter port {port} -p udp -m dst");
    let ports: Vec<String> = ports(rules).map(port).collect();
    let script = format!(
        "trap 'xdp-filter status; xdp-filter unload {device}; exit' INT; \
         mount -t bpf bpf /sys/fs/bpf && xdp-filter load {device} -m native -f udp && {} && \
         echo ready && while sleep 0.1; do :; done",
        ports.join(" && ")
    );
    let job = Job {
        program: Program::script("xdp-filter", script),
        cpu: None,
        ready: Ready::Says("ready"),
        count: Some(Count::After("XDP_DROP")),
    };
    let setting = Setting { rules: Some(rules), ..place.plain() };
    let way = Way::Receive(Intake::of(job, To::Host));
    (rules <= RULES_MAX).then(|| Step::new(PEER.name, "xdp-filter", setting, way))
}
