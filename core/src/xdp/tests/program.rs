//! The smallest program that redirects packets to the XSKMAP's entry of their queue, so that these tests
//! do not need the resident program.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Insn, Size, xdp_action, xdp_md};
use crate::link::netns;
use crate::xdp::Mode;
use crate::xdp::bpf::{self, Write};

/// A program on an interface, and its map; dropping it detaches the program.
pub(super) struct Redirect {
    map: OwnedFd,
    _link: OwnedFd,
}

impl Redirect {
    pub(super) fn attach(namespace: &str, ifindex: u32, mode: Mode) -> Result<Self> {
        let failed = |what| move |error| Error::system("make", what, error);
        let map = bpf::create_socket_map(c"test", 64).map_err(failed("a map"))?;
        let program = bpf::load(c"test", &redirect(&map), true)
            .map_err(|refused| failed("a program")(refused.error))?;
        // The index is one of that namespace.
        let link = netns::run_in(Some(namespace), || {
            bpf::attach(program.as_fd(), ifindex, mode).map_err(failed("a link"))
        })?;
        Ok(Self { map, _link: link })
    }

    /// Redirects the packets of a queue to a socket.
    pub(super) fn serve(&self, queue: u32, socket: &impl AsRawFd) {
        bpf::put(self.map.as_fd(), queue, socket, Write::Any).unwrap();
    }
}

fn redirect(map: &OwnedFd) -> Vec<Insn> {
    let mut asm = Assembler::new();
    asm.load(Size::W, R2, R1 + xdp_md::RX_QUEUE_INDEX);
    asm.load_map(R1, map);
    asm.mov(R3, xdp_action::PASS);
    asm.call(Helper::REDIRECT_MAP);
    asm.exit();
    asm.finish().unwrap()
}
