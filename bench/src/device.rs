//! The host in the middle as a device that forwards: a bridge, a router, or `sluice forward`.

use sluicegate::error::Error;

use crate::observer::{BenchObserver, Failure};
use crate::process::{BEGUN, LabHost, Program, Running};
use crate::testbed::{ADDRESS, Side, Testbed, list};

/// Starts `sluice forward` in the middle of a testbed. The device runs until the value is dropped.
///
/// # Errors
/// It does not start.
pub fn start_forwarder(testbed: &Testbed, watch: &dyn BenchObserver) -> Result<Running, Failure> {
    let ports = middle(testbed)?.each_ref().map(|side| format!("xdp:{}", side.interface));
    let cpus = list(testbed.cpus.receivers(1, 1));
    let program = Program::sluice(["forward", &ports[0], &ports[1]])
        .and(["--cpus", &cpus, "--json", "--interval", "1s"])
        .at(LabHost::Middle)
        .ready(BEGUN);
    testbed.start_ready(&program, watch)
}

/// Makes the host in the middle of a testbed a bridge.
///
/// # Errors
/// `ip` is not installed.
pub fn make_bridge(testbed: &Testbed) -> Result<(), Failure> {
    bridge(middle(testbed)?).iter().try_for_each(|program| testbed.run(program).map(drop))
}

fn middle(testbed: &Testbed) -> Result<&[Side; 2], Error> {
    let none = || Error::Usage("no host stands between two existing interfaces".into());
    testbed.middle.as_ref().ok_or_else(none)
}

/// Commands that make the host in the middle a bridge.
pub fn bridge(middle: &[Side; 2]) -> Vec<Program> {
    let [from, to] = middle.each_ref().map(|side| &side.interface);
    vec![
        ip("link add bridge type bridge"),
        ip(&format!("link set {from} master bridge")),
        ip(&format!("link set {to} master bridge")),
        ip("link set bridge up"),
    ]
}

/// The command that removes the bridge.
pub fn no_bridge() -> Program {
    ip("link del bridge")
}

/// Commands that make the host in the middle route packets to [`ADDRESS`]; the neighbour there has `mac`.
pub fn router([_, out]: &[Side; 2], mac: &str) -> Vec<Program> {
    let out = &out.interface;
    vec![
        ip(&format!("route add {ADDRESS}/32 dev {out}")),
        ip(&format!("neigh replace {ADDRESS} lladdr {mac} dev {out} nud permanent")),
        forwarding("1"),
    ]
}

/// Commands that undo [`router`].
pub fn no_router([_, out]: &[Side; 2]) -> [Program; 3] {
    let out = &out.interface;
    [
        forwarding("0"),
        ip(&format!("neigh del {ADDRESS} dev {out}")),
        ip(&format!("route del {ADDRESS}/32 dev {out}")),
    ]
}

fn ip(command: &str) -> Program {
    Program::tool("ip", command.split(' ')).at(LabHost::Middle)
}

fn forwarding(on: &str) -> Program {
    let program = Program::tool("tee", ["/proc/sys/net/ipv4/ip_forward"]);
    program.reading(format!("{on}\n")).at(LabHost::Middle)
}
