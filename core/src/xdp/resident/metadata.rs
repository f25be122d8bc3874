//! The metadata reader: gets a packet's time and hash from the driver for the stages' programs.
//!
//! ```text
//!   driver ---> reader, bound to the interface ---> resident program ---> stages
//!                 |                                                        ^
//!                 `---> sluice_metadata: a value for each CPU -------------'
//! ```
//!
//! Only a program loaded for one interface may call its driver (bpf_xdp_metadata_rx_timestamp, _hash; Linux
//! 6.3), and such programs cannot be in maps of programs (bpf_prog_map_compatible), unlike the stages'
//! programs. So the reader runs before all others, calls the driver, and tail-calls the resident program. A
//! device-bound program can tail-call an unbound one since Linux 6.16, and in 6.12.34
//! (bpf_check_tail_call).
//!
//! The reader has the resident program's name and maps, so that other processes find either program the
//! same way. It calls the driver only while claims exist. Reader and stages handle a packet on the same
//! CPU, so the value belongs to that packet.

use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;

use libbpf_rs::btf::Btf;

use super::shared::{CLAIMS, INGRESS, PRESENT_AT};
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Insn, KernelFunction, Size, xdp_action};
use crate::link::{self, Interface, Metadata, XdpAbilities};
use crate::xdp::bpf::{self, ProgramMap};

/// The resident program's name, so that processes that search for it find the reader.
const NAME: &CStr = c"sluice_ingress";

/// Name of the map.
pub(super) const MAP: &str = "sluice_metadata";

/// The map's value: the driver's metadata of the packet that this CPU processes.
#[repr(C)]
struct Value {
    /// Time of the card's clock in ns; 0 if the packet has none.
    time_ns: u64,
    /// The packet's hash; 0 if it has none.
    hash: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Value>() == VALUE_BYTES as usize);
const VALUE_BYTES: u32 = 16;

/// Offset of the time in a value.
pub(super) const TIME_AT: i16 = offset_of!(Value, time_ns) as i16;
/// Offset of the hash in a value.
pub(super) const HASH_AT: i16 = offset_of!(Value, hash) as i16;

// Offsets on the reader's stack.
const KEY: i16 = -8;
const TIME: i16 = -16;
const HASH: i16 = -24;
const HASH_TYPE: i16 = -32;

/// Loads a reader for one interface of this thread's network namespace, which tail-calls the resident
/// program that uses `maps`. The error describes why there is none.
pub(super) fn load_reader(
    interface: &Interface,
    frags: bool,
    maps: &[ProgramMap],
) -> Result<OwnedFd, String> {
    if let Some(reason) = obstacle(interface) {
        return Err(reason);
    }
    let types =
        Btf::from_vmlinux().map_err(|error| format!("the kernel's BTF cannot be read: {error}"))?;
    let function = |name: &str| {
        bpf::kernel_function(&types, name)
            .ok_or("the kernel has no functions for it: Linux 6.16 does".to_owned())
    };
    let time = function("bpf_xdp_metadata_rx_timestamp")?;
    let hash = function("bpf_xdp_metadata_rx_hash")?;
    let value = bpf::create_per_cpu_value(c"sluice_metadata", VALUE_BYTES)
        .map_err(|error| format!("no map for it: {error}"))?;
    let insns = reader(maps, &value, |asm| ask(asm, time, hash))?;
    let load = |insns: &[Insn]| bpf::load_bound(interface.index, NAME, insns, frags);
    load(&insns).map_err(|refused| {
        if bpf::is_limit(&refused.error) {
            return format!("the program cannot be loaded: {}", refused.error);
        }
        let can_call = call_only(time, hash).is_some_and(|insns| load(&insns).is_ok());
        if can_call {
            format!(
                "the kernel lets no program that asks a driver run others: Linux 6.16 and \
                 6.12.34 do ({})",
                refused.error
            )
        } else {
            format!("the kernel refused the program: {}: {}", refused.error, refused.log)
        }
    })
}

/// Describes why the driver of an interface of this thread's network namespace reports no packet times.
/// None if it does.
pub(crate) fn obstacle(interface: &Interface) -> Option<String> {
    match link::xdp_abilities(None, interface) {
        Ok(abilities) => nothing_told(&interface.name, abilities),
        Err(error) => Some(error.to_string()),
    }
}

fn nothing_told(interface: &str, abilities: Option<XdpAbilities>) -> Option<String> {
    match abilities.and_then(|abilities| abilities.metadata) {
        None => {
            Some("the kernel does not say what drivers tell XDP programs: Linux 6.7 does".into())
        }
        Some(Metadata { timestamp: false, .. }) => {
            Some(format!("the driver of {interface} tells XDP programs no times"))
        }
        Some(_) => None,
    }
}

