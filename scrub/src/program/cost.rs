//! The cost of the stages, measured by BPF_PROG_RUN on changing packets.

use std::os::fd::AsFd;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, ProgramInput};
use sluicegate::error::Result;

use super::Program;
use super::load::{failed, map};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cost.bpf.o"));

/// Time per packet.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The time of a program that only changes the packet.
    pub base: Duration,
    /// The time of one that decides, too.
    pub stages: Duration,
}

/// How a packet changes.
#[derive(Clone, Copy, Debug)]
pub enum Changes<'a> {
    /// Bits of the IPv4 source and destination are random; of IPv6, the source in 2000::/3.
    Random([u32; 2]),
    /// A TCP packet over IPv4 becomes one of these. Their number is a power of two.
    Drawn(&'a [DrawnPacket]),
}

/// An IPv4 packet to draw.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrawnPacket {
    /// Source and destination.
    pub addresses: [u32; 2],
    /// Source and destination port.
    pub ports: [u16; 2],
    /// The protocol.
    pub protocol: u8,
    /// TCP flags.
    pub tcp_flags: u8,
}

impl DrawnPacket {
    fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.addresses[0].to_be_bytes());
        bytes[4..8].copy_from_slice(&self.addresses[1].to_be_bytes());
        bytes[8..10].copy_from_slice(&self.ports[0].to_be_bytes());
        bytes[10..12].copy_from_slice(&self.ports[1].to_be_bytes());
        bytes[12..14].copy_from_slice(&[self.protocol, self.tcp_flags]);
        bytes
    }
}

impl Program {
    /// Measures the present tables on a frame that changes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn cost(&self, frame: &[u8], changes: Changes<'_>, repeat: u32) -> Result<Cost> {
        let refused = |error| failed("measure", error);
        let (random, drawn) = match changes {
            Changes::Random(random) => (random, &[][..]),
            Changes::Drawn(drawn) => ([0; 2], drawn),
        };
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(refused)?;
        for mut each in open.progs_mut() {
            let wanted = each.name().to_string_lossy().starts_with("cost_");
            each.set_autoload(wanted);
        }
        for mut each in open.maps_mut() {
            let name = each.name().to_string_lossy().into_owned();
            if name == ".rodata.random" {
                let [source, destination] = random.map(|it| it.to_be().to_ne_bytes());
                let constants = [source, destination, (drawn.len() as u32).to_ne_bytes()];
                each.set_initial_value(&constants.concat()).map_err(refused)?;
            } else if name == "cost_packets" {
                each.set_max_entries(drawn.len().max(1) as u32).map_err(refused)?;
            } else if !name.starts_with("sluice_") && !name.contains("rodata") {
                each.reuse_fd(map(&self.object, &name).as_fd()).map_err(refused)?;
            }
        }
        let object = open.load().map_err(refused)?;
        for (at, packet) in (0_u32..).zip(drawn) {
            let packets = map(&object, "cost_packets");
            packets.update(&at.to_ne_bytes(), &packet.encode(), MapFlags::ANY).map_err(refused)?;
        }
        let run = |name: &str| {
            let program = super::load::program(&object, name);
            let input = ProgramInput { data_in: Some(frame), repeat, ..ProgramInput::default() };
            program.test_run(input).map(|it| it.duration).map_err(refused)
        };
        Ok(Cost { base: run("cost_base")?, stages: run("cost_stages")? })
    }
}
