//! The programs of a `host:` port, generated when it is opened.
//!
//! ```text
//!   leaving the interface              the device of the port
//!     owner dead? --yes--> fallback      gate: marked? --no--> dropped
//!     | no                                 | yes
//!   marked? --yes--> out                 its ring
//!     | no
//!   of a flow of the host's? --yes--> out
//!     | no
//!   mark, redirect to the device       written by the port --> enters the interface
//! ```

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::error::{Error, Result};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Label, Size, sk_buff, tc_action};
use crate::port::interface::HOST_MARK;
use crate::xdp::bpf::{self, Write, write_lookup};
use crate::xdp::flows::{Flow, FlowLookup, FlowTable, Origin};
use crate::xdp::live::SharedCounters;

/// The name prefix of our programs on the interface.
pub(super) const NAME: &str = "sluice_host";
/// The stack offset of a map's key.
const KEY: i16 = -8;
/// The stack offset of a flow and a key.
const FLOW: i16 = KEY - 8 - Flow::BYTES as i16;

/// The fate of packets once the owner is dead: the option `fallback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadOwner {
    Pass,
    Drop,
}

/// Shows whether a port's owner is alive.
#[derive(Debug)]
pub(super) struct Liveness {
    /// A map with one entry that exists as long as the port's owner is alive.
    pub alive: OwnedFd,
    /// One word: nonzero while the port serves. A killed port leaves it set; one that ends clears it. That
    /// needs no privilege, because the word is in shared memory.
    pub begun: SharedCounters,
    liveness_socket: OwnedFd,
}

impl Liveness {
    /// Makes the value for a port that does not serve yet.
    pub(super) fn new(interface: &str) -> Result<Self> {
        let failed =
            |error| lacking(error, "create the liveness map of the host: port of", interface);
        Ok(Self {
            alive: bpf::create_socket_map(c"sluice_alive", 1).map_err(failed)?,
            begun: SharedCounters::zeros(1, "the host: port")?,
            liveness_socket: bpf::liveness_socket().map_err(failed)?,
        })
    }

    /// Starts serving.
    pub(super) fn begin(&self) -> io::Result<()> {
        bpf::put(self.alive.as_fd(), 0, &self.liveness_socket, Write::Any)?;
        self.begun.set(0, 1);
        Ok(())
    }

    /// Ends serving without the fallback. A process that has dropped its privileges cannot remove filters,
    /// but can still do this.
    pub(super) fn end(&self) {
        self.begun.set(0, 0);
    }
}

/// The capabilities of a port, as in docs/running.md.
pub(super) const CAPABILITIES: &str =
    "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, with flows= also CAP_SYS_ADMIN";

/// Explains to the user why bpf(2) or netlink refused.
pub(super) fn lacking(error: io::Error, operation: &'static str, interface: &str) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Privilege {
            operation: format!("permission to {operation} {interface}"),
            capability: CAPABILITIES,
            remedy: "run it with sudo".into(),
        },
        Some(libc::ENOENT | libc::EOPNOTSUPP) => Error::Unsupported {
            feature: format!("{operation} {interface}: a part of the kernel"),
            remedy: "load it: modprobe -a sch_ingress cls_bpf act_mirred".into(),
        },
        _ => Error::system(operation, interface, error),
    }
}

/// Loads the program for packets that the host sends through the interface. It redirects them to the port's
/// device, except packets of a port's own socket and of flows left to the host.
pub(super) fn leaving(
    liveness: &Liveness,
    device: u32,
    dead_owner: DeadOwner,
    flows: Option<&FlowTable>,
) -> io::Result<OwnedFd> {
    let mut asm = Assembler::new();
    let [dead, pass] = asm.labels();
    asm.mov(R6, R1);
    owner_is_alive(&mut asm, liveness, dead);
    asm.load(Size::W, R1, R6 + sk_buff::MARK);
    asm.jeq32(R1, HOST_MARK, pass);
    if let Some(flows) = flows {
        pass_flows(&mut asm, flows, pass);
    }
    asm.mov(R1, HOST_MARK).store(Size::W, R6 + sk_buff::MARK);
    asm.mov32(R1, device.cast_signed());
    asm.mov(R2, 0);
    asm.call(Helper::REDIRECT);
    asm.exit();
    asm.place(dead);
    fall_back(&mut asm, liveness, dead_owner, pass);
    asm.place(pass);
    answer(&mut asm, tc_action::UNSPEC);
    load(c"sluice_host_out", &asm)
}

