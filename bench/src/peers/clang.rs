//! clang: an XDP program of one line, the least that dropping or passing on there can cost.

use super::{Peer, Work};
use crate::process::{Program, quoted};
use crate::process_output::Count;
use crate::step::{Order, Step, Tally, To};
use crate::suite::drop::by_kernel;
use crate::suite::forward::passing;
use crate::suite::{Kind, StepContext};
use crate::testbed::{End, Line};

pub const PEER: Peer =
    Peer::new("clang", &[Work::Other(Kind::Drop, drop), Work::Other(Kind::Forward, redirect)]);

/// Where packets go to is made out when it is compiled; `bpf_redirect` is helper 23 (linux/bpf.h).
const REDIRECT: &str = "static long (*redirect)(unsigned int, unsigned long) = (void *)23; \
    __attribute__((section(\"xdp\"), used)) int out(void *ctx) { return redirect(OUT, 0); }";
const DROP: &str = "__attribute__((section(\"xdp\"), used)) int drop(void *ctx) { return 1; }";

/// A veth counts what each queue drops.
fn drop(place: &StepContext<'_>) -> Option<Step> {
    let device = place.right();
    let add = r#"awk '/xdp_drops:/ { n += $2 } END { printf "dropped %.0f\n", n }'"#;
    let script = format!("said=$(ethtool -S {device}) && echo \"$said\" | {add}");
    let counters = Program::script("ethtool", script);
    let tally = Tally::Says(counters, Count::After("dropped"));
    let step = by_kernel(PEER.name, "XDP_DROP and nothing else", place.plain(), tally);
    place.testbed.is_ours().then(|| attach(step, End::Right, device, DROP, device))
}

/// A program at the other interface, too, as most drivers want one before they send for XDP.
fn redirect(place: &StepContext<'_>) -> Option<Step> {
    let Line { from, to, .. } = place.testbed.line.as_ref()?;
    let step = passing(place, PEER.name, "bpf_redirect and nothing else", None, To::Host);
    let step = attach(step, End::Middle, from, REDIRECT, to);
    Some(attach(step, End::Middle, to, REDIRECT, from))
}

/// Has a program made for a step and attached to a device.
fn attach(step: Step, end: End, device: &str, source: &str, out: &str) -> Step {
    let script = format!(
        "out=$(ip -o link show dev {out} | cut -d : -f 1) && echo {} | \
         clang -O2 -target bpf -D OUT=\"$out\" -x c -c -o xdp.o - && \
         ip link set dev {device} xdpdrv object xdp.o section xdp",
        quoted(source)
    );
    let on = Program::script("clang", script);
    let off = Program::tool("ip", ["link", "set", "dev", device, "xdpdrv", "off"]);
    step.with(Order { end, program: on }, Order { end, program: off })
}