/// Builds a program that calls the driver and ignores the results.
fn call_only(time: KernelFunction, hash: KernelFunction) -> Option<Vec<Insn>> {
    let mut asm = Assembler::new();
    asm.mov(R6, R1);
    clear_stack(&mut asm);
    ask(&mut asm, time, hash);
    asm.mov(R0, xdp_action::PASS);
    asm.exit();
    asm.finish().ok()
}

/// Builds the reader. `ask` writes time and hash to the zeroed stack; R6 is the context.
fn reader(
    maps: &[ProgramMap],
    value: &OwnedFd,
    ask: impl FnOnce(&mut Assembler),
) -> Result<Vec<Insn>, String> {
    let find = |name: &str| {
        let found = maps.iter().find(|map| map.name == name);
        found.map(|map| &map.fd).ok_or_else(|| format!("no map {name}"))
    };
    let (stages, control) = (find("sluice_stages")?, find(".data.control")?);
    let claims = CLAIMS.fold(0u32, |bits, stage| bits | 1 << stage);
    let mut asm = Assembler::new();
    let [wanted, tell, go_on] = asm.labels();
    asm.mov(R6, R1);
    clear_stack(&mut asm);
    asm.load_map_value(R1, control, PRESENT_AT);
    asm.load(Size::DW, R1, R1 + 0);
    asm.jset32(R1, claims.cast_signed(), wanted);
    // A claim that was taken just now finds zeros, not another packet's metadata.
    asm.jump(tell);
    asm.place(wanted);
    ask(&mut asm);
    asm.place(tell);
    bpf::write_lookup(&mut asm, value, KEY, go_on);
    asm.load(Size::DW, R1, R10 + TIME).store(Size::DW, R0 + TIME_AT);
    asm.load(Size::W, R1, R10 + HASH).store(Size::W, R0 + HASH_AT);
    asm.place(go_on);
    asm.mov(R1, R6);
    asm.load_map(R2, stages);
    asm.mov(R3, INGRESS.cast_signed());
    asm.call(Helper::TAIL_CALL);
    asm.mov(R0, xdp_action::PASS);
    asm.exit();
    asm.finish().map_err(|fault| fault.to_string())
}

fn clear_stack(asm: &mut Assembler) {
    for place in [KEY, TIME, HASH, HASH_TYPE] {
        asm.store(Size::DW, R10 + place, 0);
    }
}

/// Gets time and hash from the driver.
fn ask(asm: &mut Assembler, time: KernelFunction, hash: KernelFunction) {
    ask_for(asm, time, &[TIME]);
    ask_for(asm, hash, &[HASH, HASH_TYPE]);
}

/// Calls a driver function that writes to stack offsets. If it returns an errno (ENODATA or EOPNOTSUPP
/// without a value), the first offset is zeroed.
fn ask_for(asm: &mut Assembler, function: KernelFunction, to: &[i16]) {
    let answered = asm.label();
    asm.mov(R1, R6);
    for (register, &place) in [R2, R3].into_iter().zip(to) {
        asm.mov(register, R10).add(i32::from(place));
    }
    asm.call_kernel(function);
    asm.jeq32(R0, 0, answered);
    // The function may have written to it before it failed.
    asm.store(Size::DW, R10 + to[0], 0);
    asm.place(answered);
}