/// Loads the program for packets that enter the host's stack from the interface. It drops them once the
/// owner is dead.
pub(super) fn entering(liveness: &Liveness) -> io::Result<OwnedFd> {
    let mut asm = Assembler::new();
    let [dead, pass] = asm.labels();
    owner_is_alive(&mut asm, liveness, dead);
    asm.jump(pass);
    asm.place(dead);
    fall_back(&mut asm, liveness, DeadOwner::Drop, pass);
    asm.place(pass);
    answer(&mut asm, tc_action::UNSPEC);
    load(c"sluice_host_in", &asm)
}

/// Loads the program for packets that are sent through the port's device. It passes redirected packets and
/// consumes others: drops of the device's discipline must only count packets that did not enter the
/// interface.
pub(super) fn gate() -> io::Result<OwnedFd> {
    let mut asm = Assembler::new();
    let marked = asm.label();
    asm.load(Size::W, R1, R1 + sk_buff::MARK);
    asm.jeq32(R1, HOST_MARK, marked);
    answer(&mut asm, tc_action::STOLEN);
    asm.place(marked);
    answer(&mut asm, tc_action::UNSPEC);
    load(c"sluice_gate", &asm)
}

/// Loads a program that matches every packet.
pub(super) fn every() -> io::Result<OwnedFd> {
    let mut asm = Assembler::new();
    answer(&mut asm, -1);
    load(c"sluice_every", &asm)
}

/// Writes a jump to `pass` for packets whose flow is in the table, and which have no VLAN tag.
fn pass_flows(asm: &mut Assembler, flows: &FlowTable, pass: Label) {
    let none = asm.label();
    asm.load(Size::W, R1, R6 + sk_buff::VLAN_PRESENT);
    asm.jne32(R1, 0, none);
    asm.load(Size::W, R7, R6 + sk_buff::DATA);
    asm.load(Size::W, R8, R6 + sk_buff::DATA_END);
    flows.write(asm, FlowLookup { data: R7, end: R8, stack: FLOW }, Origin::Host, none);
    asm.jump(pass);
    asm.place(none);
}

/// Writes a jump to `dead` unless the port's owner serves.
fn owner_is_alive(asm: &mut Assembler, liveness: &Liveness, dead: Label) {
    asm.store(Size::W, R10 + KEY, 0);
    write_lookup(asm, &liveness.alive, KEY, dead);
}

/// Writes the fallback for a dead owner. Before the first owner serves, packets pass.
fn fall_back(asm: &mut Assembler, liveness: &Liveness, dead_owner: DeadOwner, pass: Label) {
    if dead_owner == DeadOwner::Drop {
        asm.load_map_value(R1, &liveness.begun, 0);
        asm.load(Size::DW, R1, R1 + 0).jeq(0, pass);
        answer(asm, tc_action::SHOT);
    }
}

fn answer(asm: &mut Assembler, action: i32) {
    asm.mov(R0, action);
    asm.exit();
}

fn load(name: &CStr, asm: &Assembler) -> io::Result<OwnedFd> {
    let insns = asm.finish().map_err(|fault| io::Error::other(fault.to_string()))?;
    bpf::load_tc(name, &insns).map_err(|refused| match refused.error.raw_os_error() {
        Some(libc::EPERM) => refused.error,
        _ if bpf::is_limit(&refused.error) => refused.error,
        _ => io::Error::other(format!("{}: {}", refused.error, refused.log)),
    })
}