/// Describes why a program that was attached earlier has no reader.
pub(super) fn not_at_attaching(interface: &Interface) -> String {
    format!(
        "the XDP program on {0} was attached without reading the card's times: end its users \
         (`sluice claims {0}` shows them; where it is kept, `sluice detach {0}` takes it off, and \
         ends them) and open this port first",
        interface.name
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::super::program::{Sockets, load};
    use super::super::shared::FILTERED;
    use super::super::{Action, ModeRequest, Owner, Resident, Stage};
    use super::*;
    use crate::link::{Lab, netns};
    use crate::tests;
    use crate::xdp::bpf::Write;
    use crate::xdp::rx_metadata::{RxMetadata, RxMetadataReader};
    use sluicegate_base::ring::{Meta, TimestampSource};

    /// Loads a reader with fixed metadata in place of the driver's.
    fn answering(maps: &[ProgramMap], value: &OwnedFd, time_ns: u64, hash: u64) -> OwnedFd {
        let answers = |asm: &mut Assembler| {
            for (at, answer) in [(TIME, time_ns), (HASH, hash)] {
                asm.load_constant(R1, answer);
                asm.store(Size::DW, R10 + at, R1);
            }
        };
        let insns = reader(maps, value, answers).unwrap();
        bpf::load(c"test", &insns, false).unwrap()
    }

    /// Attaches a resident program with a reader to right0, or prints why that is not possible.
    fn asking(lab: &Lab) -> Option<(link::Interface, Resident)> {
        let netns = lab.netns("right");
        let right0 = link::interface(Some(&netns), "right0").unwrap();
        let (resident, _) =
            netns::run_in(Some(&netns), || Resident::join_for(&right0, ModeRequest::Best, true))
                .unwrap();
        match resident.metadata() {
            Ok(_) => Some((right0, resident)),
            Err(reason) => {
                println!("skipped: needs the driver's metadata; get it by Linux 6.12.34: {reason}");
                None
            }
        }
    }

    #[test]
    fn a_driver_without_times_gets_no_reader() {
        let metadata = |timestamp| {
            let metadata = Some(Metadata { timestamp, hash: true, vlan_tag: false });
            Some(XdpAbilities { metadata, ..XdpAbilities::default() })
        };
        let rows = [
            ("Linux 6.2", None, Some("Linux 6.7")),
            ("Linux 6.6", Some(XdpAbilities::default()), Some("Linux 6.7")),
            ("a driver with hashes only", metadata(false), Some("driver of e tells")),
            ("a driver with times", metadata(true), None),
        ];
        for (sentence, abilities, expected) in rows {
            let found = nothing_told("e", abilities);
            match (&found, expected) {
                (Some(reason), Some(part)) => {
                    assert!(reason.contains(part), "{sentence}: {reason}");
                }
                _ => assert_eq!(found.is_some(), expected.is_some(), "{sentence}"),
            }
        }
    }

    #[test]
    fn a_kernel_that_refuses_the_tail_call_is_reported() {
        let Some(lab) = tests::lab() else { return };
        let Some((right0, resident)) = asking(&lab) else { return };
        let attached = bpf::program(resident.program()).unwrap();
        let maps = bpf::maps_of(attached.as_fd()).unwrap();
        let load = |frags| {
            netns::run_in(Some(&lab.netns("right")), || Ok(load_reader(&right0, frags, &maps)))
        };
        assert!(load(false).unwrap().is_ok());
        // Programs for frames of one buffer and of several buffers cannot tail-call each other either, and
        // the error is the same.
        let reason = load(true).unwrap().unwrap_err();
        assert!(reason.contains("6.12.34"), "{reason}");
    }

    #[test]
    fn driver_metadata_is_written_in_front_of_the_packet() {
        let Some(lab) = tests::lab() else { return };
        let Some((_, resident)) = asking(&lab) else { return };
        let resident = Arc::new(resident);
        let value = resident.metadata().unwrap();
        let attached = bpf::program(resident.program()).unwrap();
        let maps = bpf::maps_of(attached.as_fd()).unwrap();
        let sockets = bpf::create_socket_map(c"test", 1).unwrap();
        let liveness_socket = bpf::liveness_socket().unwrap();
        bpf::put(sockets.as_fd(), 0, &liveness_socket, Write::Any).unwrap();
        let (hardware, software) = (TimestampSource::Hardware, TimestampSource::Software);
        let rows = [
            ("time and hash", RxMetadata::Driver, (1234, 5), (hardware, 5)),
            (
                "a hash of many bits",
                RxMetadata::Driver,
                (u64::MAX, 0xfedc_ba98),
                (hardware, 0xfedc_ba98),
            ),
            ("no time", RxMetadata::Driver, (0, 5), (software, 5)),
            ("nothing", RxMetadata::Driver, (0, 0), (software, 0)),
            ("a port that does not ask", RxMetadata::Kernel, (1234, 5), (software, 0)),
        ];
        let packet: Vec<u8> = (0..60).collect();
        for (sentence, rx_metadata, (time_ns, hash), expected) in rows {
            let owner = Owner::myself(Action::Take, "", 0..=0);
            let stage = Stage::take(&resident, FILTERED, &owner).unwrap();
            let to = Sockets { map: &sockets, rx_metadata, first_queue: 0, queues: 1 };
            let program = load(&stage, &resident, Action::Take, None, Some(to), None).unwrap();
            stage.complete(Some(program.as_fd())).unwrap();
            let reader = answering(&maps, value, time_ns, hash);
            let (action, mut bytes) = bpf::run(reader.as_fd(), &packet).unwrap();
            assert_eq!(action, xdp_action::REDIRECT, "{sentence}");
            let (front, rest) = bytes.split_at_mut(rx_metadata.bytes().into());
            assert_eq!(rest, packet, "{sentence}");
            let mut meta = Meta::default();
            RxMetadataReader::new(rx_metadata).read(Some(front), &mut meta);
            assert_eq!((meta.timestamp_source, meta.hash), expected, "{sentence}");
            if expected.0 == hardware {
                assert_eq!(meta.timestamp_ns, time_ns, "{sentence}");
            }
        }
    }
}
